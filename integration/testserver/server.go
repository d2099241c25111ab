package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// addresses are where it listens; tls and manners may be empty, for nowhere.
type addresses struct{ http, echo, greet, udp, tls, manners string }

type listeners struct {
	http, echo, greet net.Listener
	tls, manners      net.Listener // nil where not wanted
	udp               net.PacketConn
}

func (l listeners) close() {
	l.http.Close()
	l.echo.Close()
	l.greet.Close()
	l.udp.Close()
	for _, wanted := range []net.Listener{l.tls, l.manners} {
		if wanted != nil {
			wanted.Close()
		}
	}
}

// listen opens all ports, or none.
func listen(a addresses) (l listeners, err error) {
	var opened []interface{ Close() error }
	defer func() {
		if err != nil {
			for _, c := range opened {
				c.Close()
			}
		}
	}()
	for _, p := range []struct {
		at string
		ln *net.Listener
	}{{a.http, &l.http}, {a.echo, &l.echo}, {a.greet, &l.greet}, {a.tls, &l.tls}, {a.manners, &l.manners}} {
		if p.at == "" {
			continue
		}
		if *p.ln, err = net.Listen("tcp", p.at); err != nil {
			return l, err
		}
		opened = append(opened, *p.ln)
	}
	l.udp, err = net.ListenPacket("udp", a.udp)
	return l, err
}

// A server is the program's state, each part with its own lock.
type server struct {
	counter counter
	memory  memory
	files   files
	maps    mappings
	echo    echo
	manners manners
}

func newServer() *server {
	return &server{
		files: files{open: map[string]*openFile{}},
		maps:  mappings{open: map[string][]byte{}},
		echo:  echo{connections: map[string]*connection{}},
	}
}

// serve answers on all listeners until ctx ends, and closes them.
func (s *server) serve(ctx context.Context, l listeners) error {
	web := &http.Server{Handler: s.routes(), Protocols: protocols()}
	var wg sync.WaitGroup
	wg.Go(func() { s.echo.serve(l.echo) })
	wg.Go(func() { greet(l.greet) })
	wg.Go(func() { echoPackets(l.udp) })
	if l.manners != nil {
		wg.Go(func() { s.manners.serve(l.manners) })
	}
	if l.tls != nil {
		config, err := selfSigned()
		if err != nil {
			return err
		}
		web.TLSConfig = config
		wg.Go(func() { web.ServeTLS(l.tls, "", "") })
	}
	stop := context.AfterFunc(ctx, func() {
		l.close()
		web.Close()
		s.echo.closeAll()
	})
	defer stop()
	err := web.Serve(l.http)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		wg.Wait()
		return nil
	}
	return err
}
