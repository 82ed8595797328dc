#!/usr/bin/env bash
# The large counts. The seed is printed; BERTH_SEED=N repeats a run. Each stage says how many
# tests and random walks ran, and fails when it ran none; at the end all of them are listed.
source "$(dirname "$0")/lib.sh"
need_go
need_sandbox soak
export BERTH_SOAK=1 BERTH_SEED=${BERTH_SEED:-$RANDOM$RANDOM} BERTH_BIN=$BIN
say "seed $BERTH_SEED (BERTH_SEED=$BERTH_SEED make soak repeats this)"
files_in_memory

stage_report=$(mktemp)
trap 'echo "stages of seed $BERTH_SEED:"; sed "s/^/  /" "$stage_report"; rm -f "$stage_report"' EXIT

# walks NAME CHECKS -run PATTERN PACKAGES: a stage of rapid's walks. Only packages whose tests
# use rapid know its flags.
walks() {
	local name=$1 checks=$2
	shift 2
	stage "$name" -count=1 -timeout 120m "$@" -rapid.checks="$checks" -rapid.seed="$BERTH_SEED"
}

walks "10,000 random walks of each property" 10000 -run 'Twin|TestTable|TestChooseOn|TestImprove' ./internal/core/placement ./internal/node/ledger ./internal/node/inventory
stage "random sequences of faults, 10,000" -count=1 -timeout 60m -run 'TestVerdictsMatchTwin' ./internal/core/health
walks "plans for random layouts of each kind of GPU against an exhaustive search" 2000 -run '.' ./internal/core/mig
stage "10,000 random claims against the scheduler's allocator" -count=1 -timeout 30m -run '^TestAllocator$' ./internal/cluster/drafleet
stage "NVML of every simulated machine through the library of C" -count=1 -timeout 30m -run '^TestSharedLibrary$' ./internal/hardware/nvidia
stage "every MIG layout applied on every simulated machine, killed at each step" -count=1 -timeout 60m -run '^TestLayoutsOnSimulatedMachines$|^TestKilled' ./internal/node/migapply
walks "100,000 random walks of MIG changes" 100000 -run '^TestConverges$' ./internal/node/migapply
# Another stage of the harness or the cluster is one more line: stage NAME -C kube ... -run PATTERN PACKAGE.
stage "10,000 pods against the kubelet's own device manager, beside a foreign List every 20 ms" -v -C kube -count=1 -timeout 60m -run '^TestForeignList$' ./test/devicemanager
stage "20,000 random steps of both APIs against the kubelet's own device manager and DRA manager" -v -C kube -count=1 -timeout 60m -run '^TestBothAPIs$' ./test/devicemanager
stage "gangs with devices of drivers against Kubernetes' own scheduler, pod by pod, on 400 random clusters" -v -C kube -count=1 -timeout 30m -run '^TestGangDevicesTwin$' ./test/scheduler
say "each fuzz target for a minute"
FUZZTIME=60s hack/fuzz.sh
hack/build.sh sandbox
hack/build.sh apiserver 1.35.4
hack/build.sh apiserver 1.36.3
stage "the operator, the agent and the commands on API servers of 1.34 to 1.37, at rest for a minute" -v -C kube -count=1 -timeout 30m -run '^TestVersions$' ./test/apiserver
stage "200 pods on the cluster beside a foreign List every 20 ms" -v -C kube -count=1 -timeout 60m -run '^TestForeignList$' ./test/e2e
stage "200 pods, 8 at a time, with 50 restarts of the agent" -v -C kube -count=1 -timeout 60m -run '^TestChurn$' ./test/e2e
stage "the agent killed at random moments of MIG and MPS changes" -v -C kube -count=1 -timeout 60m -run '^TestReconfigure$/^Killed' ./test/e2e
stage "300 random steps of DRA and the device plugin on one node, and 10 upgrades of the agent while claims are prepared" -v -C kube -count=1 -timeout 60m -run '^TestDRA$/^(RandomSteps|Upgrade)$' ./test/e2e
stage "the agent as a process of the node" -v -C kube -count=1 -timeout 30m -run '^TestAgentAsHostProcess$' ./test/e2e
stage "50 reboots of a node with 20 GPU pods, with each API" -v -C kube -count=1 -timeout 180m -run '^TestOperateReboot$' ./test/e2e
stage "the last release installed, upgraded to this version, and back" -v -C kube -count=1 -timeout 30m -run '^TestInstallChart$' ./test/e2e
stage "berth fit and the scheduler on 200 random claims" -v -C kube -count=1 -timeout 30m -run '^TestDRAFit$' ./test/e2e
stage "1,000 random pods on four kubelets, their GPUs as predicted" -v -C kube -count=1 -timeout 60m -run '^TestSchedulerPlaces$' ./test/e2e
stage "two schedulers under load, the leader ended 20 times" -v -C kube -count=1 -timeout 30m -run '^TestSchedulerRuns$' ./test/e2e
stage "5,000 random steps of gangs on 8 nodes with failures in between" -v -C kube -count=1 -timeout 90m -run '^TestGangRuns$' ./test/e2e
stage "10 minutes of attacks on the agents, the operator and the page" -v -C kube -count=1 -timeout 40m -run '^TestInstallChart$/^(Renderings|Refused|Install|Flood)$' ./test/e2e
stage "the operator on a cluster of 1,000 nodes" -v -C kube -count=1 -timeout 30m -run '^TestOperateScale$' ./test/e2e
