// Command hibernate-helper is a very small program for places where a large
// one would cost too much:
//
//	hibernate-helper hold    does nothing, for ever: its pid is the task's pid;
//	                         it says on descriptor 3 when it is settled
//	hibernate-helper ports   lists the sockets that others can reach, and the
//	                         connections
//	hibernate-helper dial F PORT
//	                         connects standard input and output, a unix socket, to
//	                         that port of 127.0.0.1 (F is 4) or ::1 (6)
//	hibernate-helper hook COMMAND ARGUMENTS…
//	                         runs a command until its end, or that of standard
//	                         input, and ends all that it has left
//
// The latter three are run inside a sandbox. ports prints one JSON object a line for each TCP
// socket that listens or is connected and each UDP socket that has a port,
// loopback left out:
//
//	{"proto":"tcp","addr":"0.0.0.0","port":80}
//	{"proto":"tcp","addr":"10.0.0.2","port":80,"peer":"10.0.0.3","peerPort":40000}
//
// It imports next to nothing: each holder's memory is paid per container.
package main

import "syscall"

func main() {
	args := arguments()
	switch {
	case len(args) == 1 && args[0] == "hold":
		hold()
	case len(args) == 1 && args[0] == "ports":
		if err := ports(); err != "" {
			fail(err)
		}
	case len(args) == 3 && args[0] == "dial":
		if err := dial(args[1], args[2]); err != "" {
			fail(err)
		}
	case len(args) > 1 && args[0] == "hook":
		hook(args[1:])
	default:
		fail("usage: hibernate-helper hold|ports|dial F PORT|hook COMMAND ARGUMENTS…")
	}
}

func fail(message string) {
	_, _ = syscall.Write(2, []byte("hibernate-helper: "+message+"\n"))
	syscall.Exit(1)
}
