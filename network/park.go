package network

import (
	"context"
	"errors"
	"fmt"
)

// Park brings a held gate into the position parked, for a shim that is gone: P completes no handshakes any more, which
// nobody would serve, and what is addressed to the sandbox is dropped without an answer until a link is opened again. It
// is to be called before I goes. A gate that is open or not there, and a P that is gone, are left alone. Of o, Pod and
// Attachment are needed.
func Park(ctx context.Context, o Options) error {
	if !isNamespace(o.Pod) {
		return nil
	}
	if o.Attachment == nil {
		return fmt.Errorf("park the gate of %s: %w", o.Pod, ErrNoNetwork)
	}
	pod, err := openSide(o.Pod)
	if err != nil {
		return fmt.Errorf("park the gate: %w", err)
	}
	defer pod.close()
	l := &Link{pod: pod, attachment: o.Attachment}
	if err := l.park(ctx); err != nil {
		return fmt.Errorf("park the gate of %s: %w", o.Pod, err)
	}
	return nil
}

func (l *Link) park(ctx context.Context) error {
	g, err := l.Gate(ctx)
	if errors.Is(err, ErrNoGate) || err == nil && g.Position == GateOpen {
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.recall(); err != nil {
		return err
	}
	return l.SetGate(ctx, Gate{Position: GateParked, Ports: g.Ports, Datagrams: g.Datagrams})
}

// recall finds what P's sysctls were.
func (l *Link) recall() error {
	outer, err := l.pod.link(outerName)
	if err != nil {
		return err
	}
	if outer != nil && outer.Attrs().Alias != "" {
		l.found, err = parseRecord(outer.Attrs().Alias)
		return err
	}
	return l.readFound()
}
