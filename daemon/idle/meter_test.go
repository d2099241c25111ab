package idle_test

import (
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/idle"
)

// TestBrokenMeterKeepsAwake: data that the wake proxy passed on, and of which the shim counts no packet, twice, makes the
// shim's silence worthless.
func TestBrokenMeterKeepsAwake(t *testing.T) {
	s := newStory(t, idle.Auto)
	s.sample.Packets, s.sample.ProxyBytes = 10, 100
	s.pass(10 * time.Second)
	s.sample.ProxyBytes = 200
	s.pass(10*time.Second).wantReasons(idle.Connections, idle.MinAwake) // it may fall between the two
	s.sample.Packets, s.sample.ProxyBytes = 20, 200
	s.pass(10*time.Second).wantReasons(idle.Traffic, idle.MinAwake)
	for range 2 {
		s.sample.ProxyBytes += 100
		s.pass(10 * time.Second)
	}
	s.wantReasons(idle.Meter)
	s.pass(time.Hour).wantAction(idle.Wait).wantReasons(idle.Meter)
	s.sample.Packets++
	s.pass(time.Second).wantReasons(idle.Traffic)
	s.pass(time.Hour).wantAction(idle.Hibernate)
}

// TestProxyMadeAnewIsNoDoubt: its counter begins at nothing.
func TestProxyMadeAnewIsNoDoubt(t *testing.T) {
	s := newStory(t, idle.Auto)
	for _, bytes := range []uint64{100, 0, 100, 0} {
		s.sample.Packets++
		s.sample.ProxyBytes = bytes
		s.pass(time.Second)
		s.sample.ProxyBytes = 0
		s.pass(time.Second)
	}
	s.pass(time.Hour).wantAction(idle.Hibernate)
}
