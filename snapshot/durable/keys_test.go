package durable

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func keyFile(t *testing.T, data []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

// A key file has 32 bytes or their base64, and is its owner's alone.
func TestKeyFile(t *testing.T) {
	raw := bytes.Repeat([]byte{7}, keyLength)
	encoded := []byte(base64.StdEncoding.EncodeToString(raw))
	var ids []string
	for _, data := range [][]byte{raw, encoded, append(bytes.Clone(encoded), '\n'), append(bytes.Clone(encoded), "\r\n"...)} {
		k, err := KeyFile(keyFile(t, data, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, k.ID())
	}
	for _, id := range ids {
		if id != ids[0] || strings.Contains(id, string(encoded)) {
			t.Errorf("ids %q", ids)
		}
	}
	for what, path := range map[string]string{
		"readable by others": keyFile(t, raw, 0o640),
		"too short":          keyFile(t, raw[1:], 0o600),
		"not base64":         keyFile(t, []byte("secret secret secret"), 0o600),
		"a directory":        t.TempDir(),
	} {
		if _, err := KeyFile(path); err == nil {
			t.Errorf("a key file that is %s is taken", what)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows the key: %v", err)
		}
	}
	if _, err := KeyFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNoKey) {
		t.Errorf("a key file that isn't there: %v", err)
	}
	if _, err := New(Config{Store: newWorld(t).bucket.Store()}); !errors.Is(err, ErrNoKey) {
		t.Errorf("a tier without a key: %v", err)
	}
}

func script(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kms")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{"/bin/sh", path, "arg"}
}

// A command wraps and unwraps; one that fails, hangs or talks nonsense is told, and never shown to have said a key.
func TestKeyCommand(t *testing.T) {
	good, err := KeyCommand("kms", script(t, `test "$1" = arg || exit 9
case $2 in wrap) base64 -d | tr '\000-\377' '\001-\377\000' | base64 -w0; echo;;
unwrap) base64 -d | tr '\001-\377\000' '\000-\377' | base64 -w0;; *) exit 8;; esac`), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.key = good
	want := checkpoint(memory(10, 1))
	a := w.owner("a")
	a.commit(t, w.image(1, 1, want))
	w.node("b").has(t, 1, want)

	child := filepath.Join(t.TempDir(), "child")
	for what, c := range map[string]struct {
		script, want string
		timeout      time.Duration
	}{
		"fails":   {"echo no rights >&2; exit 3", "no rights", time.Minute},
		"hangs":   {"sleep 1000 & echo $! >" + child + "; wait", "no answer within", 200 * time.Millisecond},
		"babbles": {"echo '!secret!'", "not base64", time.Minute},
		"silent":  {"", "not base64", time.Minute},
	} {
		k, err := KeyCommand("kms", script(t, c.script), c.timeout)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = k.Unwrap(context.Background(), []byte("wrapped"))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("a command that %s: %v", what, err)
		}
		if c.timeout < time.Second && time.Since(began) > time.Minute {
			t.Errorf("a command that %s was waited for", what)
		}
	}
	text, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) { // somebody has yet to reap it
		if state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatal("what a command that hangs has started runs on")
		}
	}
}

// A wrong key is told, and changes nothing; of the right one the store has nothing in clear.
func TestWrongKey(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	a.commit(t, w.image(1, 1, checkpoint(memory(10, 1))))
	other := w.node("b", func(c *Config) { c.Keys = Keyring{Current: testKey(2)} })
	for what, err := range map[string]error{
		"head":    func() error { _, err := other.Head(t.Context()); return err }(),
		"acquire": func() error { _, err := other.Acquire(t.Context(), Claim{TakeOver: true}); return err }(),
		"open":    func() error { _, err := other.Open(t.Context(), 1, OpenOptions{}); return err }(),
		"collect": func() error { _, err := other.Collect(t.Context(), CollectOptions{}); return err }(),
		"destroy": other.Destroy(t.Context()),
	} {
		if !errors.Is(err, ErrWrongKey) || !strings.Contains(err.Error(), "configure that key") {
			t.Errorf("%s with a wrong key: %v", what, err)
		}
	}
	for _, name := range w.bucket.Names() {
		body := w.bucket.Body(name)
		for _, secret := range []string{"sha256:secret", "spec_digest", "0123456789abcdef0123456789abcdef0123", "pages.img"} {
			if bytes.Contains(body, []byte(secret)) {
				t.Errorf("%s has %q in clear", name, secret)
			}
		}
	}
}

// A rotation rewrites the head alone; afterwards the old key is needed no more.
func TestRotation(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	want := checkpoint(memory(10, 1))
	a.commit(t, w.image(1, 1, want))
	before := map[string]string{}
	for _, n := range w.bucket.Names() {
		before[n] = string(w.bucket.Body(n))
	}
	both := w.node("b", func(c *Config) { c.Keys = Keyring{Current: testKey(2), Older: []KeyWrapper{testKey(1)}} })
	both.has(t, 1, want)
	for range 2 {
		if err := both.Rewrap(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range w.bucket.Names() {
		if same := before[n] == string(w.bucket.Body(n)); same == strings.HasPrefix(n, headsPrefix) {
			t.Errorf("%s: the same as before: %v", n, same)
		}
	}
	w.node("c", func(c *Config) { c.Keys = Keyring{Current: testKey(2)} }).has(t, 1, want)
	if _, err := w.node("d").Head(t.Context()); !errors.Is(err, ErrWrongKey) {
		t.Errorf("with the old key: %v", err)
	}
}

// Once destroyed, nothing can be read with any key; the name may be used again, and its epoch and sequence go on.
func TestDestroyed(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	want := checkpoint(memory(10, 1))
	a.commit(t, w.image(1, 7, want))
	if err := w.node("b").Destroy(t.Context()); !errors.Is(err, ErrOwned) {
		t.Errorf("another node's claim is destroyed: %v", err)
	}
	a.has(t, 7, want)
	old := a.keys
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(w.bucket.Body(headsPrefix+testName), []byte("wrapped")) {
		t.Error("the head still has the key")
	}
	if _, err := a.Open(t.Context(), 7, OpenOptions{}); !errors.Is(err, ErrDestroyed) {
		t.Errorf("open: %v", err)
	}
	if _, err := a.Commit(t.Context(), w.image(1, 8, want), CommitOptions{}); !errors.Is(err, ErrDestroyed) {
		t.Errorf("commit: %v", err)
	}
	w.pass(2 * time.Hour)
	if _, err := a.Collect(t.Context(), CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := append(w.data("p/"), w.data("m/")...); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
	b := w.owner("b")
	h, err := b.Head(t.Context())
	if err != nil || h.Epoch != 3 || h.Next != 8 || h.Lineage == old.lineage.String() {
		t.Errorf("head %+v, %v", h, err)
	}
	b.commit(t, w.image(3, 8, want))
	b.has(t, 8, want)
}

// With InsecurePlaintext everything works, without a secret.
func TestPlaintext(t *testing.T) {
	w := newWorld(t)
	w.key = InsecurePlaintext()
	want := checkpoint(memory(10, 1))
	w.owner("a").commit(t, w.image(1, 1, want))
	w.node("b").has(t, 1, want)
}
