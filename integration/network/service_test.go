package network

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A Service's address, which the node translates to the pod's for each new connection as kube-proxy has it do, wakes like the pod's
// own: by connections, by what is said on one that lived through a sleep, and by datagrams. The container sees who calls.
func TestServiceWakes(t *testing.T) {
	s := start(t, true, nil)
	first, _, _ := strings.Cut(s.world.NodeIP()[3:], ".")
	service := "10." + first + ".255.10" // on no link
	_, err := s.world.Shell(s.ctx(), fmt.Sprintf(`
ip route add %[1]s dev plain0 # as a node's default route takes it somewhere
iptables -t nat -N KUBE-SERVICES
for hook in PREROUTING OUTPUT; do iptables -t nat -A $hook -j KUBE-SERVICES; done
service() { iptables -t nat -A KUBE-SERVICES -d %[1]s/32 -p $1 -m $1 --dport $2 -j DNAT --to-destination %[2]s:$3; }
service tcp 80 %[3]d
service tcp 7 %[4]d
service udp 7 %[5]d`, service, s.pod.IP, httpPort, echoPort, udpPort))
	s.must(err)
	t.Cleanup(func() {
		if _, err := s.world.Shell(s.ctx(), "nft delete table ip nat; ip route del "+service); err != nil {
			t.Error(err)
		}
	})
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"client": s.world.Dial, "node": s.world.DialNode,
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.t = t
			before := s.sleep()
			c, err := dial(s.ctx(), "tcp", service+":7")
			s.must(err)
			defer c.Close()
			s.must(exchange(c, "new"))
			s.woken(before, "connection")
			direct, err := dial(s.ctx(), "tcp", service+":80")
			s.must(err)
			defer direct.Close()
			for _, conn := range []net.Conn{c, direct} {
				before = s.sleep()
				if conn == c {
					s.must(exchange(c, "through sleep"))
				} else {
					s.must(seesCaller(direct))
				}
				s.woken(before, "packet")
			}
			before = s.sleep()
			u, err := dial(s.ctx(), "udp", service+":7")
			s.must(err)
			defer u.Close()
			s.must(exchange(u, "datagram"))
			s.woken(before, "packet")
		})
	}
}

// seesCaller asks the server by HTTP who it is that asks.
func seesCaller(c net.Conn) error {
	if _, err := io.WriteString(c, "GET /remote HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	sees, err := io.ReadAll(r.Body)
	if want := c.LocalAddr().String() + "\n"; err == nil && string(sees) != want {
		err = fmt.Errorf("the server sees %q, not %q", sees, want)
	}
	return err
}
