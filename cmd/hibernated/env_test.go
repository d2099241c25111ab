package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

func TestChildrenGetNoCredentials(t *testing.T) {
	env := []string{"PATH=/bin", "AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b", "NOTIFY_SOCKET=/x"}
	if got := childEnv(env); !slices.Equal(got, []string{"PATH=/bin", "NOTIFY_SOCKET=/x"}) || len(env) != 4 {
		t.Errorf("%q of %q", got, env)
	}
}

// Credentials that others can read are told: nobody else would.
func TestOpenCredentialsAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o640: true, 0o644: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		warnOfOpenCredentials(&config.Config{StoreCredentials: path}, slog.New(slog.NewTextHandler(&said, nil)))
		if got := strings.Contains(said.String(), "can be read by others"); got != want {
			t.Errorf("mode %o: %s", mode, said.String())
		}
	}
	for _, word := range []string{"", "env", "aws", path + ".none"} {
		var said bytes.Buffer
		if warnOfOpenCredentials(&config.Config{StoreCredentials: word}, slog.New(slog.NewTextHandler(&said, nil))); said.Len() > 0 {
			t.Errorf("%q: %s", word, said.String())
		}
	}
}
