#!/bin/sh
# ring.sh NAME COMMAND…: runs the command, and says how long it took and whether it passed.
name=$1
shift
began=$(date +%s)
"$@"
code=$?
outcome=passed
[ $code -eq 0 ] || outcome=FAILED
echo "== $name: $outcome in $(($(date +%s) - began)) s"
exit $code
