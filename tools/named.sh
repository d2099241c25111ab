#!/bin/sh
# named.sh LIST [PACKAGE…]: runs the tests that a list such as docs/NETWORK.md names, of the packages given, or of all in it.
list=$1
shift
[ $# -gt 0 ] || set -- $(grep -o '`[a-z0-9/]* Test[A-Za-z0-9]*' "$list" | tr -d '`' | cut -d ' ' -f 1 | sort -u)
code=0
for package in "$@"; do
	names=$(grep -o "\`$package Test[A-Za-z0-9]*" "$list" | cut -d ' ' -f 2 | sort -u | paste -sd '|')
	sh tools/gotest.sh -count=1 -timeout 15m -run "^($names)\$" -- "./$package" || code=1
done
exit $code
