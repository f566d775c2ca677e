#!/bin/sh
# Half a minute's proof that fakellm and loadgen agree with each other: nothing lost, nothing hung.
cd "$(dirname "$0")/build" || exit 1
port=${1:-9099}
./fakellm -p "$port" & up=$!
trap 'kill $up' EXIT
sleep 0.3
bad=0
for args in "-c 1" "-c 64" "-m stream -n 200 -c 1" "-m stream -n 200 -c 64"; do
    # shellcheck disable=SC2086
    out=$(./loadgen -p "$port" -d 0.5 -w 0.1 $args) || bad=1
    echo "$out" | grep -q '"errors":0,"first_error":"","hung":0' || { echo "FAIL $args: $out"; bad=1; }
    echo "$out" | grep -q '"lost":0,"dup":0,"no_done":0' || { echo "FAIL $args: $out"; bad=1; }
done
[ $bad = 0 ] && echo "4 passed, 0 failed"
exit $bad
