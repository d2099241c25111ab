#!/bin/sh
# gotest.sh FLAGS… -- PACKAGES…: go test of one package after the other, since they start real programs.
#
# With HIBERNATE_AGAIN=1 a package that fails is run once more, and told as flaky when it passes then: on machines that
# others use too a test of real programs may be late once. It is told so that somebody looks.
flags=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	flags="$flags $1"
	shift
done
shift
code=0
for package in "$@"; do
	go test $flags "$package" && continue
	if [ "${HIBERNATE_AGAIN:-}" = 1 ] && go test $flags "$package"; then
		echo "== FLAKY: $package failed, and passed when run again"
		continue
	fi
	code=1
done
exit $code
