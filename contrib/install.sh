#!/bin/sh
# Installs the built programs with their configuration beside an existing containerd, or removes them again.
#
#   contrib/install.sh [install | uninstall]
#
# Environment: PREFIX (default /usr/local), DESTDIR (default none: this machine), BIN (where the programs were built,
# default bin), RUNSC (a stamped runsc to install where none is; default none). Configuration that is there is never touched, snapshots are never removed, nothing is restarted: it
# says what to do next.
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
BIN=${BIN:-bin}
contrib=$(cd "$(dirname "$0")" && pwd)
# The last is for runsc alone to find; the directory is our own, since gVisor's releases have a program of that name.
programs="containerd-shim-hibernate-v1 hibernated hibernatectl hibernate-helper hibernate-bin/checkpointgofer"
units="$DESTDIR/etc/systemd/system"

keep_or_install() { # file, target
	if [ -e "$2" ]; then
		echo "kept       $2"
	else
		install -D -m 0644 "$1" "$2"
		echo "installed  $2"
	fi
}

do_install() {
	for p in $programs; do
		[ -x "$BIN/$p" ] || { echo "$BIN/$p is missing: run make build first" >&2; exit 1; }
	done
	for p in $programs; do
		# By rename: a running program's file can't be written to.
		install -D -m 0755 "$BIN/$p" "$DESTDIR$PREFIX/bin/$p.new"
		mv -f "$DESTDIR$PREFIX/bin/$p.new" "$DESTDIR$PREFIX/bin/$p"
		echo "installed  $DESTDIR$PREFIX/bin/$p"
	done
	if [ -n "${RUNSC:-}" ] && [ ! -e "$DESTDIR$PREFIX/bin/runsc" ]; then
		install -D -m 0755 "$RUNSC" "$DESTDIR$PREFIX/bin/runsc"
		echo "installed  $DESTDIR$PREFIX/bin/runsc"
	fi
	keep_or_install "$contrib/config.toml" "$DESTDIR/etc/hibernate/config.toml"
	keep_or_install "$contrib/containerd/hibernate.toml" "$DESTDIR/etc/containerd/conf.d/hibernate.toml"
	install -d "$units"
	for u in hibernated hibernate-shutdown; do
		sed "s|/usr/local/bin/|$PREFIX/bin/|" "$contrib/systemd/$u.service" > "$units/$u.service"
		chmod 0644 "$units/$u.service"
		echo "installed  $units/$u.service"
	done
	[ -z "$DESTDIR" ] || return 0
	next_steps
}

next_steps() {
	echo
	echo "Next:"
	command -v runsc > /dev/null || echo "  - install runsc in $PREFIX/bin or elsewhere in PATH"
	echo "  - systemctl daemon-reload && systemctl enable --now hibernated hibernate-shutdown"
	if ! grep -qs 'conf\.d' /etc/containerd/config.toml; then
		echo "  - for Kubernetes: add imports = [\"/etc/containerd/conf.d/*.toml\"] to /etc/containerd/config.toml,"
		echo "    systemctl restart containerd"
	fi
	echo "  - ctr run --runtime io.containerd.hibernate.v1 …"
}

do_uninstall() {
	for p in $programs; do
		rm -f "$DESTDIR$PREFIX/bin/$p"
	done
	rmdir "$DESTDIR$PREFIX/bin/hibernate-bin" 2> /dev/null || true
	rm -f "$units/hibernated.service" "$units/hibernate-shutdown.service" "$DESTDIR/etc/containerd/conf.d/hibernate.toml"
	echo "removed the programs, the units and containerd's configuration of the runtime"
	echo "kept $DESTDIR/etc/hibernate and the snapshots"
}

case ${1:-install} in
install) do_install ;;
uninstall) do_uninstall ;;
*)
	echo "usage: $0 [install | uninstall]" >&2
	exit 2
	;;
esac
