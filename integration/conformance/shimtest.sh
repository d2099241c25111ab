#!/bin/sh
# shimtest.sh BINARY [flag …]: runs containerd's suite for shims, built elsewhere (shimtest.test), against bin/ with
# shimtest.json beside this file. It has mounts, processes and a network of its own, so that it neither sees nor leaves
# anything of other runs.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=$(realpath "$1")
shift
# The program that it puts in containers is built beside it.
export SHIMTEST_TESTBIN="${SHIMTEST_TESTBIN:-$(dirname "$binary")/../testdata/testbin}"
# shellcheck disable=SC2016
exec unshare --mount --net --pid --fork --kill-child --mount-proc sh -c '
	for d in /run /var/lib/hibernate; do
		mkdir -p "$d"
		mount -t tmpfs -o mode=755 tmpfs "$d"
	done
	ip link set lo up
	PATH="$1/bin:$1/.tools:$PATH"
	export SHIM_BINARY="$1/bin/containerd-shim-hibernate-v1" # it looks for what is left of a program by its path
	binary=$2 config=$3
	shift 3
	"$binary" -shimtest.config="$config" -test.v "$@"
	exit $? # the first process of its namespace is a shell that reaps, not the suite' sh "$root" "$binary" "$here/shimtest.json" "$@"
