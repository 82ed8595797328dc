#!/usr/bin/env bash
# Runs the tests of a package many times, with the race detector, with 1, 2 and 4 CPUs in turn, beside LOAD (default 16) processes that do
# nothing but use a CPU: a test that fails once in 500 runs is a defect. Ends with code 1 when a run failed; what each failed run printed
# stays. For example:
#
#   hack/stress.sh ./internal/node/ledger -run '^TestTwin$' 500
#   hack/stress.sh ./internal/node/agent 30m              as many runs as fit in 30 minutes
#   hack/stress.sh ./kube/internal/sandbox 100            a package of the nested module
source "$(dirname "$0")/lib.sh"
usage="use hack/stress.sh PACKAGE [-run PATTERN] COUNT, or MINUTESm for the count: hack/stress.sh ./internal/node/ledger -run '^TestTwin\$' 500"
package=${1:-} pattern=.
[ -d "$package" ] || fail "there is no package in the folder \"$package\"; $usage"
shift
if [ "${1:-}" = -run ]; then
	pattern=${2:-}
	shift 2 || fail "$usage"
fi
runs=0 seconds=0
case ${1:-} in
*[!0-9]*m | '' | m | 0 | 0m) fail "$usage" ;;
*m) seconds=$((${1%m} * 60)) ;;
*[!0-9]*) fail "\"$1\" is not a number of runs; $usage" ;;
*) runs=$1 ;;
esac
need_go
files_in_memory
work=$(mktemp -d)
burners=()
trap '[ ${#burners[@]} = 0 ] || kill "${burners[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
module=.
case $package in ./kube/*) module=kube ;; esac
say "compiling the tests of $package"
go test -C "$module" -race -vet=off -c -o "$work/stress.test" "./$(realpath --relative-to="$module" "$package")"
[ -x "$work/stress.test" ] || fail "$package has no tests"
[ -n "$("$work/stress.test" -test.list "${pattern%%/*}" | grep -v '^Benchmark\|^Fuzz')" ] || fail "no test of $package matches $pattern"
for _ in $(seq "${LOAD:-16}"); do
	while :; do :; done &
	burners+=($!)
done

began=$SECONDS said=$SECONDS did=0 failed=0 kept=
cpus=(1 2 4)
while [ $did -lt "$runs" ] || [ $((SECONDS - began)) -lt $seconds ]; do
	cpu=${cpus[$((did % 3))]}
	did=$((did + 1))
	if ! (cd "$package" && "$work/stress.test" -test.run "$pattern" -test.cpu "$cpu" -test.timeout 20m) >"$work/log" 2>&1; then
		failed=$((failed + 1))
		kept=${kept:-$(mktemp -d /tmp/berth-stress.XXXXXX)}
		cp "$work/log" "$kept/$did-cpu$cpu.log"
		say "run $did with $cpu CPUs failed: $(grep -m 1 -E '^ +--- FAIL|^--- FAIL|^panic|DATA RACE' "$work/log" || tail -n 1 "$work/log")"
	fi
	[ $((SECONDS - said)) -lt 20 ] || { said=$SECONDS && say "$did runs, $failed failed"; }
done
echo "$package $pattern: $did runs in $((SECONDS - began)) s beside ${LOAD:-16} busy processes, $failed failed${kept:+, their output is in $kept}"
[ $failed = 0 ]
