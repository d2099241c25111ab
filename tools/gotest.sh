#!/bin/sh
# gotest.sh [-together] FLAGS… -- PACKAGES…: go test of one package after the other, since they start real programs; with
# -together, of all in one run.
#
# With HIBERNATE_AGAIN=1 a package that fails is run once more, and told as flaky when it passes then: on machines that
# others use too a test of real programs may be late once. It is told so that somebody looks. A package that is given as
# a directory is tested in it, so that what its tests print is shown.
run() {
	case $1 in
	./*) (cd "$1" && go test $flags) ;;
	*) go test $flags $1 ;; # split: with -together it is the whole list
	esac
}

flags=
together=
if [ "$1" = -together ]; then
	together="some of the packages above"
	shift
fi
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	flags="$flags $1"
	shift
done
shift
[ -z "$together" ] || set -- "$*"
code=0
for package in "$@"; do
	run "$package" && continue
	if [ "${HIBERNATE_AGAIN:-}" = 1 ] && run "$package"; then
		echo "== FLAKY: ${together:-$package} failed, and passed when run again"
		continue
	fi
	code=1
done
exit $code
