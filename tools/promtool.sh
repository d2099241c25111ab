#!/bin/sh
# promtool.sh: links .tools/promtool, which checks contrib/prometheus. It is taken out of Debian's package prometheus, which is only
# downloaded: to build it takes minutes, and half a gigabyte of modules.
set -eu
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hibernate/promtool
if [ ! -x "$cache/promtool" ]; then
	command -v apt-get >/dev/null || { echo "promtool.sh: no apt-get: put a promtool into $cache" >&2; exit 1; }
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && apt-get -q download prometheus)
	dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool
	mkdir -p "$cache"
	mv "$work/usr/bin/promtool" "$cache/promtool.new"
	mv "$cache/promtool.new" "$cache/promtool"
fi
mkdir -p .tools
ln -sf "$cache/promtool" .tools/promtool
