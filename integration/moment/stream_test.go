package moment

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stream is one connection to the line echo, with an account of all that was sent and of what came back.
type stream struct {
	name string
	conn *net.TCPConn

	sending sync.Mutex // keeps the account in the order of the bytes

	mu      sync.Mutex // guards the fields below
	pending []byte     // sent and not echoed yet
	marks   []mark     // the ends of the lines that are not echoed yet
	waits   []time.Duration
	bytes   int64
	lines   int64
	sum     hash.Hash
	ending  bool // the client's side is closed
	err     error

	read sync.WaitGroup
}

// mark is the end of a line in the stream, and when it was sent.
type mark struct {
	end int64
	at  time.Time
}

func newStream(name string, conn net.Conn) *stream {
	s := &stream{name: name, conn: conn.(*net.TCPConn), sum: sha256.New()}
	s.read.Go(s.receive)
	return s
}

// send sends one line, of numbers and random text, and says when.
func (s *stream) send() time.Time {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	line := s.line()
	s.pending = append(s.pending, line...)
	s.bytes += int64(len(line))
	s.lines++
	s.sum.Write(line)
	at := time.Now()
	s.marks = append(s.marks, mark{s.bytes, at})
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(at.Add(answerTimeout))
	if _, err := s.conn.Write(line); err != nil {
		s.fail(fmt.Errorf("send: %w", err))
	}
	return at
}

// line is short mostly, and sometimes several segments long. The caller holds s.mu.
func (s *stream) line() []byte {
	random := make([]byte, 3*rand.IntN(20))
	if rand.IntN(20) == 0 {
		random = make([]byte, 3*rand.IntN(3000))
	}
	for i := range random {
		random[i] = byte(rand.Int())
	}
	return fmt.Appendf(nil, "%s %d %s\n", s.name, s.lines, base64.StdEncoding.EncodeToString(random))
}

// receive compares what comes with what was sent, to the end.
func (s *stream) receive() {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.conn.Read(buf)
		s.quickAck()
		if !s.echoed(buf[:n], err) {
			return
		}
	}
}

// echoed takes what one read gave, and says whether there is more to read.
func (s *stream) echoed(got []byte, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.HasPrefix(s.pending, got) {
		s.err = errors.Join(s.err, fmt.Errorf("the echo is %.80q, want %.80q", got, s.pending))
		return false
	}
	s.pending = s.pending[len(got):]
	for echoed := s.bytes - int64(len(s.pending)); len(s.marks) > 0 && s.marks[0].end <= echoed; s.marks = s.marks[1:] {
		s.waits = append(s.waits, time.Since(s.marks[0].at))
	}
	if err == nil {
		return true
	}
	if err != io.EOF || !s.ending || len(s.pending) > 0 {
		s.err = errors.Join(s.err, fmt.Errorf("with %d bytes to come: %w", len(s.pending), err))
	}
	return false
}

// quickAck sends the acknowledgement that this kernel would delay: it would undo the next hibernation.
func (s *stream) quickAck() {
	if raw, err := s.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// settled says whether all was echoed, or why it never will be.
func (s *stream) settled() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false, fmt.Errorf("%s (%v): %w", s.name, s.conn.LocalAddr(), s.err)
	}
	return len(s.pending) == 0, nil
}

// end closes the sending side, and looks that the other side then ends in order.
func (s *stream) end() error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	err := s.conn.CloseWrite()
	_ = s.conn.SetReadDeadline(time.Now().Add(answerTimeout))
	s.read.Wait()
	err = errors.Join(err, s.conn.Close())
	_, failed := s.settled()
	return errors.Join(err, failed)
}

// account is what the server must have got on this connection.
func (s *stream) account() account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return account{Bytes: s.bytes, Lines: s.lines, SHA256: fmt.Sprintf("%x", s.sum.Sum(nil))}
}

type account struct {
	Bytes  int64  `json:"bytes"`
	Lines  int64  `json:"lines"`
	SHA256 string `json:"sha256"`
}
