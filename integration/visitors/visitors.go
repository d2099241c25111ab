// Package visitors has clients come to a server one after the other, and tells what became of each. It is for daemons that are
// killed meanwhile: a client is lost with one that had accepted it, and no other may be.
//
//	v := visitors.Begin(ctx, dial, 3*time.Millisecond)
//	owned, _ := visitors.Accepted(holder, port) // when the daemon is stopped, to be killed
//	guests := v.End()
package visitors

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answerLimit bounds one client's visit.
const answerLimit = time.Minute

// A Guest is one client, when it has ended. It has said a line, and waited for its echo.
type Guest struct {
	Port uint16 // its own; 0 when it was not connected
	Err  error
}

// Visitors come until End.
type Visitors struct {
	dial func(context.Context) (net.Conn, error)
	stop chan struct{}
	all  sync.WaitGroup

	mu     sync.Mutex
	guests []Guest // guarded by mu
}

// Begin has a client come now, and then one after each pause.
func Begin(ctx context.Context, dial func(context.Context) (net.Conn, error), pause time.Duration) *Visitors {
	v := &Visitors{dial: dial, stop: make(chan struct{})}
	v.all.Go(func() {
		for i := 0; ; i++ {
			v.all.Go(func() { v.add(v.visit(ctx, i)) })
			select {
			case <-v.stop:
				return
			case <-time.After(pause):
			}
		}
	})
	return v
}

// End has no more come, and returns when the last has left.
func (v *Visitors) End() []Guest {
	close(v.stop)
	v.all.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.guests
}

func (v *Visitors) add(g Guest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.guests = append(v.guests, g)
}

func (v *Visitors) visit(ctx context.Context, i int) (g Guest) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	c, err := v.dial(ctx)
	if err != nil {
		return Guest{Err: fmt.Errorf("visitor %d: %w", i, err)}
	}
	defer c.Close()
	if own, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
		g.Port = own.Port()
	}
	line := fmt.Sprintf("visitor %d\n", i)
	answer := make([]byte, len(line))
	err = c.SetDeadline(time.Now().Add(answerLimit))
	if err == nil {
		_, err = io.WriteString(c, line)
	}
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err == nil && string(answer) != line {
		err = fmt.Errorf("the answer is %q", answer)
	}
	if err != nil {
		g.Err = fmt.Errorf("visitor %d: %w", i, err)
	}
	return g
}

// Accepted are the peers' ports of the connections to a port that somebody in a process's network namespace has accepted: what
// waits in a backlog belongs to no file yet.
func Accepted(pid int, port uint16) (map[uint16]bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return nil, err
	}
	ports := map[uint16]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[9] == "0" || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		_, peer, _ := strings.Cut(f[2], ":")
		n, err := strconv.ParseUint(peer, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if n > 0 { // else it is the listener
			ports[uint16(n)] = true
		}
	}
	return ports, nil
}
