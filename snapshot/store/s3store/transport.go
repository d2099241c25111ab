package s3store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// idle connections that are kept, for as many requests at once.
const (
	idleConnections = 64
	idleTime        = 30 * time.Second
	bufferSize      = 64 << 10
)

// newTransport is for one store: HTTP/1.1, since one connection of HTTP/2 would carry everything, and ends in the middle of
// a body when a server says goodbye.
func newTransport(c Config) (*http.Transport, error) {
	roots, err := rootsOf(c.CA)
	if err != nil {
		return nil, err
	}
	var one http.Protocols
	one.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: c.Timeouts.Connect, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:     http.ProxyFromEnvironment,
		Protocols: &one,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stallConn{conn, c.Timeouts.Stall}, nil
		},
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   c.Timeouts.Connect,
		ResponseHeaderTimeout: c.Timeouts.Written, // begins when the request is sent; what carries nothing has less
		MaxIdleConns:          idleConnections,
		MaxIdleConnsPerHost:   idleConnections,
		IdleConnTimeout:       idleTime,
		DisableCompression:    true, // a body that was unpacked on its way isn't the object's
		ReadBufferSize:        bufferSize,
		WriteBufferSize:       bufferSize,
	}, nil
}

func rootsOf(ca string) (*x509.CertPool, error) {
	if ca == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, bad("ca=: %v", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, bad("ca=%s: there is no certificate in it (PEM)", ca)
	}
	return roots, nil
}

// stallConn is a connection whose peer must take something within a while of each write. Go's transport bounds only the
// time after all was sent.
type stallConn struct {
	net.Conn
	stall time.Duration
}

func (c *stallConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// answers looks at what comes back: the server's clock, which minio-go doesn't pass on.
type answers struct {
	http.RoundTripper
	skew atomic.Int64 // the server's clock less ours, as last seen
	seen atomic.Bool
}

// dateKey is the context's key for a *time.Time that gets the Date of the first answer.
type dateKey struct{}

func (a *answers) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		a.skew.Store(int64(date.Sub(time.Now().Truncate(time.Second))))
		a.seen.Store(true)
		if first, ok := req.Context().Value(dateKey{}).(*time.Time); ok && first.IsZero() {
			*first = date
		}
	}
	return answer, nil
}

// told says how the clocks differ, when they do.
func (a *answers) told() string {
	skew := time.Duration(a.skew.Load())
	switch {
	case !a.seen.Load() || skew.Abs() < time.Minute:
		return ""
	case skew > 0:
		return fmt.Sprintf("the store's clock is %s ahead of this machine's", skew)
	}
	return fmt.Sprintf("the store's clock is %s behind this machine's", -skew)
}

// watch ends a request on which nothing happens.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// stalledError is the cause of its context's end.
type stalledError struct{ within time.Duration }

func (e stalledError) Error() string { return fmt.Sprintf("nothing came for %s", e.within) }

// newWatch ends the context when it isn't told otherwise within d.
func newWatch(ctx context.Context, d time.Duration) *watch {
	w := &watch{}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(d, func() { w.cancel(stalledError{d}) })
	return w
}

// alive says that something has happened, and what follows has d.
func (w *watch) alive(d time.Duration) { w.timer.Reset(d) }

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}
