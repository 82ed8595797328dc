#!/usr/bin/env bash
# Runs each fuzz target for FUZZTIME. The targets of a package are in one program, which is linked once.
source "$(dirname "$0")/lib.sh"
need_go
time=${FUZZTIME:-5s}
cache=$(go env GOCACHE)/fuzz/$(go list -m) # As go test names it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fuzz PACKAGE TARGET: PACKAGE is a directory. What the fuzzer finds is kept where go test looks for it.
fuzz() {
	(cd "$1" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzcachedir "$cache/$1" -test.paniconexit0) >"$work/log" 2>&1 || return 1
	# A test program passes when the pattern matches no target.
	! grep -q 'no fuzz tests to fuzz' "$work/log"
}

# late tells whether all that went wrong is that Go's fuzzer did not end in its own time, which
# happens on a busy machine; a target that fails writes down the input.
late() { grep -qx '    context deadline exceeded' "$work/log" && ! grep -q 'Failing input written' "$work/log"; }

git grep -hoE --full-name '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || fail "no fuzz target found"
built=
git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sort | while IFS=: read -r file target; do
	target=${target#func }
	package=$(dirname "$file")
	if [ "$package" != "$built" ]; then
		module=.
		case $file in kube/*) module=kube ;; esac
		go test -C "$module" -c -vet=off -fuzz . -o "$work/fuzz.test" "./$(realpath --relative-to="$module" "$package")"
		built=$package
	fi
	say "fuzzing $target for $time"
	fuzz "$package" "$target" || { late && say "Go's fuzzer missed its own deadline, once more" && fuzz "$package" "$target"; } ||
		{ cat "$work/log"; exit 1; }
done
