package main

// Servers that are used over connections which last: they speak first, and have processes and users of their own.
var programs = []recipe{ssh, smtp, mariadb}

// Who has the key in etc/ssh/test_key may log in; it is for tests, which read it there. Host keys are made at the start.
var ssh = recipe{
	name:     "ssh",
	packages: []string{"openssh-server"},
	keep:     []string{"libpam0g", "libaudit1", "libselinux1", "libcap-ng0", "libbsd0", "libmd0"},
	files: []file{
		users("sshd:x:100:65534::/run/sshd:/bin/false"),
		{"etc/ssh/sshd_config", 0o644, []byte(`HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
Subsystem sftp internal-sftp
`)},
		{"usr/bin/serve", 0o755, []byte(`#!/bin/sh -e
mkdir -p /run/sshd # which lies in a file system of the container's
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/test_key
cp /etc/ssh/test_key.pub /etc/ssh/authorized_keys
exec /usr/sbin/sshd -D -e
`)},
	},
	entrypoint: []string{"/usr/bin/serve"},
}

// It takes mail for alice, and keeps it in /tmp/alice.
var smtp = recipe{
	name:     "smtp",
	packages: []string{"opensmtpd"},
	keep:     []string{"libpam0g", "libaudit1", "libcap-ng0"},
	files: []file{
		users("alice:x:1000:1000:alice:/srv:/bin/false", "opensmtpd:x:101:101::/var/lib/opensmtpd/empty:/bin/false", "opensmtpq:x:102:102::/var/lib/opensmtpd/empty:/bin/false"),
		groups("alice:x:1000:", "opensmtpd:x:101:", "opensmtpq:x:102:"),
		{"etc/mailname", 0o644, []byte("mail.test\n")},
		{"var/lib/opensmtpd/empty/.keep", 0o644, nil},
		{"var/run/.keep", 0o644, nil},
		{"var/spool/.keep", 0o644, nil},
		{"etc/smtpd.conf", 0o644, []byte(`listen on 0.0.0.0 port 25
action "keep" maildir "/tmp/%{dest.user}"
match from any for any action "keep"
`)},
	},
	entrypoint: []string{"/usr/sbin/smtpd", "-d"},
}

// Its tables are in a directory that it fills at its start; everybody may do everything.
var mariadb = recipe{
	name:     "mariadb",
	packages: []string{"mariadb-server-core"},
	files: []file{
		{"var/lib/mysql/.keep", 0o644, nil},
	},
	entrypoint: []string{"/usr/sbin/mariadbd"},
	cmd: []string{
		"--no-defaults", "--user=root", "--datadir=/var/lib/mysql", "--socket=/var/lib/mysql/mysqld.sock", "--skip-grant-tables",
		"--skip-networking=0", "--bind-address=0.0.0.0", "--skip-name-resolve",
	},
}

const (
	rootUser  = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
	rootGroup = "root:x:0:\nnogroup:x:65534:\n"
)

// users is the file of these and root; groups is that of groups.
func users(lines ...string) file  { return file{"etc/passwd", 0o644, accounts(rootUser, lines)} }
func groups(lines ...string) file { return file{"etc/group", 0o644, accounts(rootGroup, lines)} }

func accounts(first string, lines []string) []byte {
	for _, l := range lines {
		first += l + "\n"
	}
	return []byte(first)
}
