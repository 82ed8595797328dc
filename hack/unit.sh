#!/usr/bin/env bash
# Unit tests of all modules with the race detector. The nested module's
# end-to-end tests are not among them.
source "$(dirname "$0")/lib.sh"
need_go
say "unit tests of the root module"
# Tests that do one step after the other, and many of them: with the race detector they take up to ten times as long, since it slows
# down each step, and scripts start berth some 900 times, which takes 0.6 s of CPU time each. They run without it.
sequential='^(TestScripts|TestGoldens|TestExitCodes|TestCutOff|TestOddGPUsAgainstTwin|TestRandomLayouts|TestExactPlacements|TestPermutation)$'
# go vet of all tests is lint.sh's. The tests of the agent alone take half of the default limit on 2 CPUs.
go test -race -vet=off -timeout 20m -skip "$sequential" ./...
# The openb traces are not part of the repository: the tests that need them are skipped without.
replay=./internal/cluster/replay folder=$PWD
while [ -z "${BERTH_OPENB:-}" ] && [ ! -d "$folder/shared/data/openb" ]; do
	if [ -z "$folder" ]; then
		say "the openb traces are not here (their folder is \$BERTH_OPENB): placements are not compared with them"
		replay=
		break
	fi
	folder=${folder%/*}
done
stage "tests of the root module without the race detector" -vet=off -run "$sequential" ./internal/cli ./internal/cli/complete ./internal/cli/simcmd \
	./internal/cluster/operator/validation ./internal/core/mig ${replay:+"$replay"}
say "unit tests of the nested module"
# Kubernetes' scheduler takes 10 minutes to compile with the race detector: the tests that link it run without it, in test.sh.
go test -C kube -race -vet=off $(go list -C kube ./internal/... | grep -v /internal/preemption)
say "the chart, rendered with Helm"
# Go caches results, and does not see that a file outside the module has changed.
go test -C kube/helm -count=1 ./...
say "well-known queries over the metrics, with Prometheus' engine"
go test -C kube/promql ./...
say "unit tests of the images"
go test -C hack/images -race ./...
