#!/usr/bin/env bash
# Runs each fuzz target for FUZZTIME.
source "$(dirname "$0")/lib.sh"
need_go
time=${FUZZTIME:-5s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fuzz runs one target: module, target, package.
fuzz() {
	trim go test -C "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$time" "$3" >"$log" 2>&1 || return 1
	# go test passes when the pattern matches no target.
	! grep -q 'no fuzz tests to fuzz' "$log"
}

# late tells whether all that went wrong is that Go's fuzzer did not end in its own time, which
# happens on a busy machine; a target that fails writes down the input.
late() { grep -qx '    context deadline exceeded' "$log" && ! grep -q 'Failing input written' "$log"; }

git grep -hoE --full-name '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || fail "no fuzz target found"
git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sort | while IFS=: read -r file target; do
	target=${target#func }
	module=.
	case $file in kube/*) module=kube ;; esac
	package=./$(realpath --relative-to="$module" "$(dirname "$file")")
	say "fuzzing $target for $time"
	fuzz "$module" "$target" "$package" || { late && say "Go's fuzzer missed its own deadline, once more" && fuzz "$module" "$target" "$package"; } ||
		{ cat "$log"; exit 1; }
done
