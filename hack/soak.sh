#!/usr/bin/env bash
# The large counts. docs/soak.md keeps for each stage at which commit it last passed, when, and with which seed. A run leaves out the stages
# that have passed at this commit, so that it goes on where the last one stopped; a failed stage does not keep the others from running. The
# seed is printed; BERTH_SEED=N repeats a run. Each stage says how many tests and random walks ran, and fails when it ran none.
source "$(dirname "$0")/lib.sh"
need_go
record=docs/soak.md
changed=$(git status --porcelain -- . ":!$record") || fail "make soak records the commit that it tests, and this is not a Git tree"
[ -z "$changed" ] || fail "the tree differs from its commit, which make soak records: commit or stash first
$changed"
commit=$(git log -1 --format=%h --abbrev=12 -- . ":!$record") # The record itself is committed later.
need_sandbox soak
export BERTH_SOAK=1 BERTH_SEED=${BERTH_SEED:-$RANDOM$RANDOM} BERTH_BIN=$BIN
say "commit $commit, seed $BERTH_SEED (BERTH_SEED=$BERTH_SEED make soak repeats this)"
files_in_memory

stage_report=$(mktemp)
status=0 passed=0 failed=()
trap 'rm -f "$stage_report"' EXIT

# soak NAME COMMAND...: runs a stage unless it has passed at this commit, and records that it has.
soak() {
	local name=$1 at=$SECONDS ran
	shift
	if grep -qF "| $name | \`$commit\` |" "$record"; then
		passed=$((passed + 1))
		return
	fi
	: >"$stage_report"
	if ! "$@"; then
		status=1
		failed+=("$name")
		return
	fi
	passed=$((passed + 1))
	ran=$(sed -n 's/^.*: \([0-9]* packages, .*\)$/\1/p' "$stage_report")
	grep -vF "| $name | " "$record" >"$stage_report" || true
	printf '| %s | `%s` | %s | %s | %d s | %s |\n' "$name" "$commit" "$(date -u +%F)" "$BERTH_SEED" $((SECONDS - at)) "${ran:-}" >>"$stage_report"
	cat "$stage_report" >"$record"
}

# tests NAME [arguments of stage]: a stage of tests.
tests() { soak "$1" stage "$@"; }

# walks NAME CHECKS -run PATTERN PACKAGES: a stage of rapid's walks. Only packages whose tests
# use rapid know its flags.
walks() {
	local name=$1 checks=$2
	shift 2
	tests "$name" -count=1 -timeout 120m "$@" -rapid.checks="$checks" -rapid.seed="$BERTH_SEED"
}

walks "10,000 random walks of each property" 10000 -run 'Twin|TestTable|TestChooseOn|TestImprove' ./internal/core/placement ./internal/node/ledger ./internal/node/inventory
tests "random sequences of faults, 10,000" -count=1 -timeout 60m -run 'TestVerdictsMatchTwin' ./internal/core/health
walks "plans for random layouts of each kind of GPU against an exhaustive search" 2000 -run '.' ./internal/core/mig
tests "10,000 random claims against the scheduler's allocator" -count=1 -timeout 30m -run '^TestAllocator$' ./internal/cluster/drafleet
tests "NVML of every simulated machine through the library of C" -count=1 -timeout 30m -run '^TestSharedLibrary$' ./internal/hardware/nvidia
tests "every MIG layout applied on every simulated machine, killed at each step" -count=1 -timeout 60m -run '^TestLayoutsOnSimulatedMachines$|^TestKilled' ./internal/node/migapply
walks "100,000 random walks of MIG changes" 100000 -run '^TestConverges$' ./internal/node/migapply
# Another stage of the harness or the cluster is one more line: tests NAME -C kube ... -run PATTERN PACKAGE.
tests "10,000 pods against the kubelet's own device manager, beside a foreign List every 20 ms" -v -C kube -count=1 -timeout 60m -run '^TestForeignList$' ./test/devicemanager
tests "20,000 random steps of both APIs against the kubelet's own device manager and DRA manager" -v -C kube -count=1 -timeout 60m -run '^TestBothAPIs$' ./test/devicemanager
tests "gangs with devices of drivers against Kubernetes' own scheduler, pod by pod, on 400 random clusters" -v -C kube -count=1 -timeout 30m -run '^TestGangDevicesTwin$' ./test/scheduler
FUZZTIME=60s soak "each fuzz target for a minute" hack/fuzz.sh
hack/build.sh sandbox
hack/build.sh apiserver 1.35.4
hack/build.sh apiserver 1.36.3
tests "the operator, the agent and the commands on API servers of 1.34 to 1.37, at rest for a minute" -v -C kube -count=1 -timeout 30m -run '^TestVersions$' ./test/apiserver
tests "200 pods on the cluster beside a foreign List every 20 ms" -v -C kube -count=1 -timeout 60m -run '^TestForeignList$' ./test/e2e
tests "200 pods, 8 at a time, with 50 restarts of the agent" -v -C kube -count=1 -timeout 60m -run '^TestChurn$' ./test/e2e
tests "the agent killed at random moments of MIG and MPS changes" -v -C kube -count=1 -timeout 60m -run '^TestReconfigure$/^Killed' ./test/e2e
tests "300 random steps of DRA and the device plugin on one node, and 10 upgrades of the agent while claims are prepared" -v -C kube -count=1 -timeout 60m -run '^TestDRA$/^(RandomSteps|Upgrade)$' ./test/e2e
tests "the agent as a process of the node" -v -C kube -count=1 -timeout 30m -run '^TestAgentAsHostProcess$' ./test/e2e
tests "50 reboots of a node with 20 GPU pods, with each API" -v -C kube -count=1 -timeout 180m -run '^TestOperateReboot$' ./test/e2e
tests "the last release installed, upgraded to this version, and back" -v -C kube -count=1 -timeout 30m -run '^TestInstallChart$' ./test/e2e
tests "berth fit and the scheduler on 200 random claims" -v -C kube -count=1 -timeout 30m -run '^TestDRAFit$' ./test/e2e
tests "1,000 random pods on four kubelets, their GPUs as predicted" -v -C kube -count=1 -timeout 60m -run '^TestSchedulerPlaces$' ./test/e2e
tests "two schedulers under load, the leader ended 20 times" -v -C kube -count=1 -timeout 30m -run '^TestSchedulerRuns$' ./test/e2e
tests "5,000 random steps of gangs on 8 nodes with failures in between" -v -C kube -count=1 -timeout 90m -run '^TestGangRuns$' ./test/e2e
tests "10 minutes of attacks on the agents, the operator and the page" -v -C kube -count=1 -timeout 40m -run '^TestInstallChart$/^(Renderings|Refused|Install|Flood)$' ./test/e2e
tests "the operator on a cluster of 1,000 nodes" -v -C kube -count=1 -timeout 30m -run '^TestOperateScale$' ./test/e2e
say "$passed stages have passed at commit $commit, ${#failed[@]} failed ($record)"
[ ${#failed[@]} = 0 ] || printf 'failed: %s\n' "${failed[@]}" >&2
exit $status
