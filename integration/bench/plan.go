package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A plan says how much is measured.
type plan struct {
	store storePlan
	move  movePlan

	sizes      []int // MiB of heap
	rounds     int   // of each size: one raw, one new and one established connection
	tail       int   // wakes by new connections at tailSize, the rounds' included, for the 99th percentile
	cold       int
	written    int
	four       int
	asleep     int
	answers    int // sleeps and wakes at bigHeap in which State and Stats are asked for
	trues      int // pairs of a program that ends at once
	memory     int
	cycles     int
	pairs      int // of the steady path
	download   int // MiB of one of them
	loadMillis int // of requests, in one of them
	opened     int // connections that one of them opens, one after the other

	// Of the network.
	heldPairs int // downloads over a held connection, and over a direct one
	flat      int // wakes at flatHeap
	crowds    int // workloads whose clients are held
	crowd     int // clients of each
	idle      int // connections that are open through sleeps
	silence   time.Duration
	kills     int // of the daemon
	positions int // wakes in each position of the gate

	// Of flat wakes.
	flatSizes  []int // MiB of heap, the smallest first
	flatRounds int   // with each heap, and of each other part
	flatBoxes  int   // sandboxes of the smallest and of the largest heap
	flatWakes  int   // of each of them

	flatCorruptions int // bytes that are damaged, one after the other
}

// A storePlan says how much is measured of the durable tier.
type storePlan struct {
	uploads, uploadMiB int // first uploads, and the heap of each
	shares             int // second snapshots of either kind
	treeMiB            int
	neighbour          int // uploads beside a busy neighbour
	wakes              int // of each of two workloads, with each heap
	chaos              int // random runs
	seed               uint64
}

// tailSize is the heap, in MiB, where more is measured than medians of wakes.
const tailSize = 128

var (
	full = plan{
		store: storePlan{uploads: 5, uploadMiB: 400, shares: 3, treeMiB: 1024, neighbour: 9, wakes: 8, chaos: 300},
		move:  movePlan{runs: 30, dirty: 5, cold: 10, four: 5, forks: 10, chaos: 300},
		sizes: []int{16, 128, 512, 1024}, rounds: 20, tail: 200, cold: 20, written: 10, four: 20, asleep: 3, cycles: 50,
		answers: 3, trues: 15, memory: 3,
		pairs: 15, download: 512, loadMillis: 1000, opened: 500,
		heldPairs: 11, flat: 500, crowds: 4, crowd: 5000, idle: 1000, silence: time.Minute, kills: 100, positions: 20,
		flatSizes: []int{16, 128, 1024, 3072}, flatRounds: 15, flatBoxes: 10, flatWakes: 10, flatCorruptions: 1000,
	}
	quick = plan{
		store: storePlan{uploads: 2, uploadMiB: 400, shares: 1, treeMiB: 1024, neighbour: 4, wakes: 4, chaos: 15},
		move:  movePlan{runs: 6, dirty: 2, cold: 3, four: 2, forks: 3, chaos: 15},
		sizes: []int{16, 128, 512}, rounds: 7, tail: 40, cold: 5, written: 3, four: 5, asleep: 1, cycles: 50,
		answers: 1, trues: 5, memory: 1,
		pairs: 11, download: 128, loadMillis: 500, opened: 250,
		heldPairs: 7, flat: 60, crowds: 2, crowd: 1000, idle: 100, silence: 10 * time.Second, kills: 10, positions: 5,
		flatSizes: []int{16, 128, 1024, 3072}, flatRounds: 5, flatBoxes: 3, flatWakes: 4, flatCorruptions: 60,
	}
)

// change replaces what a person gave: sizes are separated by commas.
func (p *plan) change(sizes string, rounds int) error {
	if rounds > 0 {
		p.rounds, p.flatRounds, p.store.chaos, p.move.chaos = rounds, rounds, rounds, rounds
	}
	if sizes == "" {
		return nil
	}
	p.sizes = nil
	defer func() { p.flatSizes = p.sizes }()
	for text := range strings.SplitSeq(sizes, ",") {
		mib, err := strconv.Atoi(text)
		if err != nil || mib < 0 {
			return fmt.Errorf("-sizes: %q is no number of MiB", text)
		}
		p.sizes = append(p.sizes, mib)
	}
	return nil
}
