package wakeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// requestWait is how long a client that is refused may take to send its
	// request. It had the time of the hold for that.
	requestWait = 200 * time.Millisecond
	// requestLine is how long the first line of a request may be.
	requestLine = 8 << 10
	// answerWait is how long it may take to read the answer.
	answerWait = time.Second
	// answerDrain is how much more of the request is read meanwhile: what is
	// left unread would take the answer away by a reset.
	answerDrain = 1 << 20
)

// httpRequest is the first line of an HTTP/1 request.
var httpRequest = regexp.MustCompile(`^([A-Z]{3,20}) [!-~]+ HTTP/1\.[01]\r?\n`)

// refuse answers a client whose workload doesn't wake, and closes f. It
// returns how: by the status 503 where the client has sent the head of an
// HTTP/1 request, else by a reset.
func refuse(f *os.File, cause error) string {
	defer f.Close()
	method := requestMethod(f)
	if method == "" || answer(f, method, cause) != nil {
		_ = fileControl(f, lingerNot)
		return RefusedReset
	}
	return RefusedHTTP
}

// requestMethod reads the first line; "" when that is none of HTTP/1.
func requestMethod(f *os.File) string {
	_ = f.SetReadDeadline(time.Now().Add(requestWait))
	buf := make([]byte, 0, 1024)
	for len(buf) < requestLine && bytes.IndexByte(buf, '\n') < 0 {
		if len(buf) > 0 && (buf[0] < 'A' || buf[0] > 'Z') {
			return ""
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			break
		}
	}
	if m := httpRequest.FindSubmatch(buf); m != nil {
		return string(m[1])
	}
	return ""
}

// answer sends the status of a refusal.
func answer(f *os.File, method string, cause error) error {
	body := "This service is asleep and can't be woken right now.\n"
	head := "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nCache-Control: no-store\r\n" +
		"Content-Type: text/plain; charset=utf-8\r\n" + fmt.Sprintf("Content-Length: %d\r\n", len(body))
	if after := retryAfter(cause); after > 0 {
		head += fmt.Sprintf("Retry-After: %d\r\n", after)
	}
	if method == "HEAD" {
		body = ""
	}
	return say(f, head+"\r\n"+body)
}

// say sends a whole answer and its end, and waits until the client has it.
func say(f *os.File, text string) error {
	_ = f.SetDeadline(time.Now().Add(answerWait))
	if _, err := io.WriteString(f, text); err != nil {
		return err
	}
	if err := fileControl(f, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) }); err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, f, answerDrain) // its end, or the deadline: the answer is sent either way
	return nil
}

// retryAfter is in whole seconds; 0 when nobody knows whether another try has
// sense.
func retryAfter(cause error) int {
	var later Later
	switch {
	case errors.As(cause, &later):
		return max(1, int((later.RetryAfter()+time.Second-1)/time.Second))
	case errors.Is(cause, ErrPermanent):
		return 0
	}
	return 5
}

func fileControl(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}
