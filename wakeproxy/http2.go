package wakeproxy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
)

// A question by gRPC's health protocol (github.com/grpc/grpc, doc/health-checking.md) is a request of HTTP/2, and many clients,
// grpc-go and so kubelet among them, don't send it before the server's settings have come. So a client that has begun so far and then waits is
// sent the settings that change nothing (RFC 9113, 3.4). If it turns out to be no probe, the one acknowledgement of
// them is taken out of what it sent, and all the rest is passed on as it is.

const (
	// healthCheck is the path of the one method that asks once.
	healthCheck = "/grpc.health.v1.Health/Check"
	// settingsWait is how long a client has for its request once it has sent its settings, before it is sent some.
	settingsWait = 20 * time.Millisecond
	// acknowledged bounds how long it may take a client to acknowledge settings, and mostBefore how much it may have sent before: what
	// a server that has said nothing else takes of a connection, 65,535 bytes, and heads.
	acknowledged = 5 * time.Second
	mostBefore   = 128 << 10
)

var preface = []byte(http2.ClientPreface)

// begun is how far a client has come by HTTP/2.
type begun struct {
	http2    bool // it is that so far
	settled  bool // its settings are there
	over     bool // its first request is there, or what can't be followed
	stream   uint32
	method   string
	path     string
	agent    string
	ackBegin int // where its acknowledgement of settings begins, and ends; 0 without one
	ackEnd   int
}

// readHTTP2 reads what has come so far.
func readHTTP2(head []byte) (b begun) {
	if n := min(len(head), len(preface)); !bytes.Equal(head[:n], preface[:n]) {
		return b
	}
	b.http2 = true
	if len(head) < len(preface) {
		return b
	}
	rest := bytes.NewReader(head[len(preface):])
	framer := http2.NewFramer(io.Discard, rest)
	framer.SetMaxReadFrameSize(mostBefore)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.MaxHeaderListSize = lookAt
	for {
		at := len(head) - rest.Len()
		frame, err := framer.ReadFrame()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // more is to come
			return b
		case err != nil:
			b.over = true
			return b
		}
		b.take(frame, at, len(head)-rest.Len())
	}
}

// take notes one frame.
func (b *begun) take(frame http2.Frame, begin, end int) {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		b.settled = true
		if f.IsAck() && b.ackEnd == 0 {
			b.ackBegin, b.ackEnd = begin, end
		}
	case *http2.MetaHeadersFrame:
		if !b.over && b.settled && !f.Truncated {
			b.stream, b.method, b.path = f.StreamID, f.PseudoValue("method"), f.PseudoValue("path")
			for _, h := range f.RegularFields() {
				if h.Name == "user-agent" {
					b.agent = h.Value
				}
			}
		}
		b.over = true
	}
}

// askHTTP2 finds what a client asks who has begun by HTTP/2. greeted says that settings were sent to it, whatever it asks.
func askHTTP2(f *os.File, q *Question, limit time.Duration) (greeted, shown bool) {
	var b begun
	see := func(head []byte) bool { b = readHTTP2(head); return b.over || !b.http2 }
	if !peekUntil(f, limit, func(head []byte) bool { return see(head) || b.settled }) {
		return false, false
	}
	if !b.over && b.http2 && !peekUntil(f, settingsWait, see) {
		if err := http2.NewFramer(f, nil).WriteSettings(); err != nil {
			return false, false
		}
		greeted = true
		peekUntil(f, limit, see)
	}
	q.take(b)
	return greeted, q.GRPC()
}

// take takes a request, if it is there.
func (q *Question) take(b begun) {
	q.Stream, q.Method, q.UserAgent = b.stream, b.method, b.agent
	q.Path, _, _ = strings.Cut(b.path, "?")
}

// GRPC says whether it is asked by gRPC's health protocol.
func (q Question) GRPC() bool { return q.Stream != 0 && q.Method == "POST" && q.Path == healthCheck }

// peekUntil looks at what has come and stays where it is, each time that there is more, until see is content or all that is looked at has come;
// false when it isn't in time, or its client has closed.
func peekUntil(f *os.File, limit time.Duration, see func(head []byte) bool) bool {
	raw, err := f.SyscallConn()
	if err != nil || f.SetReadDeadline(time.Now().Add(limit)) != nil {
		return false
	}
	buf := make([]byte, lookAt)
	seen := false
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return false
		case err != nil || n == 0:
			return true
		}
		seen = see(buf[:n])
		return seen || n == len(buf)
	})
	return err == nil && seen
}

// withoutAck takes from the socket what the client has sent until it acknowledged the settings, and returns it without that.
func withoutAck(f *os.File) (before []byte, err error) {
	if err := f.SetReadDeadline(time.Now().Add(acknowledged)); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, lookAt)
	for len(buf) < mostBefore {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		if err != nil {
			return nil, err
		}
		buf = buf[:len(buf)+n]
		if b := readHTTP2(buf); b.ackEnd > 0 {
			return append(buf[:b.ackBegin], buf[b.ackEnd:]...), nil
		}
	}
	return nil, errors.New("the client doesn't acknowledge settings")
}

// tellGRPC answers a probe by gRPC. Messages are those of grpc.health.v1.HealthCheckResponse.
func tellGRPC(f *os.File, q Question, greeted bool, health Health) error {
	const serving, notServing = 1, 2
	status := byte(serving)
	if !health.Well {
		status = notServing
	}
	var out bytes.Buffer
	framer := http2.NewFramer(&out, nil)
	if !greeted {
		_ = framer.WriteSettings() // to a buffer, which takes all
	}
	_ = framer.WriteSettingsAck()
	head := fields(":status", "200", "content-type", "application/grpc", strings.ToLower(StateHeader), health.State)
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: q.Stream, BlockFragment: head, EndHeaders: true})
	_ = framer.WriteData(q.Stream, false, []byte{0, 0, 0, 0, 2, 1 << 3, status}) // not compressed, its length, field 1
	trailers := fields("grpc-status", "0")
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: q.Stream, BlockFragment: trailers, EndHeaders: true, EndStream: true})
	_ = framer.WriteGoAway(q.Stream, http2.ErrCodeNo, nil)
	return say(f, out.String())
}

// fields encodes names and values.
func fields(list ...string) []byte {
	var out bytes.Buffer
	e := hpack.NewEncoder(&out)
	for i := 0; i < len(list); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: list[i], Value: list[i+1]})
	}
	return out.Bytes()
}
