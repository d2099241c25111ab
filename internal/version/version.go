// Package version holds the version that the programs of this repository were built as.
package version

// Version is set by the linker: -X github.com/hibernate-runtime/hibernate/internal/version.Version=v1.2.3.
var Version = "unknown"
