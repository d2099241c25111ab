package main

import "syscall"

const (
	// hookSays is how much of a hook's output is kept: its end.
	hookSays = 2 << 10
	// hookTries bounds how often what a hook has started is looked for. Each look ends all that it finds.
	hookTries = 200

	setChildSubreaper = 36 // prctl's
)

// hook runs a command, with what it says kept, until it has ended by itself or
// standard input has, and then ends all that it has started and left. Then the
// end of what the command and the others said is written to standard output. The
// status is the command's, 128 and the signal's number when a signal ended it,
// and 127 when it can't be run. Whoever started this is told by the end of
// standard input that it has to go, and has to do no more than to die for that.
func hook(argv []string) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
	if errno != 0 {
		fail("adopt what the hook leaves: " + errno.Error())
	}
	var says [2]int
	if err := syscall.Pipe2(says[:], syscall.O_CLOEXEC); err != nil {
		fail("pipe: " + err.Error())
	}
	pid, err := spawn(argv, says[1])
	_ = syscall.Close(says[1])
	if err != nil {
		_ = writeAll(1, []byte(argv[0]+": "+err.Error()))
		syscall.Exit(127)
	}
	said := make(chan []byte)
	go func() { said <- lastOf(says[0]) }()
	go func() {
		awaitEnd(0)
		killAll(pid)
	}()
	status := await(pid)
	killAll(pid)
	collect()
	_ = writeAll(1, <-said)
	syscall.Exit(status)
}

// spawn starts the command in a session of its own; its output goes to a pipe.
func spawn(argv []string, output int) (pid int, err error) {
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{
		Env: syscall.Environ(), Files: []uintptr{uintptr(null), uintptr(output), uintptr(output)}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	err = syscall.ENOENT
	for _, path := range candidates(argv[0]) {
		var e error
		if pid, e = syscall.ForkExec(path, argv, attr); e == nil {
			return pid, nil
		}
		if e != syscall.ENOENT && e != syscall.ENOTDIR { // found, and it can't be run
			err = e
		}
	}
	return 0, err
}

// candidates are the files that a command's name may mean.
func candidates(name string) (all []string) {
	for i := range len(name) {
		if name[i] == '/' {
			return []string{name}
		}
	}
	path, ok := syscall.Getenv("PATH")
	if !ok {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for rest := []byte(path); len(rest) > 0; {
		var dir []byte
		if dir, rest = cut(rest, ':'); len(dir) > 0 {
			all = append(all, string(dir)+"/"+name)
		}
	}
	return all
}

// lastOf reads to the end, and returns the last hookSays bytes.
func lastOf(fd int) []byte {
	var kept []byte
	buf := make([]byte, 4<<10)
	for {
		n, err := syscall.Read(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return kept
		}
		kept = append(kept, buf[:n]...)
		if more := len(kept) - hookSays; more > 0 {
			kept = append(kept[:0], kept[more:]...)
		}
	}
}

// awaitEnd reads until there is nothing any more.
func awaitEnd(fd int) {
	buf := make([]byte, 16)
	for {
		n, err := syscall.Read(fd, buf)
		if err != syscall.EINTR && (err != nil || n == 0) {
			return
		}
	}
}

// await waits for the command and returns its status as a shell would have it.
// On the way it collects whatever else has ended.
func await(pid int) int {
	var s syscall.WaitStatus
	for {
		ended, err := syscall.Wait4(-1, &s, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 1
		case ended != pid:
		case s.Signaled():
			return 128 + int(s.Signal())
		case s.Exited():
			return s.ExitStatus()
		}
	}
}

// killAll kills the command and all that it has started, until nobody is left.
// What has lost its parent is this process's child by then, so nobody gets away.
func killAll(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	for range hookTries {
		found := descendants()
		for _, p := range found {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
		if len(found) == 0 {
			return
		}
		pause()
	}
}

// collect leaves no child behind for others to collect: not every container's
// first process does.
func collect() {
	for {
		ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != syscall.EINTR && (err != nil || ended <= 0) {
			return
		}
	}
}

func pause() {
	t := syscall.Timespec{Nsec: 5e6}
	_ = syscall.Nanosleep(&t, nil)
}

// descendants are all processes below this one that have not ended, by /proc.
func descendants() (all []int) {
	parents := parentsOf(pids())
	self := syscall.Getpid()
	for pid := range parents {
		for p, steps := pid, 0; p != 0 && steps <= len(parents); p, steps = parents[p], steps+1 {
			if parents[p] == self {
				all = append(all, pid)
				break
			}
		}
	}
	return all
}

func parentsOf(pids []int) map[int]int {
	parents := make(map[int]int, len(pids))
	for _, p := range pids {
		data, errno := readFile("/proc/" + string(appendDecimal(nil, uint64(p))) + "/stat")
		if errno != 0 {
			continue
		}
		if parent, ok := parentIn(data); ok {
			parents[p] = parent
		}
	}
	return parents
}

// parentIn finds the parent in a process's stat; not of one that has ended and
// waits to be collected by somebody.
func parentIn(stat []byte) (parent int, ok bool) {
	for i := len(stat) - 1; i >= 0; i-- { // the name may have anything in it
		if stat[i] != ')' {
			continue
		}
		rest := stat[i+1:]
		if len(rest) < 4 {
			return 0, false
		}
		word, _ := cut(rest[3:], ' ')
		n := 0
		for _, c := range word {
			if c < '0' || c > '9' {
				return 0, false
			}
			n = 10*n + int(c-'0')
		}
		return n, rest[1] != 'Z' && rest[1] != 'X'
	}
	return 0, false
}

// pids lists the directories of /proc that are processes.
func pids() (all []int) {
	fd, err := syscall.Open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	buf := make([]byte, 16<<10)
	for {
		n, err := syscall.ReadDirent(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return all
		}
		var names []string
		_, _, names = syscall.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if p, ok := number([]byte(name)); ok {
				all = append(all, p)
			}
		}
	}
}

func number(text []byte) (n int, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<30 {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, n > 0
}
