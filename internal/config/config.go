// Package config is the configuration of the shim and of the node daemon.
//
// A key has a name, a type, a default and a scope; all of them stand in one table (keys.go), from which
// docs/CONFIGURATION.md is made. Values come in layers, and a later layer replaces single keys of the earlier ones:
//
//	default < file < match rules, in order < runtime options < annotations
//
// A Config holds the effective values, typed, and for each of them the layer that set it (Settings). The shim saves it
// in the bundle (Save), because containerd's `delete` action has nothing but the bundle (Read).
//
//	cfg, err := config.Load(config.Input{
//		File:        config.DefaultFile,
//		Match:       config.Match{Namespace: "default", Image: "docker.io/library/redis:8"},
//		Annotations: spec.Annotations,
//	})
package config

import (
	"log/slog"
	"path/filepath"
	"slices"
	"time"
)

const (
	// DefaultFile is read when no other file is named. It need not exist.
	DefaultFile = "/etc/hibernate/config.toml"
	// AnnotationPrefix comes before a key's name in an OCI annotation.
	AnnotationPrefix = "io.containerd.hibernate/"
)

// Mode says what the idle policy may do with a workload.
type Mode string

// The modes, from the least to the most that a node lets happen.
const (
	ModeOff     Mode = "off"     // plain runsc in the pod's namespace; never sleeps
	ModeObserve Mode = "observe" // only says what it would do
	ModeManual  Mode = "manual"  // sleeps when asked to
	ModeAuto    Mode = "auto"    // sleeps when idle
)

// RestorePolicy says what follows when no snapshot can be restored.
type RestorePolicy string

// The restore policies.
const (
	RestoreCold  RestorePolicy = "cold"  // start from the image, keep the snapshot
	RestoreBlock RestorePolicy = "block" // keep the snapshot and wait for a person
)

// StandbyPolicy says when a sleeper's next sandbox is booted while it sleeps.
type StandbyPolicy string

// The policies for standbys.
const (
	StandbyOff   StandbyPolicy = "off"
	StandbyOften StandbyPolicy = "often" // for workloads that have been woken three times within an hour
	StandbyOn    StandbyPolicy = "on"
)

// StopPolicy says what SIGTERM does.
type StopPolicy string

// The stop policies.
const (
	StopSignal StopPolicy = "signal" // deliver the signal, waking a sleeper
	StopExit   StopPolicy = "exit"   // end a sleeper with status 143, without a wake
	// StopHibernate puts it to sleep, awake or not, and ends the task with status 0. The snapshot stays.
	StopHibernate StopPolicy = "hibernate"
)

// FastPath says whether packets may pass the stack of the pod's namespace.
type FastPath string

// The fast paths.
const (
	FastPathAuto FastPath = "auto" // where the kernel has it, and nobody else's rules are in the way
	FastPathOff  FastPath = "off"
)

// LoadWay says how a sleeper's memory comes back.
type LoadWay string

// The ways to load.
const (
	LoadFlat  LoadWay = "flat"  // while the sandbox runs, through the sidecar
	LoadPlain LoadWay = "plain" // before it runs, from plain files
)

// Fencing says what a store that is away means for workloads with an identity.
type Fencing string

// The ways to fence.
const (
	FencingStrict  Fencing = "strict"  // they sleep
	FencingRelaxed Fencing = "relaxed" // they go on
)

// VerifyWhen says when the checksums of a snapshot are compared.
type VerifyWhen string

// The times to verify.
const (
	VerifyWhile  VerifyWhen = "while"  // as its bytes are loaded
	VerifyBefore VerifyWhen = "before" // before any is loaded
)

// Refusal is the answer to a client whose workload can't be woken.
type Refusal string

// The refusals.
const (
	RefuseHTTP  Refusal = "http"  // 503 to what is an HTTP/1 request, a reset to all else
	RefuseReset Refusal = "reset" // a reset
)

// LogFormat is the form of hibernated's log.
type LogFormat string

// The log formats.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// Config is the effective configuration of one workload, or of the node. The table in keys.go documents each field.
type Config struct {
	RunDir, DataDir string

	Runsc, Helper, Platform string
	RunscDir, Sidecar       string
	CPUFeatures             []string // nil: all of the node's
	Load                    LoadWay
	FlatFrom                uint64
	Verify                  VerifyWhen
	RunscFlags              []string
	RunscTimeout            time.Duration
	AllowNetAdmin           bool
	FastPath                FastPath
	MinFreeDisk             uint64 // bytes

	Identity         string // without the pod's namespace; "": none
	Restore          RestoreWhat
	Template         bool // others may begin from its snapshots
	Pool             int  // children of it that stand ready
	ForkFreezeMax    time.Duration
	Mode             Mode
	IdleTimeout      time.Duration
	MinAwake         time.Duration
	Ports            []uint16 // nil: found at hibernation; empty: none
	OnRestoreFailure RestorePolicy
	OnStop           StopPolicy
	RestoreOlder     bool
	KeepSnapshots    int           // in the store
	DeleteAfter      time.Duration // 0: never
	Standby          StandbyPolicy
	WakeTimeout      time.Duration
	ExecIdleTimeout  time.Duration // 0: an exec counts however silent it is
	HoldTimeout      time.Duration
	MaxBacklog       int    // connections on a port
	MaxHeldBytes     uint64 // on a port
	MaxConnections   int    // through hibernated at once
	Ignore           []Filter
	Probes           []Probe
	ProbeExec        []string

	HookBeforeSleep, HookAfterWake []string // nil: none
	HookTimeout                    time.Duration
	HookFailure                    HookPolicy
	OnVolumeChange                 VolumePolicy
	AllowStaleVolumes              bool

	MetricsAddress  string // "": not served
	LogLevel        slog.Level
	LogFormat       LogFormat
	MaxHibernations int // at a time; 0: one for each core
	PollInterval    time.Duration
	IdleTimeoutMax  time.Duration
	CPUThreshold    int // percent of one core
	CPUWindow       time.Duration
	OrphanHold      time.Duration // 0: not at all
	CollectAfter    time.Duration // 0: never
	DrainTimeout    time.Duration // 0: the daemon's own grace

	MaxWakes           int // at a time; 0: one for each core, at least two
	MaxWakeQueue       int
	MinFreeMemory      uint64 // bytes
	MaxNodeConnections int
	RefuseWith         Refusal

	Store                     string // URL; "": no durable tier
	StoreKeyFile              string
	StoreKeyCommand           []string
	StoreInsecurePlaintext    bool
	StoreCredentials, StoreCA string
	StoreOlderKeys            []string
	UploadRate                uint64 // bytes in a second; 0: no bound
	StoreQuota                uint64 // bytes of a workload; 0: no bound
	NodeName                  string // "": the host's
	Fencing                   Fencing
	TakeoverAfter             time.Duration
	PeerAddress               string // "": off
	PeerAdvertise             string // "": PeerAddress

	sources map[string]string
}

// Setting is one effective value, as text, and the layer that it comes from: default, file, match[n] (counted from
// 1), options or annotation.
type Setting struct {
	Key, Value, Source string
}

// Settings returns all effective values, in the table's order.
func (c *Config) Settings() []Setting {
	var out []Setting
	for _, k := range Keys() {
		out = append(out, Setting{k.Name, display(k.get(c)), c.Source(k.Name)})
	}
	return out
}

// ShimSettings are those that mean something to a shim, or to its workload.
func (c *Config) ShimSettings() []Setting {
	others := slices.Concat(daemonKeys(), admissionKeys(), storeKeys())
	return slices.DeleteFunc(c.Settings(), func(s Setting) bool {
		return slices.ContainsFunc(others, func(k Key) bool { return k.Name == s.Key })
	})
}

// Source returns the layer that the key's value comes from.
func (c *Config) Source(key string) string {
	if s, ok := c.sources[key]; ok {
		return s
	}
	return SourceDefault
}

// RunscRoot is runsc's --root.
func (c *Config) RunscRoot() string { return filepath.Join(c.RunDir, "runsc") }

// NetnsDir holds the inner network namespaces, as <namespace>/<id>.
func (c *Config) NetnsDir() string { return filepath.Join(c.RunDir, "netns") }

// ShimsDir holds the shims' records, as <namespace>/<id>.json.
func (c *Config) ShimsDir() string { return filepath.Join(c.RunDir, "shims") }

// RegistrationSocket is where the daemon takes the shims' listeners.
func (c *Config) RegistrationSocket() string { return filepath.Join(c.RunDir, "hibernated.sock") }

// APISocket is where the daemon serves its ttrpc API.
func (c *Config) APISocket() string { return filepath.Join(c.RunDir, "api.sock") }
