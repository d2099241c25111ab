package durable

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KeyWrapper encrypts the data keys of lineages. Methods may be called from many goroutines.
type KeyWrapper interface {
	// ID tells this key from others; it stands in heads, in clear.
	ID() string
	// Wrap encrypts the data key of a lineage, of 48 bytes.
	Wrap(ctx context.Context, key []byte) ([]byte, error)
	// Unwrap reverses Wrap. ErrWrongKey when this is not the key.
	Unwrap(ctx context.Context, wrapped []byte) ([]byte, error)
}

// Keyring is the key that new data keys are wrapped with, and older ones that heads may still have until they are
// wrapped again ([Lineage.Rewrap]).
type Keyring struct {
	Current KeyWrapper
	Older   []KeyWrapper
}

func (r Keyring) wrap(ctx context.Context, k *keys) (WrappedKey, error) {
	wrapped, err := r.Current.Wrap(ctx, k.payload())
	if err != nil {
		return WrappedKey{}, fmt.Errorf("wrap the data key with %s: %w", r.Current.ID(), err)
	}
	return WrappedKey{ID: r.Current.ID(), Wrapped: wrapped}, nil
}

func (r Keyring) unwrap(ctx context.Context, w WrappedKey) (*keys, error) {
	var have []string
	for _, k := range append([]KeyWrapper{r.Current}, r.Older...) {
		if k.ID() != w.ID {
			have = append(have, k.ID())
			continue
		}
		payload, err := k.Unwrap(ctx, w.Wrapped)
		if err != nil {
			return nil, fmt.Errorf("unwrap the data key with %s: %w", w.ID, err)
		}
		if len(payload) != wrapLength {
			return nil, fmt.Errorf("%w: %s gives %d bytes, want %d", ErrWrongKey, w.ID, len(payload), wrapLength)
		}
		return keysOf(payload), nil
	}
	return nil, fmt.Errorf("%w: it is wrapped with %s, and configured is %s: configure that key, too, or what it protects stays closed",
		ErrWrongKey, w.ID, strings.Join(have, ", "))
}

// fileKey wraps with a key of 32 bytes.
type fileKey struct {
	id  string
	key []byte
}

const keyLength = 32

// KeyFile reads a key: 32 bytes, or their base64 and at most a line end, in a regular file that nobody but its owner may
// read (0600 or less). ErrNoKey when it isn't there.
func KeyFile(path string) (KeyWrapper, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is not there: restore it from where it is kept; a new one opens nothing that the old one closed", ErrNoKey, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("key %s is not a regular file", path)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key %s can be read by others (mode %04o): chmod 600 it, and make a new one if somebody has", path, st.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return newFileKey(key), nil
}

func parseKey(data []byte) ([]byte, error) {
	if len(data) == keyLength {
		return data, nil
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimRight(string(data), "\r\n"))
	if err != nil || len(key) != keyLength {
		return nil, fmt.Errorf("want %d random bytes, or their base64: make one with head -c 32 /dev/urandom | base64", keyLength)
	}
	return key, nil
}

func newFileKey(key []byte) fileKey {
	return fileKey{id: "file:" + hex.EncodeToString(derive(key, nil, "hibernate/1 id", 8)), key: key}
}

func (k fileKey) ID() string { return k.id }

func (k fileKey) Wrap(_ context.Context, key []byte) ([]byte, error) {
	salt := make([]byte, 32)
	_, _ = rand.Read(salt)
	return gcm(derive(k.key, salt, "hibernate/1 wrap", 32)).Seal(salt, make([]byte, 12), key, nil), nil
}

func (k fileKey) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	if len(wrapped) < 32 {
		return nil, truncated("wrapped key", "%d bytes", len(wrapped))
	}
	key, err := gcm(derive(k.key, wrapped[:32], "hibernate/1 wrap", 32)).Open(nil, make([]byte, 12), wrapped[32:], nil)
	if err != nil {
		return nil, corrupt("wrapped key", "the key is the right one, but what it has wrapped was changed")
	}
	return key, nil
}

// commandKey wraps by running a program.
type commandKey struct {
	name    string
	argv    []string
	timeout time.Duration
}

// maxWrapped bounds what a command may answer.
const maxWrapped = 64 << 10

// KeyCommand wraps by a program of the user's, for a KMS: it is run with "wrap" or "unwrap" as its last argument, gets
// base64 and a line end on standard input, and answers the same way within timeout. name stands in heads.
func KeyCommand(name string, argv []string, timeout time.Duration) (KeyWrapper, error) {
	switch {
	case name == "":
		return nil, errors.New("a key command needs a name, which tells its key from others")
	case len(argv) == 0:
		return nil, fmt.Errorf("%w: the key command %s is empty", ErrNoKey, name)
	case timeout <= 0:
		return nil, fmt.Errorf("key command %s: timeout is %v, want more than 0", name, timeout)
	}
	return &commandKey{name: name, argv: argv, timeout: timeout}, nil
}

func (k *commandKey) ID() string { return "command:" + k.name }

func (k *commandKey) Wrap(ctx context.Context, key []byte) ([]byte, error) {
	return k.run(ctx, "wrap", key)
}

func (k *commandKey) Unwrap(ctx context.Context, wrapped []byte) ([]byte, error) {
	return k.run(ctx, "unwrap", wrapped)
}

func (k *commandKey) run(ctx context.Context, verb string, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.argv[0], append(k.argv[1:len(k.argv):len(k.argv)], verb)...)
	cmd.Stdin = strings.NewReader(base64.StdEncoding.EncodeToString(in) + "\n")
	var out, errs limited
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it has started ends with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a child that keeps the pipe open all the same
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("key command %s %s: no answer within %v: %w", k.argv[0], verb, k.timeout, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("key command %s %s: %w: %s", k.argv[0], verb, err, strings.TrimSpace(errs.String()))
	}
	answer, err := base64.StdEncoding.DecodeString(strings.TrimSpace(out.String()))
	if err != nil || len(answer) == 0 {
		return nil, fmt.Errorf("key command %s %s: its answer is not base64", k.argv[0], verb) // and may be a key: not shown
	}
	return answer, nil
}

// limited keeps the first maxWrapped bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), maxWrapped-l.Len())])
	return len(p), nil
}

type plaintextKey struct{}

// InsecurePlaintext leaves data keys as they are: who reads a head reads everything.
func InsecurePlaintext() KeyWrapper { return plaintextKey{} }

func (plaintextKey) ID() string { return "plaintext" }

func (plaintextKey) Wrap(_ context.Context, key []byte) ([]byte, error) { return key, nil }

func (plaintextKey) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) { return wrapped, nil }
