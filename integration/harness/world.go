package harness

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Options of a world. The zero value is containerd alone, with the programs' default settings.
type Options struct {
	// Daemon starts the daemon, too.
	Daemon bool
	// Bare leaves containerd and CNI out: the test plays containerd. Containerd can be started later.
	Bare bool
	// Published says that ports of the node will be published by CNI: the chains that all such ports share are made
	// beforehand, as the others are.
	Published bool
	// CRI has containerd serve CRI, too, with the runtime under test as the handler "hibernate", which is the default.
	CRI bool
	// Pause is the image that CRI runs as each pod's sandbox: pause, or a program that a test wants there.
	Pause string
	// PodAnnotations are patterns of annotations that CRI passes on, besides those of hibernate.
	PodAnnotations []string
	// Settings are keys of the hibernate configuration, in TOML's form on the right: {"idle-timeout": `"2s"`}. They come
	// after the world's own run-dir, data-dir and runsc, and replace them.
	Settings map[string]string
	// Namespace is containerd's, for worlds that stand for nodes of one cluster; empty: the world's own.
	Namespace string
	// Env is added to containerd's and the daemon's environment, and so to the shims'.
	Env []string
	// Log, when set, is told what the world does, a line at a time.
	Log func(format string, args ...any)
}

// A World is one private node. Its methods may be called from several goroutines.
type World struct {
	// Name is unique on the machine.
	Name string
	// Namespace is containerd's: the name, unless Options gave another one.
	Namespace string
	// Dir holds the world's files; it is the same path inside and outside.
	Dir string
	// Containerd and Daemon can be stopped, killed and started again. Daemon is there even if Options didn't start it.
	Containerd, Daemon *Program

	root    string // of the repository
	options Options
	anchor  *anchor
	subnets subnets

	starting sync.RWMutex // held, not alone, by who starts a program

	mu   sync.Mutex
	pods int // that were ever made; numbers their addresses
}

// Start makes a world. The error says what is missing; nothing is left behind then. Without a deadline in ctx, each step
// has its own.
func Start(ctx context.Context, o Options) (_ *World, err error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if err := checkTools(root); err != nil {
		return nil, err
	}
	w := &World{Name: uniqueName(), root: root, options: o, subnets: randomSubnets()}
	w.Namespace = cmp.Or(o.Namespace, w.Name)
	if w.Dir, err = os.MkdirTemp("", w.Name+"-"); err != nil {
		return nil, err
	}
	if w.anchor, err = startAnchor(ctx, w); err != nil {
		return nil, errors.Join(fmt.Errorf("namespaces: %w", err), os.RemoveAll(w.Dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if err := w.configure(); err != nil {
		return nil, err
	}
	if err := w.startContainerd(ctx); err != nil {
		return nil, err
	}
	if o.Daemon {
		if err := w.Daemon.Start(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *World) startContainerd(ctx context.Context) error {
	if w.options.Bare {
		return nil
	}
	if err := w.warmNetwork(ctx); err != nil {
		return fmt.Errorf("CNI: %w", err)
	}
	return w.Containerd.Start(ctx)
}

// Close ends every program of the world and removes the world. Programs are not asked first: see RemoveAll and
// Program.Stop for that. It is safe to call twice.
func (w *World) Close() error {
	for _, p := range []*Program{w.Daemon, w.Containerd} {
		if p != nil {
			p.Kill()
		}
	}
	return w.anchor.close()
}

// Path is where the test process finds a file that the world's programs know by path.
func (w *World) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", w.anchor.pid()), path)
}

// RunDir and DataDir are the roots that the world's configuration names.
func (w *World) RunDir() string  { return filepath.Join(w.Dir, "run") }
func (w *World) DataDir() string { return filepath.Join(w.Dir, "data") }

// ConfigFile is the hibernate configuration that shims and daemon use.
func (w *World) ConfigFile() string { return filepath.Join(w.Dir, "config.toml") }

func (w *World) logf(format string, args ...any) {
	if w.options.Log != nil {
		w.options.Log(format, args...)
	}
}

// uniqueName is short, since unix socket paths below it may have 107 bytes.
func uniqueName() string {
	var b [4]byte
	rand.Read(b[:])
	return fmt.Sprintf("hib%x", b)
}
