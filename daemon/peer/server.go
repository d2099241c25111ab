package peer

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Workloads are those that this node has claimed. Errors: ErrRuns, ErrUnavailable, *IdentityError.
type Workloads interface {
	// Offer waits until the workload of a claim sleeps, and gives the snapshot that it sleeps with. sent is called once, when that was sent or could
	// not be.
	Offer(ctx context.Context, a Ask) (s *snapshot.Snapshot, sent func(), err error)
	// Yield gives the claim up to the node that asks, if the workload sleeps with that very sequence.
	Yield(ctx context.Context, a Ask) error
	// Taken says that the node that asks has changed the head.
	Taken(a Ask)
}

// Host takes workloads that are moved here. Errors: ErrRefused, ErrUnavailable, *IdentityError.
type Host interface {
	// Reserve says whether the workload can be restored here, and keeps memory for it for Ask.Wait.
	Reserve(ctx context.Context, a Ask) error
	// Pull brings it here from the node that asks, with its claim, and wakes the container that waits for it.
	Pull(ctx context.Context, a Ask) (Pulled, error)
}

// ServerOptions of a Server. All but Host and Log are required.
type ServerOptions struct {
	Node, Incarnation string
	Key               *Key
	Directory         Directory
	Workloads         Workloads
	Host              Host // nil: nothing is moved here
	Log               *slog.Logger
}

// Server answers other nodes.
type Server struct {
	o     ServerOptions
	slots chan struct{}

	mu    sync.Mutex
	known map[string]caller // by fingerprint; guarded by mu
}

// caller is a node whose key was compared.
type caller struct {
	node, incarnation string
	until             time.Time
}

const (
	// requests are under way at a time, those that wait included.
	requests = 64
	// longestWait of a fetch.
	longestWait = 30 * time.Second
	// stall is how long a chunk may take.
	stall = 20 * time.Second
	// maxBody of a request.
	maxBody = 64 << 10
	// knownFor is how long a key that was compared needn't be compared again.
	knownFor = 30 * time.Second
	// lookLimit bounds reading a node's object.
	lookLimit = 5 * time.Second
	// yieldLimit bounds a yield.
	yieldLimit = 10 * time.Second
)

// incarnationHeader is in each answer.
const incarnationHeader = "Hibernate-Incarnation"

// NewServer makes one that does nothing yet.
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, slots: make(chan struct{}, requests), known: make(map[string]caller)}
}

// Serve answers on l until ctx ends, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /1/fetch", s.asked(s.fetch))
	mux.HandleFunc("POST /1/yield", s.asked(s.yield))
	mux.HandleFunc("POST /1/taken", s.asked(s.taken))
	mux.HandleFunc("POST /1/reserve", s.asked(s.reserve))
	mux.HandleFunc("POST /1/pull", s.asked(s.pull))
	h := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog:    slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.o.Key.certificate},
		ClientAuth: tls.RequireAnyClientCert, // whose it is the request says, and then the store whether that is so
	}
	if err := h.Serve(tls.NewListener(l, config)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve other nodes: %w", err)
	}
	return nil
}

// asked reads an ask, and knows who asks before anything is done about it.
func (s *Server) asked(do func(w http.ResponseWriter, r *http.Request, a Ask) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(incarnationHeader, s.o.Incarnation)
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			s.refuse(w, Ask{}, fmt.Errorf("%w: %d requests are under way already", ErrUnavailable, requests))
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(stall))
		var a Ask
		if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&a); err != nil {
			s.refuse(w, a, fmt.Errorf("%w: the request can't be read: %w", ErrUnavailable, err))
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		err := s.authorize(r, a)
		if err == nil {
			err = do(w, r, a)
		}
		if err != nil {
			s.refuse(w, a, err)
		}
	}
}

// refuse answers with an error, unless something was answered already.
func (s *Server) refuse(w http.ResponseWriter, a Ask, err error) {
	var identity *IdentityError
	log := s.o.Log.With("node", a.Node, "workload", a.workload())
	if errors.As(err, &identity) {
		log.Error("a node is refused at the peer path", "error", err)
	} else {
		log.Debug("a node is answered at the peer path", "error", err)
	}
	if errors.Is(err, errBegun) {
		return // less than Content-Length was sent, so the connection is cut: nobody takes that for all
	}
	data, merr := json.Marshal(refusalOf(err))
	if merr != nil {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stall))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict)
	_, _ = w.Write(data)
}

// errBegun: the answer had begun.
var errBegun = errors.New("an answer was cut short")

// authorize compares who asks with what the store says of that node, and who is asked with this one.
func (s *Server) authorize(r *http.Request, a Ask) error {
	print := fingerprint(r.TLS.PeerCertificates[0])
	if !s.isKnown(print, a) {
		if err := s.compare(r.Context(), print, a); err != nil {
			return err
		}
	}
	if a.Owner.Node != s.o.Node || a.Owner.Incarnation != s.o.Incarnation {
		return &IdentityError{
			What: fmt.Sprintf("asked is node %s of incarnation %s, and this is node %s of incarnation %s", a.Owner.Node, a.Owner.Incarnation, s.o.Node, s.o.Incarnation),
			Do:   "look which machine has that name, and its peer-address",
		}
	}
	return nil
}

func (s *Server) isKnown(print string, a Ask) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.known[print]
	if ok && time.Now().After(c.until) {
		delete(s.known, print)
	}
	return ok && c.node == a.Node && c.incarnation == a.Incarnation && time.Now().Before(c.until)
}

func (s *Server) compare(ctx context.Context, print string, a Ask) error {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	c, incarnation, err := s.o.Directory.Contact(ctx, a.Node)
	if err != nil {
		return unknown(a.Node, err)
	}
	if c.Key != print || incarnation != a.Incarnation {
		return &IdentityError{
			What: fmt.Sprintf("somebody says to be node %s of incarnation %s with the key %s…, and the store says that this is incarnation %s with the key %s…",
				a.Node, a.Incarnation, shown(print), incarnation, shown(c.Key)),
			Do: "look whether two machines have that name, or somebody else speaks for it",
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[print] = caller{a.Node, a.Incarnation, time.Now().Add(knownFor)}
	return nil
}

// unknown is the error of a node whose contact can't be had.
func unknown(node string, err error) error {
	if errors.Is(err, durable.ErrForeign) || errors.Is(err, durable.ErrWrongKey) {
		return &IdentityError{
			What: fmt.Sprintf("what the store says of node %s is not by who has the store's key: %v", node, err),
			Do:   "somebody has written to the store who shouldn't, or the nodes have different keys (store-key-file)",
		}
	}
	return fmt.Errorf("%w: how node %s is known: %w", ErrUnavailable, node, err)
}

// fetch answers with a snapshot.
func (s *Server) fetch(w http.ResponseWriter, r *http.Request, a Ask) error {
	ctx, cancel := context.WithTimeout(r.Context(), min(a.Wait, longestWait))
	offered, sent, err := s.o.Workloads.Offer(ctx, a)
	cancel()
	if err != nil {
		return err
	}
	defer sent()
	stream, err := offered.Stream()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer stream.Close()
	begun := time.Now()
	head := binary.BigEndian.AppendUint64(nil, uint64(len(stream.Document())))
	size := int64(len(head)+len(stream.Document())) + stream.Size()
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	w.Header().Set("Content-Type", "application/octet-stream")
	deadline := http.NewResponseController(w)
	write := func(p []byte) error {
		if err := deadline.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		_, err := w.Write(p)
		return err
	}
	err = errors.Join(write(head), write(stream.Document()))
	if err == nil {
		err = stream.Send(r.Context(), write)
	}
	_ = deadline.SetWriteDeadline(time.Time{})
	if err != nil {
		return fmt.Errorf("%w: %w", errBegun, err)
	}
	s.o.Log.Info("a snapshot was sent to another node", "workload", a.workload(), "node", a.Node, "sequence", offered.Sequence(), "bytes", size,
		"ms", time.Since(begun).Milliseconds())
	return nil
}

func (s *Server) yield(w http.ResponseWriter, r *http.Request, a Ask) error {
	ctx, cancel := context.WithTimeout(r.Context(), yieldLimit)
	defer cancel()
	if err := s.o.Workloads.Yield(ctx, a); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) taken(w http.ResponseWriter, _ *http.Request, a Ask) error {
	s.o.Workloads.Taken(a)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) reserve(w http.ResponseWriter, r *http.Request, a Ask) error {
	if s.o.Host == nil {
		return fmt.Errorf("%w: nothing is moved here", ErrRefused)
	}
	if err := s.o.Host.Reserve(r.Context(), a); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// longestPull bounds a pull.
const longestPull = time.Hour

func (s *Server) pull(w http.ResponseWriter, r *http.Request, a Ask) error {
	if s.o.Host == nil {
		return fmt.Errorf("%w: nothing is moved here", ErrRefused)
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(a.Wait, longestPull))
	defer cancel()
	p, err := s.o.Host.Pull(ctx, a)
	if err != nil {
		return err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stall))
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(data)
	if err != nil {
		return fmt.Errorf("%w: %w", errBegun, err)
	}
	return nil
}
