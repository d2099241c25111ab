package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
	"github.com/hibernate-runtime/hibernate/daemon/drainer"
	"github.com/hibernate-runtime/hibernate/daemon/facts"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/version"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// wakeMargin is how much longer than a wake may take the daemon waits for the shim's answer.
const wakeMargin = 5 * time.Second

// serve runs the daemon as it is configured, and tells systemd, if that started it, when it is ready and when it ends.
func serve(ctx context.Context, file string, cfg *config.Config, log *slog.Logger) error {
	notify := func(state string) {
		if _, err := systemd.SdNotify(false, state); err != nil {
			log.Warn("systemd was not told", "state", state, "error", err)
		}
	}
	tier, err := storeOptions(cfg, log)
	if err != nil {
		return err
	}
	here := describe(cfg, log)
	if tier != nil {
		tier.Facts = here.Facts
	}
	stop := context.AfterFunc(ctx, func() { notify(systemd.SdNotifyStopping) })
	defer stop()
	defer watchdog(notify)()
	return daemon.Run(ctx, daemon.Options{
		RunDir:             cfg.RunDir,
		RegistrationSocket: cfg.RegistrationSocket(),
		APISocket:          cfg.APISocket(),
		MetricsAddress:     cfg.MetricsAddress,
		Version:            version.Version,
		Policy:             policy(cfg),
		Concurrent:         cfg.MaxHibernations,
		Wakes:              admission.Limits{Wakes: cfg.MaxWakes, Queue: cfg.MaxWakeQueue, Spare: cfg.MinFreeMemory},
		Connections:        raiseFileLimit(cfg.MaxNodeConnections, log),
		AnswerHTTP:         cfg.RefuseWith == config.RefuseHTTP,
		Limits: wakeproxy.Limits{
			Connections: cfg.MaxConnections, HoldFor: cfg.HoldTimeout, DialTimeout: cfg.HoldTimeout,
		},
		WakeTimeout:  cfg.WakeTimeout + wakeMargin,
		Orphans:      cfg.OrphanHold,
		DataDir:      cfg.DataDir,
		MinFreeDisk:  cfg.MinFreeDisk,
		CollectAfter: cfg.CollectAfter,
		Store:        tier,
		Reap:         reap,
		Facts:        here,
		RunscDir:     cfg.RunscShelf(),
		CarryOn:      carryOn(cfg, log),
		Ctl:          ctl(file),
		Dial:         dial,
		Ready:        func() { notify(systemd.SdNotifyReady) },
		Log:          log,
	})
}

// describe is what is known of this node.
func describe(cfg *config.Config, log *slog.Logger) *facts.Node {
	return facts.New(facts.Options{
		Runsc: cfg.RunscPath, Shelf: runsc.Shelf{Dir: cfg.RunscShelf(), CacheDir: cfg.RunDir}, Platform: cfg.Platform, CPUGiven: cfg.CPUFeatures,
		Version: version.Version, Log: log,
	})
}

// reap has the shim's program take down what one of it has left that died, as containerd does, from its bundle alone.
func reap(ctx context.Context, r handover.Record) error {
	path, err := config.FindProgram("containerd-shim-hibernate-v1")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, "-namespace", r.Namespace, "-id", r.ID, "-bundle", r.Bundle, "delete")
	cmd.Dir, cmd.WaitDelay, cmd.Env = "/", time.Second, childEnv(os.Environ())
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s delete: %w: %s", path, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// watchdog tells systemd again and again that the daemon is not stuck, where that wants to know, until the returned function is
// called. One that is stuck is ended, and its clients are served by the next.
func watchdog(notify func(string)) (stop func()) {
	within, err := systemd.SdWatchdogEnabled(false)
	if err != nil || within == 0 {
		return func() {}
	}
	each := time.NewTicker(within / 3)
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-each.C:
				notify(systemd.SdNotifyWatchdog)
			case <-done:
				return
			}
		}
	})
	return func() {
		each.Stop()
		close(done)
		telling.Wait()
	}
}

// drainArgument makes the program a drainer.
const drainArgument = "drain"

// carryOn starts a drainer of this very version. It is nil when none is wanted.
func carryOn(cfg *config.Config, log *slog.Logger) func([]drainer.Workload) error {
	if cfg.DrainTimeout == 0 {
		return nil
	}
	starter := drainer.Starter{
		Path: "/proc/self/exe", Args: []string{"hibernated", drainArgument}, RunDir: cfg.RunDir, Limit: cfg.DrainTimeout,
		Env: childEnv(os.Environ()),
	}
	return func(all []drainer.Workload) error {
		process, err := starter.Start(all)
		if err == nil {
			log.Info("a drainer runs", "pid", process.Pid)
		}
		return err
	}
}

// drain is a drainer's life. What it is to carry on comes by standard input.
func drain(ctx context.Context, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("drainer", os.Getpid())
	if err := drainer.Run(ctx, os.Stdin, log); err != nil {
		log.Error("connections of an earlier daemon", "error", err)
		return 1
	}
	return 0
}

// policy is the configured part of the idle policy.
func policy(cfg *config.Config) idle.Policy {
	p := idle.Policy{
		CPUFraction: float64(cfg.CPUThreshold) / 100, CPUWindow: cfg.CPUWindow,
		MaxTimeout: cfg.IdleTimeoutMax, Interval: cfg.PollInterval,
	}
	if cfg.CPUThreshold == 0 {
		p.CPUFraction = -1 // 0 would mean the default
	}
	return p
}

// dial is network.Dial as the proxy wants it.
func dial(ctx context.Context, pod *os.File, client, target netip.AddrPort) (net.Conn, error) {
	conn, err := network.Dial(ctx, pod, client, target)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
