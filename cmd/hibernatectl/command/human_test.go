package command

import (
	"testing"
	"time"
)

func TestHumanDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1:                                   "-",
		0:                                    "0s",
		440 * time.Millisecond:               "0.4s",
		9990 * time.Millisecond:              "9.9s",
		12*time.Second + 700e6:               "12s",
		time.Minute:                          "1m",
		90 * time.Second:                     "1m30s",
		time.Hour:                            "1h",
		2*time.Hour + 5*time.Minute + 9e9:    "2h5m",
		24 * time.Hour:                       "1d",
		50*time.Hour + 59*time.Minute:        "2d2h",
		24*time.Hour*30 + 23*time.Hour + 3e9: "30d23h",
	} {
		if got := humanDuration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "-", 1: "1 B", 1023: "1023 B", 1024: "1.00 KiB", 24_222_000: "23.1 MiB", 97 << 20: "97.0 MiB",
		512 << 20: "512 MiB", 1_100_000_000: "1.02 GiB", 5 << 50: "5120 TiB",
	} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestShortID(t *testing.T) {
	long := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for id, want := range map[string]string{long: "0123456789ab", long[1:]: long[1:], "redis": "redis", "x" + long[1:]: "x" + long[1:]} {
		if got := shortID(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}
