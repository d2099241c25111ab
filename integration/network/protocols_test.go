package network

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// Each kind of server is woken by a new connection, which finds it as it was, and by what is said on one that lived through the
// sleep. The proxy knows none of these protocols.
func TestEveryProtocolWakes(t *testing.T) {
	s := start(t, true, nil)
	for _, p := range []struct {
		name string
		open func(*server) talker
	}{
		{"HTTP/1", openHTTP}, {"HTTP/2 in the clear", openH2C}, {"HTTP/2 behind TLS", openTLS}, {"a server that speaks first", openGreeting},
	} {
		t.Run(p.name, func(t *testing.T) {
			s := *s
			s.t = t
			before := s.sleep()
			held := p.open(&s)
			s.must(held.talk("held"))
			s.woken(before, "connection")
			direct := p.open(&s)
			s.must(direct.talk("direct"))
			for name, c := range map[string]talker{"held": held, "direct": direct} {
				before = s.sleep()
				s.must(c.talk("through sleep"))
				s.woken(before, "packet")
				t.Logf("woken by what was said on the %s connection", name)
			}
			s.must(held.talk("and again"))
			held.close()
			direct.close()
		})
	}
}

// talker is a conversation on one connection.
type talker struct {
	talk  func(line string) error
	close func()
}

func openHTTP(s *server) talker {
	c := s.dial(httpPort)
	in := bufio.NewReader(c)
	return talker{func(string) error {
		if _, err := io.WriteString(c, "GET /remote HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		sees, err := io.ReadAll(r.Body)
		if want := c.LocalAddr().String() + "\n"; err == nil && !sameHost(string(sees), want) {
			err = fmt.Errorf("the server sees %q, not %q", sees, want)
		}
		return err
	}, func() { c.Close() }}
}

// sameHost compares addresses but for the port, which is the proxy's on a connection that was held.
func sameHost(a, b string) bool {
	hostA, _, errA := net.SplitHostPort(a)
	hostB, _, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && hostA == hostB
}

func openH2C(s *server) talker {
	clear := new(http.Protocols)
	clear.SetUnencryptedHTTP2(true)
	return openTalk(s, fmt.Sprint("http://", s.address(httpPort)), &http.Transport{Protocols: clear})
}

func openTLS(s *server) talker {
	return openTalk(s, fmt.Sprint("https://", s.address(tlsPort)),
		&http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
}

// openTalk has one stream of HTTP/2 open in both directions.
func openTalk(s *server, url string, transport *http.Transport) talker {
	s.t.Helper()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.world.Dial(ctx, network, address)
	}
	body, say := io.Pipe()
	r, err := (&http.Client{Transport: transport}).Post(url+"/talk", "text/plain", body)
	s.must(err)
	if r.ProtoMajor != 2 {
		s.t.Errorf("%s: %s", url, r.Proto)
	}
	in := bufio.NewReader(r.Body)
	return talker{func(line string) error {
		if _, err := io.WriteString(say, line+"\n"); err != nil {
			return err
		}
		got, err := lineOf(in)
		if err == nil && got != line {
			err = fmt.Errorf("heard %q, not %q", got, line)
		}
		return err
	}, func() { say.Close(); r.Body.Close(); transport.CloseIdleConnections() }}
}

func openGreeting(s *server) talker {
	c := s.dial(greetPort)
	s.must(hear(c, "220 hello\n")) // before the client has said a word
	return talker{func(line string) error { return exchange(c, line) }, func() { c.Close() }}
}
