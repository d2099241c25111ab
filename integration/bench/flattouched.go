package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// measureFlatTouched compares wakes of one workload that are told what the last one asked for first with such as are not, with the
// snapshot in memory and on the disk alone.
func measureFlatTouched(ctx context.Context, b *bench) error {
	for _, mib := range slices.Compact([]int{bigHeap, b.plan.flatSizes[len(b.plan.flatSizes)-1]}) {
		if err := measureTouched(ctx, b, mib); err != nil {
			return fmt.Errorf("%d MiB: %w", mib, err)
		}
	}
	return nil
}

func measureTouched(ctx context.Context, b *bench, mib int) (err error) {
	all, err := newLoadedAll(ctx, b, []string{flatLoad}, mib)
	defer func() { err = errors.Join(err, closeAll(all)) }()
	if err != nil {
		return err
	}
	o := all[0]
	if _, err := o.wakeAll(ctx, flatLoad); err != nil { // the first is told nothing
		return err
	}
	kinds := []struct {
		name       string
		cold, told bool
	}{{"warm", false, true}, {"warm_untold", false, false}, {"cold", true, true}, {"cold_untold", true, false}}
	first, loaded := map[string]samples{}, map[string]samples{}
	var chunks samples // that a wake is told
	for range b.plan.flatRounds {
		for _, k := range rand.Perm(len(kinds)) { // what a wake finds depends on the one before, too
			kind := kinds[k]
			told, err := o.told()
			if err != nil {
				return err
			}
			chunks.addValue(float64(told))
			if !kind.told {
				err = o.untell()
			}
			if err == nil && kind.cold {
				err = o.chill()
			}
			if err != nil {
				return err
			}
			w, err := o.wakeAll(ctx, flatLoad)
			if err != nil {
				return err
			}
			first[kind.name] = append(first[kind.name], milliseconds(w.first))
			loaded[kind.name] = append(loaded[kind.name], milliseconds(w.loaded))
		}
	}
	at, n := fmt.Sprint("/", mib), b.plan.flatRounds
	b.add("flat_told_chunks_p50"+at, chunks.median(), "MiB", "", len(chunks))
	for _, how := range []string{"warm", "cold"} {
		b.add("flat_told_over_untold_"+how+at, first[how].median()/first[how+"_untold"].median(), "ratio", "", n)
		b.add("flat_told_loaded_over_untold_"+how+at, loaded[how].median()/loaded[how+"_untold"].median(), "ratio", "", n)
		b.add("flat_told_"+how+"_ms_p50"+at, first[how].median(), "ms", "", n)
		b.add("flat_untold_"+how+"_ms_p50"+at, first[how+"_untold"].median(), "ms", "", n)
	}
	return nil
}

// told is how many chunks a sleeper's next wake is told.
func (o *ours) told() (int, error) {
	l := snapshot.DirFor(o.world.Path(o.world.DataDir()), o.world.Name, o.id, "")
	found, err := filepath.Glob(filepath.Join(l, "[0-9]*/manifest.json"))
	if err != nil || len(found) != 1 {
		return 0, fmt.Errorf("%s: %d manifests: %w", o.id, len(found), err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return 0, err
	}
	m, err := snapshot.ParseManifest(text)
	return len(m.FirstChunks()), err
}

// untell takes what the last wake asked for first out of a sleeper's manifest, as if it had never woken.
func (o *ours) untell() error {
	found, err := filepath.Glob(filepath.Join(snapshot.DirFor(o.world.Path(o.world.DataDir()), o.world.Name, o.id, ""), "[0-9]*/manifest.json"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%s: %d manifests: %w", o.id, len(found), err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	var document struct {
		Format  string          `json:"format"`
		Version int             `json:"version"`
		CRC32C  string          `json:"crc32c"`
		Body    json.RawMessage `json:"body"`
	}
	fields := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(text, &document), json.Unmarshal(document.Body, &fields)); err != nil {
		return err
	}
	if fields["touched"] == nil {
		return fmt.Errorf("%s: the last wake has told nothing", o.id)
	}
	delete(fields, "touched")
	if document.Body, err = json.Marshal(fields); err != nil {
		return err
	}
	document.CRC32C = fmt.Sprintf("%08x", crc32.Checksum(document.Body, crc32.MakeTable(crc32.Castagnoli)))
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(document); err != nil {
		return err
	}
	return os.WriteFile(found[0], out.Bytes(), 0o600)
}
