package main

import (
	"bytes"
	"fmt"
	"os"
)

// A recipe says what is in an image and how it runs.
type recipe struct {
	name       string
	packages   []string // Debian's; busybox-static comes with each, for the tools that tests run inside
	keep       []string // those of omit that it needs nevertheless
	files      []file   // laid over the packages' own
	entrypoint []string
	cmd        []string
	env        []string
}

type file struct {
	path string // without a leading slash
	mode int64
	data []byte
}

// omit are dependencies for installing and configuring packages, which a container made of unpacked files never does.
// Patterns as in path.Match. That nothing needed is among them is checked when the image is packed.
var omit = []string{
	"adduser", "debconf", "dpkg", "gcc-*-base", "init-system-helpers", "iproute2", "libacl1", "libaudit*", "libbpf1",
	"libbsd0", "libcap-ng0", "libcap2-bin", "libelf1", "libfile-*-perl", "libgdbm*", "libmd0", "libmnl0", "libnumber-*-perl",
	"libpam*", "libperl*", "libselinux1", "libsemanage*", "libsepol2", "libtext-*-perl", "libxtables12", "lsb-base",
	"passwd", "perl*", "sysvinit-utils", "tar", "usrmerge",
}

// applets are links to busybox, for what a package does not bring itself.
var applets = []string{
	"cat", "cp", "dd", "echo", "env", "false", "head", "hostname", "id", "kill", "ls", "mkdir", "mv", "nc", "ps", "rm", "seq",
	"sh", "sha256sum", "sleep", "sort", "stty", "tail", "top", "touch", "tr", "true", "wc", "wget",
}

// recipes returns the table. server is the test server's binary; without one its image is left out.
func recipes(server string) ([]recipe, error) {
	table := append([]recipe{redis, nginx(), python, nodejs, busybox, pause}, programs...)
	if server == "" {
		return table, nil
	}
	binary, err := os.ReadFile(server)
	if err != nil {
		return nil, fmt.Errorf("test server: %w", err)
	}
	return append(table, recipe{
		name:       "testserver",
		files:      []file{{"usr/bin/testserver", 0o755, binary}},
		entrypoint: []string{"/usr/bin/testserver"},
	}), nil
}

var redis = recipe{
	name:       "redis",
	packages:   []string{"redis-server"},
	files:      []file{{"var/lib/redis/.keep", 0o644, nil}},
	entrypoint: []string{"/usr/bin/redis-server"},
	// What it holds is in its memory alone, so that only a restored memory can explain that it is still there.
	cmd: []string{"--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/var/lib/redis", "--save", ""},
}

var python = recipe{
	name:       "python3",
	packages:   []string{"python3"},
	files:      []file{{"srv/www/index.html", 0o644, []byte("<!doctype html><title>python</title><p>hello from python\n")}},
	entrypoint: []string{"/usr/bin/python3", "-m", "http.server", "8000", "--directory", "/srv/www"},
	env:        []string{"PYTHONUNBUFFERED=1"},
}

var nodejs = recipe{
	name:     "node",
	packages: []string{"nodejs"},
	files: []file{{"srv/server.js", 0o644, []byte(
		"require('http').createServer((_, answer) => answer.end('hello from node\\n')).listen(8000, '0.0.0.0')\n")}},
	entrypoint: []string{"/usr/bin/node", "/srv/server.js"},
}

// busybox is what other projects' tests expect of an image with that name.
var busybox = recipe{name: "busybox", cmd: []string{"sh"}}

// pause does nothing: the first container of a pod.
var pause = recipe{name: "pause", entrypoint: []string{"/usr/bin/sleep", "infinity"}}

const nginxConf = `worker_processes 1;
user root;
error_log stderr warn;
pid /run/nginx.pid;
events { worker_connections 1024; }
http {
  access_log off;
  include /etc/nginx/mime.types;
  default_type application/octet-stream;
  sendfile on;
  keepalive_requests 1000000;
  keepalive_timeout 1h;
  server { listen 80; root /srv/www; }
}
`

// nginx serves a small page, and /big: 64 MiB that compress well, so that the archive stays small.
func nginx() recipe {
	block := make([]byte, 16<<10)
	for i := range block {
		block[i] = byte(i*i>>3 + i)
	}
	return recipe{
		name:     "nginx",
		packages: []string{"nginx"},
		files: []file{
			{"etc/nginx/nginx.conf", 0o644, []byte(nginxConf)},
			{"srv/www/index.html", 0o644, []byte("<!doctype html><title>nginx</title><p>hello from nginx\n")},
			{"srv/www/big", 0o644, bytes.Repeat(block, 64<<20/len(block))},
			{"var/lib/nginx/.keep", 0o644, nil},
			{"var/log/nginx/.keep", 0o644, nil},
		},
		entrypoint: []string{"/usr/sbin/nginx"},
		cmd:        []string{"-g", "daemon off;"},
	}
}
