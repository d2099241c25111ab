package runsc

import (
	"cmp"
	"sync"
	"time"
)

// Client runs one runsc binary, which Use may replace, against one root directory. Fields are set
// before the first call and not changed after; methods may be called from many
// goroutines. The zero values of Runner and Timeouts are usable.
type Client struct {
	Path  string   // the binary: a path, or a name looked up in PATH
	Root  string   // runsc's --root
	Flags []string // further global flags, in order; recorded in the manifest

	// LogDir receives one small file for each running call, removed when the
	// call succeeds and kept when it fails. "" means the temporary directory.
	// A tmpfs is best: it is on the wake's path.
	LogDir string
	// CacheDir, when set, keeps facts about the binary between processes.
	CacheDir string

	Runner   Runner
	Timeouts Timeouts

	binary binaryCache

	mu    sync.Mutex // guards the fields below
	path  string     // set by Use; "": Path
	execs map[execKey]*execution
}

// Use has all later calls run another binary, a path. There is no sandbox meanwhile, or it is of that very binary.
func (c *Client) Use(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.path = path
}

// Binary is what calls run: Path, or what Use has named.
func (c *Client) Binary() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.path, c.Path)
}

// Timeouts bound each call, beside the caller's context. Zero means the
// default of the field.
type Timeouts struct {
	Create     time.Duration // create: 30 s
	Start      time.Duration // start: 30 s
	Restore    time.Duration // restore, with the load of its memory: 2 min
	Checkpoint time.Duration // checkpoint, tar: 5 min
	Delete     time.Duration // delete: 30 s
	Control    time.Duration // pause, resume, kill, state, ps: 10 s
	Exec       time.Duration // exec, until the process runs: 15 s
	Output     time.Duration // Output, until the process has ended: 15 s
	Query      time.Duration // version, cpu-features: 10 s

	Most time.Duration // bounds all of them: none
}

func (t Timeouts) bound(set, def time.Duration) time.Duration {
	if set > 0 {
		def = set
	}
	if t.Most > 0 {
		def = min(def, t.Most)
	}
	return def
}

func (t Timeouts) create() time.Duration     { return t.bound(t.Create, 30*time.Second) }
func (t Timeouts) start() time.Duration      { return t.bound(t.Start, 30*time.Second) }
func (t Timeouts) restore() time.Duration    { return t.bound(t.Restore, 2*time.Minute) }
func (t Timeouts) checkpoint() time.Duration { return t.bound(t.Checkpoint, 5*time.Minute) }
func (t Timeouts) delete() time.Duration     { return t.bound(t.Delete, 30*time.Second) }
func (t Timeouts) control() time.Duration    { return t.bound(t.Control, 10*time.Second) }
func (t Timeouts) exec() time.Duration       { return t.bound(t.Exec, 15*time.Second) }
func (t Timeouts) output() time.Duration     { return t.bound(t.Output, 15*time.Second) }
func (t Timeouts) query() time.Duration      { return t.bound(t.Query, 10*time.Second) }

// DefaultFlags are the global flags that a sandbox which is to survive its
// checkpoint needs. A restore is refused, or loses state, when most of them
// differ from those of the checkpoint: they belong in the manifest.
//
//   - allow-connected-on-save keeps TCP connections in the image of a sandbox
//     that is left running, and in every later generation of it.
//   - overlay2=root:self puts what the container writes into the image.
//   - host-uds=none: a bound host socket makes the save fail.
func DefaultFlags(platform string) []string {
	return []string{
		"--platform=" + platform,
		"--network=sandbox",
		"--overlay2=root:self",
		"--directfs=true",
		"--file-access=exclusive",
		"--file-access-mounts=shared",
		"--host-uds=none",
		"--host-fifo=none",
		"--allow-connected-on-save=true",
		"--restore-spec-validation=enforce",
	}
}
