package history

import (
	"fmt"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

func wake(id string, ms float64) *shimv1.Transition {
	return &shimv1.Transition{Id: id, Kind: "wake", Outcome: "restored", TotalMs: ms}
}

func TestWakesAreKeptNewestFirstAndBounded(t *testing.T) {
	var h Wakes
	web, db := node.Key{Namespace: "a", ID: "web"}, node.Key{Namespace: "a", ID: "db"}
	h.On(web, &shimv1.Event{Status: &shimv1.StatusResponse{LastWake: wake("before", 1)}})
	for i := range Kept + 3 {
		w := wake(fmt.Sprint(i), float64(i))
		h.On(web, &shimv1.Event{Transition: w, Status: &shimv1.StatusResponse{LastWake: w}})
		h.On(web, &shimv1.Event{Transition: &shimv1.Transition{Id: "h", Kind: "hibernate", Outcome: "slept"}})
	}
	h.On(web, &shimv1.Event{Transition: &shimv1.Transition{Id: "begun", Kind: "wake"}})
	all := h.Of(web)
	if len(all) != Kept || all[0].GetId() != fmt.Sprint(Kept+2) || all[Kept-1].GetId() != "3" {
		t.Errorf("%d wakes: %v", len(all), all)
	}
	h.On(web, &shimv1.Event{Status: &shimv1.StatusResponse{LastWake: wake(fmt.Sprint(Kept+2), 77)}})
	if all = h.Of(web); len(all) != Kept || all[0].GetTotalMs() != 77 {
		t.Errorf("told anew, it is %v", all[0])
	}
	if len(h.Of(db)) != 0 {
		t.Error("another one's")
	}
	h.Forget(web)
	if len(h.Of(web)) != 0 {
		t.Error("not forgotten")
	}
}
