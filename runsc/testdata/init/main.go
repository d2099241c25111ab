// Command init is the only program in the root file system of this package's
// tests.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "count": // one line each 10 ms, for ever
		for i := 0; ; i++ {
			fmt.Println(i)
			time.Sleep(10 * time.Millisecond)
		}
	case "exit": // after standard input has ended
		_, _ = io.Copy(io.Discard, os.Stdin)
		code, _ := strconv.Atoi(os.Args[2])
		os.Exit(code)
	case "echo":
		fmt.Println(os.Args[2])
	case "listen":
		listen()
	case "loopback": // says the end of what each client has said, in capitals, when that has ended
		loopback()
	case "sleep":
		time.Sleep(time.Hour)
	case "leave": // sleepers that have lost their parent, in sessions of their own; then exits, or sleeps
		leave()
	case "orphan":
		start("sleep")
	}
	os.Exit(0)
}

func leave() {
	fmt.Println(strings.Repeat("much of it\n", 1000) + "leaving") // before there is anybody by whom others could tell
	for range 3 {
		start("orphan")
	}
	start("sleep")
	if code, err := strconv.Atoi(os.Args[2]); err == nil {
		os.Exit(code)
	}
	time.Sleep(time.Hour)
}

func start(what string) {
	cmd := exec.Command("/init", what)
	cmd.Stdout, cmd.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
	err := cmd.Start()
	if err == nil && what == "orphan" {
		err = cmd.Wait()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func listen() {
	for _, addr := range []string{"0.0.0.0:80", "0.0.0.0:8080"} {
		if _, err := net.Listen("tcp", addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	if _, err := net.ListenPacket("udp", "0.0.0.0:53"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	time.Sleep(time.Hour)
}

func loopback() {
	for addr, serve := range map[string]func(net.Conn){"127.0.0.1:7000": answer, "[::1]:7001": answer, "127.0.0.1:7002": ignore} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
	}
	fmt.Println("listening")
	time.Sleep(time.Hour)
}

// ignore is deaf to its client's end.
func ignore(net.Conn) { time.Sleep(time.Hour) }

func answer(c net.Conn) {
	defer c.Close()
	_, _ = fmt.Fprintf(c, "hello %s\n", c.RemoteAddr().(*net.TCPAddr).IP) // it speaks first
	n, _ := io.Copy(io.Discard, c)
	_, _ = fmt.Fprintf(c, "%d bytes\n", n)
}
