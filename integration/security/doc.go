// Package security tests what docs/SECURITY.md says of hibernated: whom its sockets answer, and whom its files are for.
package security
