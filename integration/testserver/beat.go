package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"time"
)

// beatEvery is the pause between two beats. It is longer than the quiet that a hibernation waits for.
const beatEvery = 40 * time.Millisecond

// beat tells a witness that this copy of the memory executes, until ctx ends, by packets of UDP: "NONCE N COUNTER". The nonce is made here, N
// counts the packets from 1, sent or not, COUNTER is what /counter has. All live in the memory alone.
func (s *server) beat(ctx context.Context, to string) {
	var b [8]byte
	rand.Read(b[:])
	nonce := hex.EncodeToString(b[:])
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		sendBeat(to, fmt.Sprintf("%s %d %d", nonce, n, s.counter.n.Load()))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sendBeat has a socket of its own, so that it goes by the address and the routes of now. What can't be sent is lost, as any packet may be.
func sendBeat(to, text string) {
	c, err := net.Dial("udp", to)
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(text))
}
