package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

// fleet is the shims that have left a record.
type fleet struct {
	records []handover.Record
	// broken is what was wrong with other records.
	broken error
}

// readFleet lists the records of a run directory.
func readFleet(runDir string) (fleet, error) {
	records, err := handover.ListRecords(runDir)
	if err != nil && len(records) == 0 {
		return fleet{}, fmt.Errorf("records in %s: %w", runDir, err)
	}
	slices.SortFunc(records, func(a, b handover.Record) int { return keyOf(a).Compare(keyOf(b)) })
	return fleet{records: records, broken: err}, nil
}

func keyOf(r handover.Record) node.Key { return node.Key{Namespace: r.Namespace, ID: r.ID} }

// find returns the record of the workload that a person means.
func (f fleet) find(name string) (handover.Record, error) {
	keys := make([]node.Key, len(f.records))
	for i, record := range f.records {
		keys[i] = keyOf(record)
	}
	key, err := resolve(keys, name)
	if err != nil {
		return handover.Record{}, err
	}
	return f.records[slices.Index(keys, key)], nil
}

// dial makes a client for the shim of a record. A shim whose process is gone is told at once.
func dial(r handover.Record) (*shimclient.Client, error) {
	if !r.Alive() {
		return nil, fmt.Errorf("%s: %w: its process %d is gone", keyOf(r), shimclient.ErrUnreachable, r.Pid)
	}
	return shimclient.New(r.Address), nil
}

// withShim calls the shim of the workload that a person means.
func (o *options) withShim(cmd *cobra.Command, name string, limit time.Duration, call func(context.Context, *shimclient.Client) error) error {
	return o.withRecord(cmd, name, limit, func(ctx context.Context, _ handover.Record, client *shimclient.Client) error {
		return call(ctx, client)
	})
}

// withRecord is withShim for those who need the shim's record, too.
func (o *options) withRecord(cmd *cobra.Command, name string, limit time.Duration,
	call func(context.Context, handover.Record, *shimclient.Client) error,
) error {
	f, err := readFleet(o.runDir)
	if err != nil {
		return err
	}
	record, err := f.find(name)
	if err != nil {
		return err
	}
	client, err := dial(record)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := o.deadline(cmd.Context(), limit)
	defer cancel()
	if err := call(ctx, record, client); err != nil {
		return fmt.Errorf("%s: %w", keyOf(record), err)
	}
	return nil
}

// Bounds on asking many shims.
const (
	askedAtOnce = 32
	askTimeout  = 3 * time.Second
)

// ask gets the status of one shim, with an error in its place when it does not answer.
func ask(ctx context.Context, r handover.Record) *daemonv1.Workload {
	w := &daemonv1.Workload{Status: &shimv1.StatusResponse{Namespace: r.Namespace, Id: r.ID, State: "unknown"}}
	client, err := dial(r)
	if err == nil {
		defer client.Close()
		var status *shimv1.StatusResponse
		if status, err = client.Status(ctx); err == nil {
			w.Status = status
			return w
		}
	}
	w.Unreachable = shimclient.Message(err)
	return w
}

// askAll gets the status of all shims, and the idle clocks from the daemon if it runs. The error tells why it gave none.
func (f fleet) askAll(ctx context.Context, runDir string) ([]*daemonv1.Workload, error) {
	all := make([]*daemonv1.Workload, len(f.records))
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	var known *daemonv1.ListResponse
	var noDaemon error
	var daemon sync.WaitGroup
	daemon.Go(func() { known, noDaemon = askDaemon(ctx, runDir, daemonClient.List, &daemonv1.ListRequest{}) })
	for i, record := range f.records {
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			all[i] = ask(ctx, record)
			return nil
		})
	}
	_ = asking.Wait()
	daemon.Wait()
	addIdle(all, known)
	return all, noDaemon
}

// addIdle puts to the workloads what the daemon alone knows: the idle clocks, what wakes wait for, and what the store has.
func addIdle(all []*daemonv1.Workload, known *daemonv1.ListResponse) {
	told := make(map[node.Key]*daemonv1.Workload)
	for _, w := range known.GetWorkloads() {
		told[node.Key{Namespace: w.GetStatus().GetNamespace(), ID: w.GetStatus().GetId()}] = w
	}
	for _, w := range all {
		daemons := told[node.Key{Namespace: w.GetStatus().GetNamespace(), ID: w.GetStatus().GetId()}]
		w.Idle, w.WakeWaits, w.Copies = daemons.GetIdle(), cmp.Or(daemons.GetWakeWaits(), w.GetStatus().GetWaits()), daemons.GetCopies()
	}
}

// errNoDaemon means that hibernated does not run.
var errNoDaemon = errors.New("hibernated is not running")
