#!/bin/sh
# deps.sh: installs the Debian packages that tests and the demo need, when one of their programs is missing. Servers that
# run inside containers (redis, nginx, python) are not among them: those are only downloaded, into images.
set -e
missing=
need() { # program, package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need nft nftables
need ip iproute2
need iptables iptables
need ps procps
need ssh openssh-client
need nsenter util-linux
need mount mount
need dpkg-deb dpkg
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
[ "$1" != protos ] || need protoc protobuf-compiler
[ "$1" != client ] || need lsof lsof
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "missing packages:$missing; run 'make deps' as root" >&2
	exit 1
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
# shellcheck disable=SC2086
apt-get -q install -y --no-install-recommends $missing
