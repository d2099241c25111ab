package critest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// sleepLimit bounds one hibernation.
const sleepLimit = 30 * time.Second

// A lullaby stands before containerd: it passes on each call, and puts all pods to sleep before it passes on the answer.
type lullaby struct {
	*node
	socket string
	server *grpc.Server
	conn   *grpc.ClientConn

	mu      sync.Mutex // one round at a time
	calls   int
	slept   int
	refused map[string]int // by what was said
}

func (n *node) lull() *lullaby {
	n.t.Helper()
	l := &lullaby{node: n, socket: filepath.Join(n.Dir, "lulled.sock"), refused: map[string]int{}}
	var err error
	if l.conn, err = grpc.NewClient("unix://"+n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		n.t.Fatal(err)
	}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	l.server = grpc.NewServer(grpc.UnknownServiceHandler(l.pass), grpc.ForceServerCodecV2(untouched{}))
	go func() { _ = l.server.Serve(listener) }() // until Stop
	return l
}

// end tells how many hibernations there were. With few the specs were run in vain.
func (l *lullaby) end(t *testing.T) {
	t.Helper()
	l.server.Stop()
	_ = l.conn.Close() // nothing is under way
	refused := 0
	for said, times := range l.refused {
		refused += times
		t.Logf("refused %d times: %s", times, said)
	}
	fmt.Printf("critest, hibernating: %d calls, hibernations completed %d, refused %d\n", l.calls, l.slept, refused)
	if l.slept <= refused {
		t.Error("most hibernations were refused")
	}
}

// pass passes on one call, which has one request, as all of CRI's have.
func (l *lullaby) pass(_ any, caller grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(caller)
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	callee, err := l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(untouched{}))
	if err != nil {
		return err
	}
	var request []byte
	err = caller.RecvMsg(&request)
	if err == nil {
		err = callee.SendMsg(&request)
	}
	if err == nil {
		err = callee.CloseSend()
	}
	if err != nil {
		return err
	}
	if name := filepath.Base(method); strings.HasPrefix(name, "Stream") || name == "GetContainerEvents" {
		return passAll(caller, callee)
	}
	var answer, none []byte
	if err = callee.RecvMsg(&answer); err == nil {
		err = callee.RecvMsg(&none)
	}
	l.round(context.WithoutCancel(ctx))
	if !errors.Is(err, io.EOF) {
		return err
	}
	return caller.SendMsg(&answer)
}

// passAll passes on answers that come whenever something happens.
func passAll(caller grpc.ServerStream, callee grpc.ClientStream) error {
	for {
		var answer []byte
		if err := callee.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := caller.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// untouched is the codec that leaves messages as they are.
type untouched struct{}

func (untouched) Name() string { return "proto" }
func (untouched) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (untouched) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// round puts all pods to sleep that are awake, each once.
func (l *lullaby) round(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	records, err := handover.ListRecords(l.RunDir())
	if err != nil {
		return // a record that is being written, of a pod that has no answer yet
	}
	for _, r := range records {
		slept, err := l.hibernate(ctx, r)
		switch {
		case err != nil:
			l.refused[strings.ReplaceAll(status.Convert(err).Message(), r.ID, "POD")]++
		case slept:
			l.slept++
		}
	}
}

// hibernate says whether it fell asleep, which it doesn't when it sleeps already, or has ended.
func (l *lullaby) hibernate(ctx context.Context, r handover.Record) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, sleepLimit)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", l.Path(strings.TrimPrefix(r.Address, "unix://")))
	if err != nil {
		return false, nil // it has ended
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	shim := shimv1.NewTTRPCShimClient(client)
	now, err := shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil || !slices.Contains([]string{"awake", "waking"}, now.GetState()) {
		return false, err
	}
	answer, err := shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "test", Manual: true})
	return answer.GetTransition().GetOutcome() == "slept", err
}
