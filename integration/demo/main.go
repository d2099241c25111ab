// Command demo shows the main job, in a private world that it takes down again: a redis-server from Debian sleeps when
// nobody uses it, and wakes by a new connection, by one that was open all along, and by a new one again.
//
// Its last line is "demo: ok …" with figures, and its exit status is 0, only when everything was as promised.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	id       = "cache"
	limit    = 2 * time.Minute
	mebibyte = 1 << 20
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	say("starting a private containerd and hibernated")
	w, err := harness.Start(ctx, harness.Options{
		Daemon:   true,
		Settings: map[string]string{"idle-timeout": `"2s"`, "min-awake": `"1s"`, "poll-interval": `"250ms"`},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Fprintln(os.Stderr, w.Daemon.LogTail(15), w.Containerd.LogTail(25))
		}
		if e := w.Close(); err == nil {
			err = e
		}
	}()
	d := &demo{world: w}
	for _, act := range []func(context.Context) error{d.start, d.newClient, d.oldClient, d.newClient, d.stop} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("demo: ok cycles=3 wake_new_ms=%.0f wake_established_ms=%.0f mem_awake_mib=%d mem_asleep_mib=%d\n",
		d.wakeNew, d.wakeOld, d.awake/mebibyte, d.asleep/mebibyte)
	return nil
}

type demo struct {
	world            *harness.World
	address          string
	old              *redis // open from the beginning to the end
	keys             int
	wakeNew, wakeOld float64 // ms, from the client's first byte to the answer
	awake, asleep    uint64  // bytes
}

// start runs redis, stores data over a connection that stays open, and measures what redis uses.
func (d *demo) start(ctx context.Context) error {
	say("redis-server under io.containerd.hibernate.v1, with ctr run --cni")
	if _, err := d.world.Run(ctx, harness.Container{ID: id, Image: "redis", CNI: true, Detach: true}); err != nil {
		return err
	}
	ip, err := d.world.IP(ctx, id)
	if err != nil {
		return err
	}
	d.address = net.JoinHostPort(ip, "6379")
	conn, err := d.dial(ctx)
	if err != nil {
		return err
	}
	d.old = newRedis(conn)
	if _, err := d.old.do("SET", "greeting", strings.Repeat("hello-", 10)); err != nil {
		return err
	}
	for d.keys = range 1000 {
		if _, err := d.old.do("SET", fmt.Sprint("key", d.keys), fmt.Sprint("value", d.keys)); err != nil {
			return err
		}
	}
	m, err := d.world.Memory(ctx, id)
	if err != nil {
		return err
	}
	d.awake = m.Sandbox + m.Shim + m.Holder
	say("1000 keys stored at %s; awake it uses %d MiB in %d processes of the sandbox", d.address, d.awake/mebibyte, m.Processes)
	return nil
}

// dial tries until redis listens.
func (d *demo) dial(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := d.world.Dial(ctx, "tcp", d.address)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// newClient waits for sleep and then reads the data over a new connection.
func (d *demo) newClient(ctx context.Context) error {
	if err := d.sleep(ctx); err != nil {
		return err
	}
	begin := time.Now()
	conn, err := d.world.Dial(ctx, "tcp", d.address)
	if err != nil {
		return fmt.Errorf("a new connection while it sleeps: %w", err)
	}
	defer conn.Close()
	err = d.check(newRedis(conn))
	d.wakeNew = milliseconds(begin)
	if err != nil {
		return err
	}
	return d.report(ctx, "a new connection", d.wakeNew)
}

// oldClient waits for sleep and then reads the data over the connection of the beginning.
func (d *demo) oldClient(ctx context.Context) error {
	if err := d.sleep(ctx); err != nil {
		return err
	}
	begin := time.Now()
	err := d.check(d.old)
	d.wakeOld = milliseconds(begin)
	if err != nil {
		return fmt.Errorf("the old connection: %w", err)
	}
	return d.report(ctx, "the old connection", d.wakeOld)
}

func (d *demo) check(r *redis) error {
	got, err := r.do("GET", "key999")
	if err == nil && got != "value999" {
		err = fmt.Errorf("key999 is %q after the wake", got)
	}
	if err != nil {
		return err
	}
	size, err := r.do("DBSIZE")
	if err == nil && size != "1001" {
		err = fmt.Errorf("%s keys after the wake, want 1001", size)
	}
	return err
}

// sleep waits until the idle policy has put redis to sleep, and looks at what is left.
func (d *demo) sleep(ctx context.Context) error {
	status, err := d.world.WaitState(ctx, id, "asleep")
	if err != nil {
		return err
	}
	m, err := d.world.Memory(ctx, id)
	if err != nil {
		return err
	}
	if m.Processes != 0 {
		return fmt.Errorf("%d processes of the sandbox run while it sleeps", m.Processes)
	}
	d.asleep = m.Shim + m.Holder
	say("idle for 2 s: it sleeps. hibernating took %s; %d MiB on disk, %d MiB in memory",
		stages(status.GetLastHibernate()), status.GetImageBytes()/mebibyte, d.asleep/mebibyte)
	return nil
}

func (d *demo) report(ctx context.Context, who string, ms float64) error {
	status, err := d.world.WaitState(ctx, id, "awake")
	if err != nil {
		return err
	}
	t := status.GetLastWake()
	if t.GetOutcome() != "restored" {
		return fmt.Errorf("the wake's outcome is %s (%s), want restored", t.GetOutcome(), t.GetDetail())
	}
	say("%s had its answer after %.0f ms. The wake: %s", who, ms, stages(t))
	return nil
}

func (d *demo) stop(ctx context.Context) error {
	d.old.conn.Close()
	say("cleaning up")
	return d.world.RemoveAll(ctx)
}

// stages are a transition's steps with their milliseconds.
func stages(t *shimv1.Transition) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.0f ms (", t.GetTotalMs())
	for i, s := range t.GetSteps() {
		if i > 0 {
			b.WriteString(" · ")
		}
		fmt.Fprintf(&b, "%s %.0f", s.GetName(), s.GetMs())
	}
	return b.String() + ")"
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func say(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }
