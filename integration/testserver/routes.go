package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
)

// routes is the HTTP interface:
//
//	/                       hello
//	/pid                    the process's id, as it sees it
//	/counter                POST adds one and answers the new value; GET answers the value
//	/memory?mib=N           POST makes it N MiB of random bytes; GET answers the size in MiB
//	/memory/sha256          checksum of that memory
//	/file/create?name=&mib= a file with random contents, opened, unlinked and kept open at offset 0
//	/file/read?name=&n=     the next n bytes from its offset: the new offset, and the bytes' checksum
//	/file/sha256?name=      checksum of the whole file; the offset stays
//	/mmap/create?name=&mib= a shared mapping of a file, filled with random bytes
//	/mmap/sha256?name=      checksum of the mapping
//	/write?path=&mib=       writes random bytes to a file, fsynced; its checksum
//	/sha256?path=           checksum of a file by its path
//	/bytes?n=               n bytes
//	/upload                 the body's length and checksum
//	/echo/total             what came in on the line echo: bytes in all, and by connection with checksums
//	/manners?peer=          how that connection to the port of manners has ended: its bytes, checksum, and eof, reset or open
//	/manners/read           has the deaf connections read
//	/talk                   answers each line of the body with the same line, at once (HTTP/2)
//	/random                 sixteen random bytes, from the kernel
//	/env, /remote           the environment; the caller's address as seen here
//	/log?line=              prints a line to standard output; to=stderr to standard error
//	/exit?code=             ends the process
//	/grpc.health.v1.Health/Check   that it is well, as gRPC asks
func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"/{$}":           func(*http.Request) (any, error) { return "hello", nil },
		"/pid":           func(*http.Request) (any, error) { return os.Getpid(), nil },
		"/random":        random,
		"/env":           func(*http.Request) (any, error) { return os.Environ(), nil },
		"/remote":        func(r *http.Request) (any, error) { return r.RemoteAddr, nil },
		"/counter":       s.counter.handle,
		"/memory":        s.memory.handle,
		"/memory/sha256": func(*http.Request) (any, error) { return s.memory.sum(), nil },
		"/file/create":   s.files.create,
		"/file/read":     s.files.read,
		"/file/sha256":   s.files.sum,
		"/mmap/create":   s.maps.create,
		"/mmap/sha256":   s.maps.sum,
		"/write":         write,
		"/sha256":        sumPath,
		"/upload":        upload,
		"/echo/total":    s.echo.handle,
		"/manners":       s.manners.handle,
		"/manners/read":  s.manners.listen,
		"/log":           logLine,
		"/exit":          exit,
	} {
		mux.Handle(pattern, h)
	}
	mux.HandleFunc("/bytes", stream)
	mux.HandleFunc("/talk", talk)
	mux.HandleFunc("/grpc.health.v1.Health/Check", healthy)
	return mux
}

// random asks the kernel, as programs do for keys.
func random(*http.Request) (any, error) {
	var b [16]byte
	_, err := rand.Read(b[:])
	return hex.EncodeToString(b[:]), err
}

// A handler answers a string or number as a line of text, anything else as JSON.
type handler func(*http.Request) (any, error)

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	switch answer.(type) {
	case string, int, int64, uint64:
		fmt.Fprintln(w, answer)
	default:
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(answer)
	}
}

// number reads a query's number; less than 0, or none at all, is an error.
func number(r *http.Request, key string) (int, error) {
	n, err := strconv.Atoi(r.URL.Query().Get(key))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s=%q: want a number of at least 0", key, r.URL.Query().Get(key))
	}
	return n, nil
}

func hexSum(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)) }

// A total is a count of bytes and their checksum.
type total struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func upload(r *http.Request) (any, error) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	return total{n, hexSum(h)}, err
}

// stream answers n bytes of a fixed pattern.
func stream(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "n")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(n))
	for block := pattern[:]; n > 0; n -= len(block) {
		if n < len(block) {
			block = block[:n]
		}
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

var pattern = func() (p [64 << 10]byte) {
	for i := range p {
		p[i] = byte(i)
	}
	return p
}()

func logLine(r *http.Request) (any, error) {
	out := os.Stdout
	if r.URL.Query().Get("to") == "stderr" {
		out = os.Stderr
	}
	_, err := fmt.Fprintln(out, r.URL.Query().Get("line"))
	return "ok", err
}

// exit answers nothing: the connection breaks when the process ends.
func exit(r *http.Request) (any, error) {
	code, err := number(r, "code")
	if err != nil {
		return nil, err
	}
	os.Exit(code)
	return nil, nil
}
