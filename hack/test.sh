#!/usr/bin/env bash
# Everything that must pass. What this machine does not allow is named at the
# end, with the reason; it is never passed over in silence.
source "$(dirname "$0")/lib.sh"
need_go
skipped=$(sandbox_missing test)

# First, so that a machine that cannot build it says so early.
if [ -z "$skipped" ]; then
	hack/build.sh sandbox
fi
hack/lint.sh
hack/unit.sh
hack/fuzz.sh
if [ -n "$skipped" ]; then
	say "SKIPPED: the end-to-end tests, because:"
	sed 's/^/         - /' <<<"$skipped"
else
	SANDBOX=$(mktemp -d /tmp/berth-test.XXXXXX)
	export SANDBOX
	trap 'hack/stop.sh || true; rm -rf "$SANDBOX"' EXIT
	hack/e2e.sh
fi
say "all tests passed${skipped:+, but the end-to-end tests were skipped}"
