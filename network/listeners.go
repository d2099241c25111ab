package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// mostKnocked is how many ports are asked at most, one after another.
const mostKnocked = 64

// CheckListeners is one more rung, for a sandbox that was just restored: all of these ports, on which it listened when it was saved, are to
// accept. One that refuses has been ended by the workload itself since: there is nothing to repair, only to tell. What gives
// no answer at all is told by other rungs.
func (l *Link) CheckListeners(ctx context.Context, ports []uint16) Rung {
	return climb(stage{"listeners", func() error { return l.checkListeners(ctx, ports) }, nil})
}

func (l *Link) checkListeners(ctx context.Context, ports []uint16) error {
	ended := slices.Clone(ports[:min(len(ports), mostKnocked)])
	for _, f := range l.attachment.families() {
		var err error
		if ended, err = l.refusing(ctx, l.attachment.of(f)[0], ended); err != nil {
			return err
		}
	}
	if len(ended) == 0 {
		return nil
	}
	return fmt.Errorf("refused: the workload has ended its listeners of ports %v", ended)
}

// refusing returns those of the ports that are refused at an address.
func (l *Link) refusing(ctx context.Context, at netip.Addr, ports []uint16) (ended []uint16, err error) {
	if len(ports) == 0 {
		return nil, nil
	}
	p, err := l.openProber(unix.IPPROTO_TCP, at)
	if err != nil {
		return nil, err
	}
	defer p.close()
	for _, port := range ports {
		if errors.Is(p.knock(ctx, netip.AddrPortFrom(at, port)), errRefused) {
			ended = append(ended, port)
		}
	}
	return ended, nil
}
