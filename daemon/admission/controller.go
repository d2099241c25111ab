package admission

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Meter counts. Its methods must be quick.
type Meter interface {
	// WakeWaited tells how long a granted ticket has waited; WakeRefused why one was not granted.
	WakeWaited(time.Duration)
	WakeRefused(reason string)
}

// Room knows what is awake.
type Room interface {
	// Evictable is how much memory those take that may sleep by themselves.
	Evictable() uint64
	// MakeRoom has those hibernate that are idle longest, until they give back so many bytes or no more can, and returns when
	// that has ended.
	MakeRoom(ctx context.Context, bytes uint64)
}

// Options of a Controller. Meter is required.
type Options struct {
	Limits
	// Available is the memory that can be taken without another's loss; nil, or an error, for nobody knows.
	Available func() (uint64, error)
	// Room is made through; nil for not at all.
	Room Room
	// Closed tells why no wake begins at the moment, in words that end "waits for …"; "" when they do. What waits goes on waiting. nil: never.
	Closed func() string
	Meter  Meter
	Now    func() time.Time // default: time.Now
	Log    *slog.Logger
}

// The pauses between two looks while somebody waits: at the clock and the memory.
const lookEvery = 100 * time.Millisecond

// noticeable is a wait that the log tells.
const noticeable = time.Second

// Controller admits wakes. Safe for concurrent use.
type Controller struct {
	opts Options
	kick chan struct{} // has room for one

	mu      sync.Mutex
	core    *core  // guarded by mu
	lack    uint64 // guarded by mu; memory that is wanting for the first that waits for it
	unknown bool   // guarded by mu; that nobody knows the memory was told
	closed  string // guarded by mu; what Closed told last
}

// New returns a controller. Until Run runs, tickets are settled only by what happens, and no room is made.
func New(o Options) *Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Controller{opts: o, kick: make(chan struct{}, 1), core: newCore(o.Limits)}
}

// Admit waits for a workload's turn to wake. The wake counts until release is called and the shim has told its end. The error
// is a *Refusal, or the cause of ctx.
func (c *Controller) Admit(ctx context.Context, key node.Key, need uint64) (release func(), err error) {
	c.mu.Lock()
	t := c.core.enter(c.opts.Now(), key, need)
	c.settle()
	c.mu.Unlock()
	select {
	case <-t.settled:
	case <-ctx.Done():
		c.leave(t)
		return nil, fmt.Errorf("%w (it waited to wake for %s)", context.Cause(ctx), c.waitsFor(t))
	}
	log := c.opts.Log.With("namespace", key.Namespace, "id", key.ID)
	if t.refusal != nil {
		c.opts.Meter.WakeRefused(t.refusal.Reason)
		log.Warn("a wake is refused", "reason", t.refusal.Reason, "detail", t.refusal.Detail, "need", need, "retry_after", t.refusal.After.String())
		return nil, t.refusal
	}
	c.opts.Meter.WakeWaited(t.waited)
	if t.waited >= noticeable {
		log.Info("its turn to wake", "waited_ms", t.waited.Milliseconds())
	}
	return sync.OnceFunc(func() { c.leave(t) }), nil
}

func (c *Controller) leave(t *ticket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.leave(t)
	c.settle()
}

// Changed takes what a shim says of its workload: its state, and what it needs when that is waking.
func (c *Controller) Changed(key node.Key, state string, need uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.state(c.opts.Now(), key, state, need)
	c.settle()
}

// Gone forgets a workload that has left the node.
func (c *Controller) Gone(key node.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.gone(key)
	c.settle()
}

// Run looks at the clock and the memory while somebody waits, and makes room, until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	var room sync.WaitGroup
	defer room.Wait()
	free := make(chan struct{}, 1) // no room is being made
	free <- struct{}{}
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		timer.Stop()
		if waiting, lack := c.look(); waiting {
			timer.Reset(lookEvery)
			c.makeRoom(ctx, &room, free, lack)
		}
		select {
		case <-c.kick:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// look settles, and tells whether somebody still waits.
func (c *Controller) look() (waiting bool, lack uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step()
	return c.core.waiting > 0, c.lack
}

func (c *Controller) makeRoom(ctx context.Context, room *sync.WaitGroup, free chan struct{}, lack uint64) {
	if lack == 0 || c.opts.Room == nil {
		return
	}
	select {
	case <-free:
		room.Go(func() {
			c.opts.Room.MakeRoom(ctx, lack)
			free <- struct{}{}
		})
	default:
	}
}

// settle does what can be done now, and has Run look where somebody still waits. c.mu is held.
func (c *Controller) settle() {
	c.step()
	if c.core.waiting > 0 {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// step does what can be done now. c.mu is held.
func (c *Controller) step() {
	c.closed = ""
	if c.core.waiting > 0 && c.opts.Closed != nil {
		c.closed = c.opts.Closed()
	}
	if c.closed != "" {
		c.core.join(c.opts.Now()) // a wake that is under way by request is everybody's
		c.lack = 0
		return
	}
	_, c.lack = c.core.step(c.opts.Now(), c.memory)
}

// memory is what the node has. c.mu is held.
func (c *Controller) memory() memory {
	if c.opts.Available == nil {
		return memory{}
	}
	available, err := c.opts.Available()
	if err != nil {
		if !c.unknown {
			c.opts.Log.Warn("wakes are admitted without a look at the node's memory", "error", err)
		}
		c.unknown = true
		return memory{}
	}
	c.unknown = false
	return memory{known: true, available: available, evictable: func() uint64 {
		if c.opts.Room == nil {
			return 0
		}
		return c.opts.Room.Evictable()
	}}
}
