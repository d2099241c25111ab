// Package roottest holds the tests of package snapshot that need root: they
// take checkpoints with the real runsc and fill file systems. It has no code
// of its own, so that the other tests stay in the ring without root.
package roottest
