package conformance

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// A workload that was judged idle by fewer packets than have been counted by now is in use: it is not put to sleep.
func TestJudgedByOldPackets(t *testing.T) {
	n := newNode(t, nil)
	c := n.run(t, mood{}, options{args: sleeper})
	activity, err := c.shim.Activity(c.ctx(), &shimv1.ActivityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	old, now := activity.GetPackets()-1, activity.GetPackets()
	_, err = c.shim.Hibernate(c.ctx(), &shimv1.HibernateRequest{Manual: true, JudgedPackets: &old})
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "[active]") {
		t.Fatalf("got %v, want Aborted with the reason active", err)
	}
	s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	if err != nil || s.GetState() != "awake" || s.GetLastHibernate().GetOutcome() != "refused" {
		t.Fatalf("then it is %s, told as %v: %v", s.GetState(), s.GetLastHibernate(), err)
	}
	r, err := c.shim.Hibernate(c.ctx(), &shimv1.HibernateRequest{Manual: true, JudgedPackets: &now})
	if err != nil || r.GetTransition().GetOutcome() != "slept" {
		t.Fatalf("by the right packets: %v, %v", r, err)
	}
	c.end()
}
