package command

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/children"
	"github.com/hibernate-runtime/hibernate/daemon/pool"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

const poolHelp = `Children of a template that are ready: containers that begin from its snapshot, made like the template's own, with their network and a
booted sandbox, and not started. Claiming one starts it, which takes a restore.

How many are ready is the template's annotation pool; hibernated fills up, makes new ones when the template has slept anew, and removes them
when it is gone. Each takes the memory of a shim and of an empty sandbox, and next to nothing of the disk. For containers of ctr or
containerd's client, whose network is by CNI or none.`

func newPool(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Children of a template that are ready to be claimed", Long: poolHelp, Args: subcommand}
	cmd.PersistentFlags().StringVar(&o.dataDir, "data-dir", "", "directory of the snapshots (default: as configured)")
	cmd.AddCommand(newPoolList(o), newPoolClaim(o), newPoolFill(o), newPoolEmpty(o))
	return cmd
}

func newPoolList(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List who is ready", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pools, err := pool.All(o.runDir)
			if err != nil {
				return err
			}
			all := []pool.Member{}
			for _, p := range pools {
				ready, err := p.Ready()
				if err != nil {
					return err
				}
				all = append(all, ready...)
			}
			if o.output == "json" {
				return encode(cmd.OutOrStdout(), all)
			}
			t := newTable(cmd.OutOrStdout())
			t.row("NAMESPACE", "TEMPLATE", "ID", "SNAPSHOT", "AGE")
			for _, m := range all {
				t.row(m.Namespace, m.Template, m.ID, strconv.FormatUint(m.Sequence, 10), ago(o.now(), m.Made.UnixMilli()))
			}
			return t.flush()
		},
	}
}

// template is a workload that a pool is of.
type template struct {
	pool.Pool
	record handover.Record
	status *shimv1.StatusResponse
	socket string
}

// withTemplate calls back with the template that a person means.
func (o *options) withTemplate(cmd *cobra.Command, name string, call func(context.Context, template) error) error {
	return o.withRecord(cmd, name, 10*time.Minute, func(ctx context.Context, r handover.Record, client *shimclient.Client) error {
		if r.Identity == "" {
			return fmt.Errorf("it has no identity, so none can begin from it: give it the annotations identity and template: %w", errdefs.ErrFailedPrecondition)
		}
		status, err := client.Status(ctx)
		if err != nil {
			return err
		}
		dirs, err := o.cordonDirs()
		if err != nil {
			return err
		}
		socket, err := containerdOf(dirs[1], r)
		if err != nil {
			return err
		}
		return call(ctx, template{pool.Of(o.runDir, r.Namespace, r.Identity), r, status, socket})
	})
}

// setting is the template's for a key.
func (t template) setting(key string) string {
	for _, s := range t.status.GetSettings() {
		if s.GetKey() == key {
			return s.GetValue()
		}
	}
	return ""
}

func newPoolClaim(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "claim [NAMESPACE/]TEMPLATE", Short: "Start a child that is ready, and print its id and addresses", Args: workloadArg,
		Long: "Starts a child that is ready, and prints its id and addresses. It is the caller's alone. Where none is ready one is made, which takes longer.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withTemplate(cmd, args[0], func(ctx context.Context, t template) error {
				id, err := o.claim(ctx, t)
				if err != nil {
					return err
				}
				all := forkRun{options: o}.ran(ctx, t.record.Namespace, []string{id})
				all[0].Identity = ""
				if o.output == "json" {
					return encode(cmd.OutOrStdout(), all[0])
				}
				return printRan(cmd.OutOrStdout(), all)
			})
		},
	}
}

// claim starts a member, or makes one where none is ready.
func (o *options) claim(ctx context.Context, t template) (id string, err error) {
	node, err := children.Dial(t.socket, t.record.Namespace)
	if err != nil {
		return "", err
	}
	defer node.Close()
	for {
		m, err := t.Take()
		if errors.Is(err, pool.ErrEmpty) {
			return o.makeOne(ctx, t, nil, func(m *children.Made, _ pool.Member) error { return m.Start(ctx) })
		}
		if err != nil {
			return "", err
		}
		if err = node.Claim(ctx, m.ID); err == nil {
			return m.ID, t.Drop(m)
		}
		if ctx.Err() != nil {
			return "", err
		}
		if e := errors.Join(o.removeMember(ctx, node, m.Namespace, m.ID), t.Drop(m)); e != nil { // it has died; another one may live
			return "", errors.Join(err, e)
		}
	}
}

// makeOne makes a child with further labels, and has it finished by done; or leaves nothing.
func (o *options) makeOne(ctx context.Context, t template, labels map[string]string, done func(*children.Made, pool.Member) error) (id string, err error) {
	parent, err := children.Open(ctx, t.socket, t.record.Namespace, t.record.ID)
	if err != nil {
		return "", err
	}
	defer parent.Close()
	if parent.NeedsNamespaces() {
		return "", fmt.Errorf("%w: it was given a network namespace by its path, which its children can't share", children.ErrNetwork)
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	m := pool.Member{
		Namespace: t.record.Namespace, ID: fmt.Sprintf("%.60s-%s", t.record.ID, hex.EncodeToString(random[:])), Template: t.record.Identity,
		Sequence: t.status.GetSequence(), Containerd: t.socket, Made: o.now().UTC(),
	}
	c := children.Child{ID: m.ID, Labels: labels, Annotations: map[string]string{
		"restore": fmt.Sprintf("%s@%d", parent.Annotation("identity"), m.Sequence), "on-restore-failure": "block",
	}}
	made, err := parent.Make(ctx, c)
	if err != nil {
		return "", err
	}
	if err := done(made, m); err != nil {
		return "", errors.Join(err, made.Remove(ctx))
	}
	return m.ID, nil
}
