package config

import (
	"slices"
	"testing"
)

// A shim's listing has what concerns it and its workload, and nothing that only hibernated reads.
func TestShimSettings(t *testing.T) {
	shown := Default().ShimSettings()
	has := func(key string) bool {
		return slices.ContainsFunc(shown, func(s Setting) bool { return s.Key == key })
	}
	for _, key := range []string{"run-dir", "data-dir", "runsc", "mode", "idle-timeout", "wake-timeout"} {
		if !has(key) {
			t.Errorf("%s is missing", key)
		}
	}
	for _, k := range slices.Concat(daemonKeys(), admissionKeys(), storeKeys()) {
		if has(k.Name) {
			t.Errorf("%s is hibernated's", k.Name)
		}
	}
}
