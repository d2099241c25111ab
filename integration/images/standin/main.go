// Standin is the one program, besides busybox, of the images that critest asks for. By the name that it is run by it is
//
//	nginx [WORDS…] PORT   a web server that writes /var/run/nginx.pid, says "httpd", and shows WORDS in its command line
//	nnp                   tells its effective user, as a file with the setuid bit is asked to
//	pause                 waits for its end, as a pod's sandbox does: busybox's sleep has a name that critest looks for
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const pidFile = "/var/run/nginx.pid"

func main() {
	switch filepath.Base(os.Args[0]) {
	case "nnp":
		fmt.Println("Effective uid:", os.Geteuid())
		return
	case "pause":
		end := make(chan os.Signal, 1)
		signal.Notify(end, os.Interrupt, syscall.SIGTERM)
		<-end
		return
	}
	if err := serve(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "nginx:", err)
		os.Exit(1)
	}
}

func serve(port string) error {
	if err := os.MkdirAll(filepath.Dir(pidFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	fmt.Println("httpd: port", port)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	server := &http.Server{Addr: ":" + port, Handler: page, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}
