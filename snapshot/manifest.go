package snapshot

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"
)

// ManifestVersion is the newest version of manifest.json that this package
// writes.
const ManifestVersion = 1

// ChunkSize is the length in bytes of what one checksum covers; the last
// chunk of a file may be shorter.
const ChunkSize = 1 << 20

const (
	manifestFile   = "manifest.json"
	manifestFormat = "hibernate.manifest"
)

// Manifest says what a snapshot is, what made it and what may wake it. It
// never changes after the commit. docs/FORMAT.md describes each field.
//
// It holds the containers' specs, which hold secrets: it is kept 0600 and
// must not be logged.
type Manifest struct {
	// Set by Commit; whatever the caller put there is overwritten.
	Version  int       `json:"-"`
	Sequence uint64    `json:"sequence"`
	Parent   uint64    `json:"parent,omitempty"` // sequence before it; 0: first
	Created  time.Time `json:"created"`          // UTC
	Files    []File    `json:"files"`            // ordered by name

	// Who it is.
	Namespace string `json:"namespace"`
	ID        string `json:"id"` // of the workload: the pod's sandbox, or the container
	Identity  string `json:"identity,omitempty"`
	Epoch     uint64 `json:"epoch"`
	Lineage   string `json:"lineage,omitempty"` // the head's; set by Commit

	// What made it, and so what can read it.
	Runtime Runtime `json:"runtime"`
	Host    Host    `json:"host"`

	// What it runs, in order of creation.
	SpecDigest string      `json:"spec_digest"` // SpecDigest over all containers, see SpecsDigest
	Containers []Container `json:"containers"`

	// How it is reached. Attachment is package network's.
	Attachment json.RawMessage `json:"attachment,omitempty"`
	Ports      []uint16        `json:"ports,omitempty"`      // listening when it was put to sleep
	Only4      []uint16        `json:"ports_ipv4,omitempty"` // those of Ports that took no IPv6

	// Template: other workloads may begin from it.
	Template bool `json:"template,omitempty"`
	// Origin is where it is a copy from, while the workload has not run by itself yet.
	Origin *Origin `json:"origin,omitempty"`

	// Touched is what a wake asked for first. A hint: FirstTouched is what of it may be used.
	Touched Touched `json:"touched,omitempty"`

	// What was remembered beside the checkpoint, for whoever wrote it.
	Notes map[string]json.RawMessage `json:"notes,omitempty"`

	// Durable is where the content is in the durable tier. Reserved.
	Durable *Durable `json:"durable,omitempty"`
}

// Runtime is the runsc that wrote the checkpoint.
type Runtime struct {
	Version     string            `json:"version"` // as `runsc --version` says; equal at restore
	SHA256      string            `json:"sha256"`  // of the binary, hex
	Sidecars    map[string]string `json:"sidecars,omitempty"`
	Flags       []string          `json:"flags"` // global flags, in order
	Platform    string            `json:"platform"`
	CPUFeatures []string          `json:"cpu_features"` // as seen by the sandbox; a subset of the host's at restore
	CacheLine   int               `json:"cache_line,omitempty"`
	PageSize    int               `json:"page_size"`
}

// Host is what gVisor does not check, kept to explain a failure.
type Host struct {
	Node         string            `json:"node"`
	BootID       string            `json:"boot_id,omitempty"`
	Kernel       string            `json:"kernel"` // uname -r
	Architecture string            `json:"architecture"`
	CPUModel     string            `json:"cpu_model,omitempty"`
	THP          string            `json:"thp,omitempty"` // /sys/kernel/mm/transparent_hugepage/shmem_enabled
	MTU          int               `json:"mtu,omitempty"`
	Facts        map[string]string `json:"facts,omitempty"`
}

// Container is one container of the workload.
type Container struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"` // the name gVisor knows it by
	Spec        json.RawMessage `json:"spec"` // frozen at first create, replayed at restore
	SpecDigest  string          `json:"spec_digest"`
	Image       string          `json:"image,omitempty"`
	ImageDigest string          `json:"image_digest,omitempty"`
	RootfsKey   string          `json:"rootfs_key,omitempty"` // snapshotter's key of the lower files
	Volumes     []Volume        `json:"volumes,omitempty"`    // outside mounts, in the specification's order
}

// Volume is a mount whose files are not in the checkpoint, and what was seen of them while the sandbox was paused.
type Volume struct {
	Destination string `json:"destination"`
	Source      string `json:"source"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Print
}

// Print is a fingerprint of files; package volume makes it.
type Print struct {
	FileSystem string    `json:"file_system"` // its type and id, as statfs has them
	Entries    int       `json:"entries"`     // files and directories below the source, or 1 for a file; those that were looked at
	More       bool      `json:"more,omitempty"`
	Newest     time.Time `json:"newest,omitzero"` // the latest change of a file or its inode
	Digest     string    `json:"digest"`          // SHA-256 over what was looked at
}

// Same says whether nothing was seen to change.
func (p Print) Same(o Print) bool { return p.Digest == o.Digest && p.Entries == o.Entries }

// Empty says that there is no file that memory could know of.
func (p Print) Empty() bool { return p.Entries == 0 && !p.More }

// File is one file of the checkpoint.
type File struct {
	Name   string   `json:"name"` // base name inside image/
	Size   int64    `json:"size"` // bytes
	CRC32C []uint32 `json:"crc32c"`
	SHA256 string   `json:"sha256,omitempty"` // hex; filled for the durable tier only
}

func (f File) chunks() int { return int((f.Size + ChunkSize - 1) / ChunkSize) }

// Durable is reserved for the durable tier: packs of frames of pages, and
// which run of pages is where.
type Durable struct {
	Packs   []Pack            `json:"packs,omitempty"`
	Extents []Extent          `json:"extents,omitempty"`
	Roots   map[string]string `json:"roots,omitempty"` // file → SHA-256 over its list of page hashes
	Bytes   uint64            `json:"bytes,omitempty"` // to fetch for a restore
}

// Pack is one object of the durable tier.
type Pack struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // of the object as stored
	Frames []int  `json:"frames"` // stored length of each
}

// Extent maps pages of a file to a place in a pack.
type Extent struct {
	File  string `json:"file"`
	Page  uint64 `json:"page"`
	Count uint64 `json:"count"`
	Pack  int    `json:"pack"`
	Frame int    `json:"frame"`
	Slot  int    `json:"slot"`
}

func parseManifest(data []byte) (Manifest, error) {
	var m Manifest
	if err := decodeDocument(data, manifestFile, manifestFormat, ManifestVersion, &m); err != nil {
		return Manifest{}, err
	}
	return checkManifest(m)
}

func readManifest(dir string) (Manifest, error) {
	var m Manifest
	err := readDocument(filepath.Join(dir, manifestFile), manifestFile, manifestFormat, ManifestVersion, &m)
	if err == nil {
		m, err = checkManifest(m)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

func checkManifest(m Manifest) (Manifest, error) {
	if m.Sequence == 0 {
		return Manifest{}, corrupt(manifestFile, "no sequence")
	}
	if len(m.Files) == 0 {
		return Manifest{}, corrupt(manifestFile, "no files")
	}
	for i, f := range m.Files {
		switch {
		case f.Name == "" || f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == "..":
			return Manifest{}, corrupt(manifestFile, "file name %q", f.Name)
		case i > 0 && f.Name <= m.Files[i-1].Name:
			return Manifest{}, corrupt(manifestFile, "files not ordered at %q", f.Name)
		case f.Size < 0 || f.Size > 1<<50:
			return Manifest{}, corrupt(manifestFile, "size of %q is %d", f.Name, f.Size)
		case len(f.CRC32C) != f.chunks():
			return Manifest{}, corrupt(manifestFile, "%q has %d checksums, want %d", f.Name, len(f.CRC32C), f.chunks())
		}
	}
	m.Version = ManifestVersion
	return m, nil
}
