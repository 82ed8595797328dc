#!/usr/bin/env bash
# The checks that need neither a cluster nor what another stage made: the linters, and each fuzz target for a moment. With LATER=1 at the
# lowest priority, beside other work; in soak.sh, fuzzing is longer.
source "$(dirname "$0")/lib.sh"
trap print_times EXIT
if [ -n "${LATER:-}" ]; then
	# The priority of a session, and within it; without the first the kernel gives each session an equal share (man 7 sched, autogroup).
	{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true
	renice -n 19 -p $$ >/dev/null
fi
timed lint hack/lint.sh
FUZZTIME=${FUZZTIME:-1s} timed fuzzing hack/fuzz.sh
