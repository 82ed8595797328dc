#!/usr/bin/env bash
# Everything that must pass; with the argument "short" the unit tests, the demo and one path through the real cluster. What this machine does
# not allow is named at the end, with the reason; in CI (CI=true) it is a failure.
source "$(dirname "$0")/lib.sh"
need_go
short=${1:-}
check_sandbox test
if [ ${#sandbox_reasons[@]} != 0 ] && in_ci; then
	fail "the end-to-end tests cannot run here, and CI is set, where leaving them out is a failure:
$(print_reasons)"
fi

SANDBOX=$(mktemp -u /tmp/berth-test.XXXXXX)
stage_report=$SANDBOX.report E2E_LOGS=$SANDBOX.logs
export SANDBOX stage_report E2E_LOGS
checks= failed=
# print_failures prints what failed, from the summaries of the stages: at most 20 lines.
print_failures() {
	printf 'FAILED: %s\n' "$failed" >&2
	[ ! -s "$stage_report" ] || awk '/: FAILED: / { print; shown = 1; next } !/^  / { shown = 0 } shown' "$stage_report" | tail -n 18 >&2
	[ ! -d "$E2E_LOGS" ] || printf 'logs of the clusters of the tests that failed: %s\n' "$E2E_LOGS" >&2
}

# end stops what still runs, and says last what failed.
end() {
	local status=$?
	# The checks are a process group.
	[ -z "$checks" ] || kill -- "-$checks" 2>/dev/null || true
	if [ -e "$SANDBOX" ]; then
		case $failed in *"end to end"*) mkdir -p "$E2E_LOGS" && cp -r "$SANDBOX/logs" "$E2E_LOGS/shared" || true ;; esac
		hack/stop.sh || true
	fi
	print_times
	[ $status = 0 ] || print_failures
	rm -rf "$SANDBOX" "$SANDBOX.log" "$stage_report"
}
trap end EXIT

# run runs a stage that does not keep the later ones from running.
run() { timed "$@" || failed+="${failed:+, }$1"; }

if [ ${#sandbox_reasons[@]} != 0 ]; then
	run "unit tests" hack/unit.sh
	[ -n "$short" ] || run checks hack/checks.sh
	[ -z "$failed" ] || exit 1
	say "all other tests passed; SKIPPED: the end-to-end tests, because:"
	print_reasons >&2
	exit 0
fi
# First, so that a machine that cannot build it says so early.
failed=build
timed build hack/build.sh sandbox
export BUILT=1 # The stages need not look again.
failed=
# Alone, since many of them wait for something for a limited time.
run "unit tests" hack/unit.sh
say "the demo"
if ! timed demo hack/demo.sh; then
	failed+="${failed:+, }demo"
	exit 1
fi
hack/stop.sh
if [ -n "$short" ]; then
	export RUN='^TestTrace$'
else
	# The end-to-end tests wait for much; the checks take the CPU time that they leave.
	setsid hack/checks.sh later sandbox >"$SANDBOX.log" 2>&1 &
	checks=$!
fi
run "end to end" hack/e2e.sh
if [ -n "$checks" ]; then
	say "wait for the checks"
	run "checks, after the end-to-end tests" wait "$checks"
	checks=
	cat "$SANDBOX.log" >&2
fi
[ -z "$failed" ] || exit 1
say "all tests passed"
