#!/usr/bin/env bash
# The checks that take CPU time more than they wait: the tests beside Kubernetes' own code, the linters, and each fuzz target for a moment. A
# failed one does not keep the others from running. The arguments: "later" for the lowest priority, beside other work; "sandbox" where the
# programs of the sandbox are built and can run.
source "$(dirname "$0")/lib.sh"
need_go
files_in_memory
trap print_times EXIT
status=0
check() { timed "$@" || status=1; }
beside=(./test/dra ./test/policies ./test/scheduler ./internal/preemption ./cmd/berth-scheduler)
for argument in "$@"; do
	case $argument in
	later)
		# The priority of a session, and within it; without the first the kernel gives each session an equal share (man 7 sched, autogroup).
		{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true
		renice -n 19 -p $$ >/dev/null
		;;
	# The kubelet's managers and the API server need what the end-to-end tests need.
	sandbox) beside+=(./test/apiserver ./test/devicemanager) ;;
	*) fail "checks.sh knows later and sandbox, not $argument" ;;
	esac
done
check lint hack/lint.sh
FUZZTIME=${FUZZTIME:-1s} check fuzzing hack/fuzz.sh
check "beside Kubernetes' own code" stage "beside Kubernetes' own code" -C kube -vet=off -ldflags=-w -count=1 -timeout 20m "${beside[@]}"
check "benchmark of the scheduler, a few nodes" stage "benchmark of the scheduler" -C kube -vet=off -ldflags=-w -count=1 -timeout 5m ./test/schedulerbench/...
exit $status
