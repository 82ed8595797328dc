#!/usr/bin/env bash
# Everything that must pass. What this machine does not allow is named at the
# end, with the reason; in CI (CI=true) it is a failure.
source "$(dirname "$0")/lib.sh"
need_go
check_sandbox test
if [ ${#sandbox_reasons[@]} != 0 ] && in_ci; then
	fail "the end-to-end tests cannot run here, and CI is set, where leaving them out is a failure:
$(print_reasons)"
fi

trap print_times EXIT
# First, so that a machine that cannot build it says so early.
if [ ${#sandbox_reasons[@]} = 0 ]; then
	timed build hack/build.sh sandbox
fi
timed "unit tests" hack/unit.sh
# Berth against Kubernetes' own code. The kubelet's managers need what the end-to-end tests need.
beside=(./test/dra ./test/policies ./test/scheduler ./internal/preemption ./cmd/berth-scheduler)
[ ${#sandbox_reasons[@]} != 0 ] || beside+=(./test/apiserver ./test/devicemanager)
timed "beside Kubernetes' own code" go test -C kube -count=1 -timeout 20m "${beside[@]}"
timed "benchmark of the scheduler, a few nodes" go test -C kube -count=1 -timeout 5m ./test/schedulerbench/...
if [ ${#sandbox_reasons[@]} != 0 ]; then
	timed "lint and fuzzing" hack/checks.sh
	say "all other tests passed; SKIPPED: the end-to-end tests, because:"
	print_reasons >&2
	exit 0
fi
SANDBOX=$(mktemp -d /tmp/berth-test.XXXXXX)
export SANDBOX
checks=
# end stops what still runs. The checks are a process group.
end() {
	[ -z "$checks" ] || kill -- "-$checks" 2>/dev/null || true
	hack/stop.sh || true
	rm -rf "$SANDBOX" "$SANDBOX.log"
	print_times
}
trap end EXIT
say "the demo"
timed demo hack/demo.sh
hack/stop.sh
# The end-to-end tests wait for much; the linters and fuzzing take the CPU time that they leave.
LATER=1 setsid hack/checks.sh >"$SANDBOX.log" 2>&1 &
checks=$!
timed "end to end" hack/e2e.sh
say "wait for lint and fuzzing"
status=0
timed "lint and fuzzing, after the end-to-end tests" wait "$checks" || status=$?
checks=
cat "$SANDBOX.log" >&2
[ $status = 0 ] || exit $status
say "all tests passed"
