#!/usr/bin/env bash
# Runs each fuzz target for FUZZTIME.
source "$(dirname "$0")/lib.sh"
need_go
time=${FUZZTIME:-5s}
git grep -hoE --full-name '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || fail "no fuzz target found"
git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sort | while IFS=: read -r file target; do
	target=${target#func }
	module=.
	case $file in kube/*) module=kube ;; esac
	say "fuzzing $target for $time"
	go test -C "$module" -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$(realpath --relative-to="$module" "$(dirname "$file")")" >/tmp/berth-fuzz.$$ 2>&1 ||
		{ cat /tmp/berth-fuzz.$$; rm -f /tmp/berth-fuzz.$$; exit 1; }
	rm -f /tmp/berth-fuzz.$$
done
