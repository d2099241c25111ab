package stdio

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LastUse is when something was last written to any of the streams, by either
// side: the time of modification that the kernel keeps for FIFOs as for files,
// whoever writes. The zero time without streams.
func (r *Relay) LastUse() time.Time {
	var last time.Time
	for _, f := range r.ends() {
		if info, err := f.Stat(); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// ends are files of the client's FIFOs, one for each stream.
func (r *Relay) ends() []*os.File {
	var all []*os.File
	for _, o := range []*output{r.out, r.err} {
		if f := o.file(); f != nil {
			all = append(all, f)
		}
	}
	if r.in != nil {
		all = append(all, r.in.source.File)
	}
	if r.terminal != nil && r.terminal.in != nil {
		all = append(all, r.terminal.in.File)
	}
	return all
}

// HasInput is true when the process was given a standard input that is no terminal.
func (r *Relay) HasInput() bool { return r.in != nil }

// Unread is true while there is something in the standard input that the process has not read. Of a terminal's it is not known.
func (r *Relay) Unread() bool {
	if !r.HasInput() {
		return false
	}
	n := 0
	conn, err := r.in.sandbox.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return err == nil && n > 0
}
