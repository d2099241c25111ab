package runsc

import "strings"

// rule maps text of runsc's messages to a kind. All substrings must occur, and
// the command must be the one named, if one is.
type rule struct {
	kind     error
	command  string
	contains []string
}

// rules are tried in order, the particular before the general: a full disk and
// a damaged image end in the same places. testdata/errors holds captured output
// for each.
var rules = []rule{
	{ErrNoSpace, "", []string{"no space left on device"}},
	{ErrFlag, "", []string{"flag provided but not defined"}},
	{ErrFlag, "", []string{"invalid value", "for flag"}},
	{ErrFlag, "", []string{"unknown platform"}},
	{ErrExists, "", []string{"container already exists"}},
	{ErrExists, "checkpoint", []string{"file exists"}},
	{ErrNotFound, "", []string{"loading container", "file does not exist"}},
	{ErrBundle, "", []string{"reading spec"}},
	{ErrBundle, "", []string{"failed to stat mount"}},

	{ErrNotRunning, "", []string{"cannot ", " in state "}},
	{ErrNotRunning, "", []string{"container ", " not started"}},
	{ErrNotRunning, "", []string{"sandbox is not running"}},
	{ErrNotRunning, "", []string{"connecting to control server", "connection refused"}},
	{ErrNotRunning, "", []string{"no such process with PID"}},
	{ErrNotRunning, "delete", []string{"not stopped without --force"}},
	{ErrFilestore, "delete", []string{"failed to delete filestore file", "no such file or directory"}},

	// The connection to the sentry ends with the sentry. A restore from an
	// image with damaged pages ends so, but so does one that the kernel's
	// OOM killer ended: whether the image is good is for its checksums to say.
	{ErrCrashed, "", []string{"urpc method", "failed: EOF"}},
	{ErrCrashed, "", []string{"urpc method", "connection reset by peer"}},

	{ErrVersion, "restore", []string{"runsc version does not match"}},
	{ErrCPU, "restore", []string{"incompatible FeatureSet"}}, // from gVisor's source: no second host here
	{ErrSpec, "restore", []string{"restore spec validation"}},
	{ErrSpec, "restore", []string{"networking cannot be restored with"}},
	{ErrSpec, "restore", []string{"not found in CtxMemoryFileMap"}},
	{ErrSpec, "restore", []string{"CompleteRestore() failed"}},
	{ErrImage, "restore", []string{"opening state file"}},
	{ErrImage, "restore", []string{"opening pages"}},
	{ErrImage, "restore", []string{"failed to load kernel"}},
}

// classify names the kind of a message, or nil.
func classify(command, message string) error {
	for _, r := range rules {
		if (r.command == "" || r.command == command) && containsAll(message, r.contains) {
			return r.kind
		}
	}
	return nil
}

func containsAll(message string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(message, p) {
			return false
		}
	}
	return true
}
