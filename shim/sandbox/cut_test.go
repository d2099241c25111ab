package sandbox

import (
	"testing"
	"time"
)

func TestWhatACutDroppedIsSaidAgain(t *testing.T) {
	for length, want := range map[time.Duration]time.Duration{
		0:                      time.Second,
		100 * time.Millisecond: time.Second,
		5 * time.Second:        20 * time.Second, // as was seen
		time.Hour:              2 * time.Minute,
	} {
		if got := saidAgainWithin(length); got != want {
			t.Errorf("after a cut of %v: %v, want %v", length, got, want)
		}
	}
}
