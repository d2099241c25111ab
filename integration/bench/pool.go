package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// measurePools compares a claim of a pool's child with a container that begins from the same template: each from the command to the first answer,
// with a network by CNI. It also tells what a child that stands ready takes of the memory.
func measurePools(ctx context.Context, b *bench) (err error) {
	const template = "pooled"
	w := b.world
	base := harness.Container{
		ID: template, Image: image, CNI: true, Detach: true, Flags: []string{"--null-io"}, Env: []string{fmt.Sprint("TESTSERVER_MIB=", tailSize)},
		Annotations: map[string]string{"identity": template, "template": "true"},
	}
	defer func() {
		_, e := ctl(ctx, w, "pool", "empty", template)
		err = errors.Join(err, e, w.Remove(ctx, template))
	}()
	if _, err := w.Run(ctx, base); err != nil {
		return err
	}
	c, err := newClient(w.EnterClient)
	if err != nil {
		return err
	}
	defer c.close()
	// answered is when the first answer comes from an address.
	answered := func(ip string) (time.Time, error) {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return time.Time{}, err
		}
		return c.again(ctx, netip.AddrPortFrom(a, port))
	}
	ip, err := w.IP(ctx, template)
	if err != nil {
		return err
	}
	if _, err := answered(ip); err != nil {
		return err
	}
	time.Sleep(settle)
	if _, err := w.Sleep(ctx, template); err != nil {
		return err
	}
	var claim, warm samples
	n := b.plan.move.forks
	if _, err := ctl(ctx, w, "pool", "fill", template, "-n", fmt.Sprint(n)); err != nil {
		return err
	}
	out, err := ctl(ctx, w, "pool", "ls", "-o", "json")
	if err != nil {
		return err
	}
	var ready []struct{ ID string }
	if err := json.Unmarshal([]byte(out), &ready); err != nil {
		return err
	}
	var memory samples
	for _, m := range ready {
		used, err := w.Memory(ctx, m.ID)
		if err != nil {
			return err
		}
		memory.addValue(float64(used.Shim+used.Holder+used.Sandbox) / (1 << 20))
	}
	for i := range n {
		began := time.Now()
		out, err := ctl(ctx, w, "pool", "claim", template)
		if err != nil {
			return err
		}
		f := strings.Fields(out)
		if len(f) != 2 {
			return fmt.Errorf("pool claim says %q", out)
		}
		at, err := answered(f[1])
		if err != nil {
			return err
		}
		claim.add(at.Sub(began))
		if err := w.Remove(ctx, f[0]); err != nil { // its load would be in the others' way
			return err
		}
		one := base
		one.ID, one.Annotations = fmt.Sprint("warm", i), map[string]string{"restore": template}
		began = time.Now()
		if _, err := w.Run(ctx, one); err != nil {
			return err
		}
		if ip, err = w.IP(ctx, one.ID); err != nil {
			return err
		}
		if at, err = answered(ip); err != nil {
			return err
		}
		warm.add(at.Sub(began))
		if err := w.Remove(ctx, one.ID); err != nil {
			return err
		}
	}
	b.add("pool_claim_ms_p50/128", claim.median(), "ms", "", n)
	b.add("warm_container_ms_p50/128", warm.median(), "ms", "", n)
	b.add("pool_member_mib_p50", memory.median(), "MiB", "", n)
	return nil
}

func ctl(ctx context.Context, w *harness.World, args ...string) (string, error) {
	return w.Output(ctx, "hibernatectl", append([]string{"--config", w.ConfigFile()}, args...)...)
}
