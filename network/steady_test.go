package network_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// BenchmarkSteadyPath compares a real sandbox behind the link with one in P
// itself: medians of pairs that take turns. 1 is as good.
//
//	go test ./network -run xxx -bench Steady -benchtime 7x
func BenchmarkSteadyPath(b *testing.B) {
	for _, p := range []plan{four, six} {
		b.Run(p.name, func(b *testing.B) { benchmarkSteadyPath(b, p) })
	}
}

func benchmarkSteadyPath(b *testing.B, p plan) {
	target := "http://" + p.at(8080)
	var ratios [4][]float64
	linked, plain := steadyPair(b, p, target)
	measures := []struct {
		name string
		do   func(*testing.B, *http.Client, string) float64
	}{{"download", download}, {"upload", upload}, {"requests", requests}, {"connections", connections}}
	for b.Loop() {
		for i, m := range measures {
			x, y := m.do(b, linked, target), m.do(b, plain, target)
			ratios[i] = append(ratios[i], x/y)
			b.Logf("%s: %.4g linked, %.4g plain", m.name, x, y)
		}
	}
	for i, m := range measures {
		slices.Sort(ratios[i])
		b.ReportMetric(ratios[i][len(ratios[i])/2], m.name+"_ratio")
	}
}

func steadyPair(b *testing.B, p plan, target string) (linked, plain *http.Client) {
	w := newWorldOf(b, p)
	l := w.open(b)
	fail(b, l.PrepareInner(b.Context()))
	newGvisor(b, w.inner).start(b)
	fail(b, l.Connect(b.Context()))
	fail(b, l.SetGate(b.Context(), network.Gate{Position: network.GateOpen}))
	fail(b, l.Quicken(b.Context()))
	if why := l.FastPath(); why != "" {
		b.Log("without the fast path: ", why)
	}
	v := newWorldOf(b, p)
	newGvisor(b, v.pod).start(b)
	linked, plain = w.http(), v.http()
	for _, c := range []*http.Client{linked, plain} {
		eventually(b, "an answer", func() bool {
			r, err := c.Get(target + "/")
			if err == nil {
				r.Body.Close()
			}
			return err == nil
		})
	}
	return linked, plain
}

func (w *world) http() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
		return tryInside(w.client, func() (net.Conn, error) { return net.DialTimeout(network, address, time.Second) })
	}}, Timeout: time.Minute}
}

func download(b *testing.B, c *http.Client, target string) float64 {
	const size = 512 << 20
	start := time.Now()
	r, err := c.Get(fmt.Sprintf("%s/bytes?n=%d", target, size))
	fail(b, err)
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	fail(b, err)
	return float64(n) / time.Since(start).Seconds()
}

func upload(b *testing.B, c *http.Client, target string) float64 {
	const size = 256 << 20
	start := time.Now()
	r, err := c.Post(target+"/upload", "application/octet-stream", io.LimitReader(zeros{}, size))
	fail(b, err)
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	fail(b, err)
	return size / time.Since(start).Seconds()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func requests(b *testing.B, c *http.Client, target string) float64 { return rate(b, c, target, 3000) }

func connections(b *testing.B, c *http.Client, target string) float64 {
	tr := c.Transport.(*http.Transport)
	tr.DisableKeepAlives = true
	defer func() { tr.DisableKeepAlives = false }()
	return rate(b, c, target, 500)
}

func rate(b *testing.B, c *http.Client, target string, n int) float64 {
	start := time.Now()
	for range n {
		r, err := c.Get(target + "/counter")
		fail(b, err)
		_, err = io.Copy(io.Discard, r.Body)
		fail(b, err)
		r.Body.Close()
	}
	return float64(n) / time.Since(start).Seconds()
}
