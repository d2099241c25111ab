package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"regexp"
)

// safeName is what containerd allows for a namespace, and what is safe as the
// name of a directory.
var safeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// DirFor returns the directory of a workload below dataDir. With an identity
// it is that of the identity, in whatever container it lives; else that of
// the container id. The scope of both is containerd's namespace; the caller
// puts the pod's namespace into identity.
func DirFor(dataDir, namespace, id, identity string) string {
	kind, name := "id", id
	if identity != "" {
		kind, name = "identity", identity
	}
	// 128 bits: no two workloads of a node ever meet, by accident or intent.
	sum := sha256.Sum256([]byte(kind + "\x00" + namespace + "\x00" + name))
	return filepath.Join(dataDir, namespaceDir(namespace), hex.EncodeToString(sum[:16]))
}

func namespaceDir(namespace string) string {
	if safeName.MatchString(namespace) {
		return namespace
	}
	sum := sha256.Sum256([]byte(namespace))
	return "~" + hex.EncodeToString(sum[:16])
}
