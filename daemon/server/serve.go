package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/containerd/ttrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
)

// ListenAPI makes the API's socket, for its owner only. One that nobody serves any more is replaced; the caller makes
// sure that no other daemon uses the same directory.
func ListenAPI(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace the API's socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("protect the API's socket: %w", err)
	}
	return l, nil
}

// ServeAPI serves the API on l until ctx ends, and closes l.
func ServeAPI(ctx context.Context, l net.Listener, api daemonv1.TTRPCDaemonService, claims rightsv1.TTRPCRightsService) error {
	s, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return fmt.Errorf("make the API's server: %w", err)
	}
	daemonv1.RegisterTTRPCDaemonService(s, api)
	rightsv1.RegisterTTRPCRightsService(s, claims)
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	defer l.Close()
	if err := s.Serve(context.WithoutCancel(ctx), l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

// Handler serves /metrics, and /healthz: 200 "ok", or 503 with the error that healthy returns; then what notes says, a line each,
// which makes nobody ill.
func Handler(metrics http.Handler, healthy func() error, notes func() []string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		text := []string{"ok"}
		status := http.StatusOK
		if err := healthy(); err != nil {
			text[0], status = err.Error(), http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprintln(w, strings.Join(append(text, notes()...), "\n"))
	})
	return mux
}

// ServeHTTP serves h on l until ctx ends, and closes l.
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
