// Package testroot marks the tests that need root.
//
// Such a test is skipped for an ordinary user, so that `go test ./...` works for everyone. Where it is meant to run (as
// root, or with HIBERNATE_REQUIRE_ROOT=1 in the environment, as the Makefile's root targets set) a skip would hide a
// hole in the coverage, so there it runs or fails.
//
//	func TestLink(t *testing.T) {
//		testroot.Require(t)
//		…
//	}
package testroot

import "os"

// EnvRequire is the environment variable that turns the skip into a failure when it is "1".
const EnvRequire = "HIBERNATE_REQUIRE_ROOT"

// TB is the part of testing.TB that Require needs.
type TB interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Require returns when the test runs as root. Otherwise it skips the test, or fails it when EnvRequire is "1".
func Require(t TB) {
	t.Helper()
	require(t, os.Geteuid(), os.Getenv(EnvRequire))
}

func require(t TB, uid int, wanted string) {
	t.Helper()
	switch {
	case uid == 0:
	case wanted == "1":
		t.Fatal("this test needs root, and " + EnvRequire + "=1 forbids skipping it")
	default:
		t.Skip("needs root")
	}
}
