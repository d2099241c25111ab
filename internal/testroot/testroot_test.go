package testroot

import "testing"

type recorder struct{ skipped, failed bool }

func (r *recorder) Helper()      {}
func (r *recorder) Skip(...any)  { r.skipped = true }
func (r *recorder) Fatal(...any) { r.failed = true }

func TestRequire(t *testing.T) {
	for _, tc := range []struct {
		name   string
		uid    int
		wanted string
		want   recorder
	}{
		{"root runs", 0, "", recorder{}},
		{"root runs where required", 0, "1", recorder{}},
		{"user skips", 1000, "", recorder{skipped: true}},
		{"user skips when not required", 1000, "0", recorder{skipped: true}},
		{"user fails where required", 1000, "1", recorder{failed: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got recorder
			require(&got, tc.uid, tc.wanted)
			if got != tc.want {
				t.Errorf("require(uid %d, %q) = %+v, want %+v", tc.uid, tc.wanted, got, tc.want)
			}
		})
	}
}
