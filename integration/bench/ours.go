package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	port  = 8080 // of the test server
	image = "testserver"
	// settle is how long after an answer a workload is asked to sleep: the last acknowledgement, and the ladder that is
	// climbed beside the traffic, are part of neither figure.
	settle = 100 * time.Millisecond
)

// ours is a container under the shim.
type ours struct {
	world   *harness.World
	id      string
	image   string
	bundle  string // readable from outside the world
	pod     harness.Pod
	address netip.AddrPort
	shim    shimv1.TTRPCShimClient
	hangUp  func()
	client  *client
	old     *established
}

// newOurs runs a container with a heap of mib MiB and waits until it answers. Annotations are without their prefix.
func newOurs(ctx context.Context, b *bench, id string, mib int, annotations map[string]string) (*ours, error) {
	return newOursOf(ctx, b, id, func(o *ours) (harness.Container, error) { return o.container(mib, annotations), nil })
}

// newOursOf runs the container that define gives, and waits until it answers. define may change what is asked, and where.
func newOursOf(ctx context.Context, b *bench, id string, define func(*ours) (harness.Container, error)) (*ours, error) {
	o, err := prepare(ctx, b, id)
	if err != nil {
		return nil, err
	}
	c, err := define(o)
	if err == nil {
		_, err = o.world.Run(ctx, c)
	}
	if err == nil {
		_, err = o.client.again(ctx, o.address)
	}
	if err == nil {
		err = o.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container %s: %w", id, err), o.close())
	}
	return o, nil
}

// prepare makes all but the container.
func prepare(ctx context.Context, b *bench, id string) (_ *ours, err error) {
	o := &ours{world: b.world, id: id, image: image}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("container %s: %w", id, err), o.close())
		}
	}()
	if err := o.world.Import(ctx, o.image); err != nil {
		return nil, err
	}
	if o.client, err = newClient(o.world.EnterClient); err != nil {
		return nil, err
	}
	if o.pod, err = o.world.NewPod(ctx, id); err != nil {
		return nil, err
	}
	ip, err := netip.ParseAddr(o.pod.IP)
	o.address = netip.AddrPortFrom(ip, port)
	return o, err
}

func (o *ours) container(mib int, annotations map[string]string) harness.Container {
	return harness.Container{
		ID: o.id, Image: o.image, NetNS: o.pod.Path, Detach: true, Annotations: annotations,
		Env: []string{fmt.Sprint("TESTSERVER_MIB=", mib)},
	}
}

// connect opens what lives as long as the container: the shim's service and the client's established connection.
func (o *ours) connect(ctx context.Context) (err error) {
	record, err := o.world.Record(o.id)
	if err != nil {
		return err
	}
	o.bundle = record.Bundle
	if !filepath.IsAbs(o.bundle) {
		return fmt.Errorf("the bundle's path is %q", o.bundle)
	}
	if o.shim, o.hangUp, err = o.world.Shim(ctx, o.id); err != nil {
		return err
	}
	if o.image == image { // others may not speak HTTP
		o.old, err = establish(ctx, o.world, o.address)
	}
	return err
}

// sleep is a request until its answer: the memory is free then. One that the client's last packets undid is asked again.
func (o *ours) sleep(ctx context.Context) (time.Duration, *shimv1.Transition, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for pause := settle; ; pause = settle / 4 {
		select {
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		case <-time.After(pause):
		}
		began := time.Now()
		r, err := o.shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "bench", Manual: true})
		took := time.Since(began)
		if err == nil {
			return took, r.GetTransition(), nil
		}
		if status.Code(err) != codes.Aborted {
			return 0, nil, err
		}
	}
}

// wakeNew is a new connection's SYN until the first byte of the answer.
func (o *ours) wakeNew(ctx context.Context) (time.Duration, *shimv1.Transition, error) {
	began := time.Now()
	at, err := o.client.once(ctx, o.address)
	if err != nil {
		return 0, nil, err
	}
	t, err := o.woken(ctx, "connection")
	return at.Sub(began), t, err
}

// wakeOld is a request on an established connection until the first byte of the answer.
func (o *ours) wakeOld(ctx context.Context) (time.Duration, *shimv1.Transition, error) {
	took, err := o.old.ask(ctx)
	if err != nil {
		return 0, nil, err
	}
	t, err := o.woken(ctx, "packet")
	return took, t, err
}

// woken returns the newest wake, once its workload counts as awake.
func (o *ours) woken(ctx context.Context, reason string) (*shimv1.Transition, error) {
	for {
		s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
		if err != nil {
			return nil, err
		}
		if s.GetState() == "waking" { // the first byte comes before the end of its wake
			time.Sleep(retryEach)
			continue
		}
		t := s.GetLastWake()
		if s.GetState() != "awake" || t.GetOutcome() != "restored" || t.GetReason() != reason {
			return nil, fmt.Errorf("%s is %s; woken by %q: %s (%s), want restored by %q",
				o.id, s.GetState(), t.GetReason(), t.GetOutcome(), t.GetDetail(), reason)
		}
		return t, nil
	}
}

func (o *ours) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if o.old != nil {
		o.old.conn.Close()
	}
	if o.hangUp != nil {
		o.hangUp()
	}
	if o.client != nil {
		o.client.close()
	}
	err := o.world.Remove(ctx, o.id)
	if o.pod.Path != "" {
		err = errors.Join(err, o.world.RemovePod(ctx, o.pod))
	}
	return err
}

// established is a connection that is opened once.
type established struct {
	conn net.Conn
	in   *bufio.Reader
}

func establish(ctx context.Context, w *harness.World, to netip.AddrPort) (*established, error) {
	conn, err := w.Dial(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	e := &established{conn, bufio.NewReader(conn)}
	_, err = e.ask(ctx)
	return e, err
}

// ask returns how long the first byte took, having read the whole answer.
func (e *established) ask(ctx context.Context) (time.Duration, error) {
	stop := context.AfterFunc(ctx, func() { _ = e.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := e.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := e.conn.Write(request); err != nil {
		return 0, err
	}
	if _, err := e.in.Peek(1); err != nil {
		return 0, err
	}
	took := time.Since(began)
	r, err := http.ReadResponse(e.in, nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %w", r.Status, err)
	}
	return took, nil
}
