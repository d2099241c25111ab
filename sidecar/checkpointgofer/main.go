// Checkpointgofer serves a snapshot in the local tier to a sandbox that is being restored. Its name is the one that runsc
// looks for. It speaks a protocol that is internal to gVisor and may change with every version: it is built with the version
// of the runsc that it serves, and tells it with -version.
package main

import (
	"github.com/hibernate-runtime/hibernate/sidecar/gofer"
	"github.com/hibernate-runtime/hibernate/sidecar/pages"
)

func main() {
	gofer.Main(func(directory string) pages.Source { return pages.Directory(directory) })
}
