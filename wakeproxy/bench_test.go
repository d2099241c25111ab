package wakeproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// benchRig is a rig's parts for a benchmark: a proxy in front of back, served
// until the end.
func benchRig(b *testing.B, back string, waker Waker) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		b.Fatal(err)
	}
	front := ln.Addr().String()
	ln.Close()
	p := New(Options{Waker: waker, Dialer: &fakeDialer{addr: back}})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, file, 1) }()
	b.Cleanup(func() {
		cancel()
		<-served
		file.Close()
		p.Shutdown(context.Background())
	})
	return front
}

// benchServer runs handle for each connection and returns its address.
func benchServer(b *testing.B, handle func(net.Conn)) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return ln.Addr().String()
}

// BenchmarkWakeToFirstByte measures from the return of Wake until the
// workload has a request that waited, for bursts of several sizes; the worst
// connection of the burst counts.
func BenchmarkWakeToFirstByte(b *testing.B) {
	for _, burst := range []int{1, 100} {
		b.Run(fmt.Sprint(burst), func(b *testing.B) {
			arrived := make(chan time.Time, burst)
			back := benchServer(b, func(c net.Conn) {
				io.ReadFull(c, make([]byte, 1))
				arrived <- time.Now()
				io.Copy(io.Discard, c)
			})
			waiting := make(chan struct{}, burst)
			woken := make(chan time.Time, 1)
			front := benchRig(b, back, &fakeWaker{wake: func(context.Context, string) error {
				for range burst {
					<-waiting
				}
				select {
				case woken <- time.Now():
				default:
				}
				return nil
			}})
			var took []time.Duration
			for b.Loop() {
				conns := make([]net.Conn, burst)
				for i := range conns {
					conns[i], _ = net.Dial("tcp", front)
					conns[i].Write([]byte("x"))
				}
				for range burst {
					waiting <- struct{}{}
				}
				var last time.Time
				for range burst {
					if at := <-arrived; at.After(last) {
						last = at
					}
				}
				select {
				case start := <-woken:
					took = append(took, last.Sub(start))
				default: // all were stragglers of the burst before
					for len(waiting) > 0 {
						<-waiting
					}
				}
				for _, c := range conns {
					c.Close()
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// paths are the ways from a client to back.
func paths(b *testing.B, back string) map[string]string {
	return map[string]string{"direct": back, "proxied": benchRig(b, back, &fakeWaker{})}
}

func BenchmarkThroughput(b *testing.B) {
	back := benchServer(b, func(c net.Conn) {
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
	})
	for name, addr := range paths(b, back) {
		b.Run(name, func(b *testing.B) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			block := make([]byte, 256<<10)
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				if _, err := c.Write(block); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRoundTrips(b *testing.B) {
	back := benchServer(b, func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			c.Write(buf[:n])
		}
	})
	for name, addr := range paths(b, back) {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprint(name, "/", clients), func(b *testing.B) { roundTrips(b, addr, clients) })
		}
	}
}

func roundTrips(b *testing.B, addr string, clients int) {
	var wg sync.WaitGroup
	for range clients {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer c.Close()
			buf := make([]byte, 100)
			for range b.N / clients {
				c.Write(buf)
				io.ReadFull(c, buf)
			}
		})
	}
	wg.Wait()
}
