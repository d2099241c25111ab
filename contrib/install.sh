#!/bin/sh
# Installs the built programs with their configuration beside an existing containerd, or removes them again.
#
#   contrib/install.sh [install | uninstall]
#
# Environment: PREFIX (default /usr/local), DESTDIR (default none: this machine), BIN (where the programs were built,
# default bin), RUNSC (a stamped runsc to install; default none). Configuration that is there is never touched, snapshots are never removed,
# nothing is restarted: it says what to do next. A runsc that another takes the place of is kept beside it (the key runsc-dir), since what it has
# put to sleep only that very one wakes; hibernatectl node tells which are still needed, and removing the others is a person's business.
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
BIN=${BIN:-bin}
contrib=$(cd "$(dirname "$0")" && pwd)
# The last is for runsc alone to find; the directory is our own, since gVisor's releases have a program of that name.
programs="containerd-shim-hibernate-v1 hibernated hibernatectl hibernate-helper hibernate-bin/checkpointgofer"
units="$DESTDIR/etc/systemd/system"

shelf="$DESTDIR$PREFIX/bin/hibernate-bin/runsc"

# Keeps a runsc side by side with others, by its digest, with the sidecar that serves it, if that is of the same version.
shelve() { # runsc, sidecar
	digest=$(sha256sum "$1")
	digest=${digest%% *}
	place="$shelf/$digest"
	if [ ! -e "$place/runsc" ]; then
		install -d -m 0755 "$place"
		if [ -x "$2" ] && [ "$("$1" --version 2> /dev/null | sed -n 's/^runsc version //p')" = "$("$2" -version 2> /dev/null)" ]; then
			install -m 0755 "$2" "$place/checkpointgofer"
		fi
		install -m 0755 "$1" "$place/runsc.new"
		mv -f "$place/runsc.new" "$place/runsc"
		echo "kept       $place/runsc"
	fi
}

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
	runsc="$DESTDIR$PREFIX/bin/runsc"
	if [ -x "$runsc" ]; then # before its sidecar is another one
		shelve "$runsc" "$DESTDIR$PREFIX/bin/hibernate-bin/checkpointgofer"
	fi
	for p in $programs; do
		# By rename: a running program's file can't be written to.
		install -D -m 0755 "$BIN/$p" "$DESTDIR$PREFIX/bin/$p.new"
		mv -f "$DESTDIR$PREFIX/bin/$p.new" "$DESTDIR$PREFIX/bin/$p"
		echo "installed  $DESTDIR$PREFIX/bin/$p"
	done
	if [ -n "${RUNSC:-}" ]; then
		shelve "$RUNSC" "$BIN/hibernate-bin/checkpointgofer"
		if ! cmp -s "$RUNSC" "$runsc"; then # a copy: who writes to it must not write to the one that is kept
			install -m 0755 "$RUNSC" "$runsc.new"
			mv -f "$runsc.new" "$runsc"
			echo "installed  $runsc"
		fi
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
	rmdir "$shelf" "$DESTDIR$PREFIX/bin/hibernate-bin" 2> /dev/null || true
	rm -f "$units/hibernated.service" "$units/hibernate-shutdown.service" "$DESTDIR/etc/containerd/conf.d/hibernate.toml"
	echo "removed the programs, the units and containerd's configuration of the runtime"
	echo "kept $DESTDIR/etc/hibernate and the snapshots, and $shelf, which they need"
}

case ${1:-install} in
install) do_install ;;
uninstall) do_uninstall ;;
*)
	echo "usage: $0 [install | uninstall]" >&2
	exit 2
	;;
esac
