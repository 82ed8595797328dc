#!/usr/bin/env bash
# Unit tests of all modules with the race detector. The nested module's
# end-to-end tests are not among them.
source "$(dirname "$0")/lib.sh"
need_go
say "unit tests of the root module"
# Scripts and goldens start berth some 900 times. With the race detector each start takes 0.6 s of CPU time, and finds no race that the
# tests of the commands' packages do not: those scripts run without it.
scripts='^(TestScripts|TestGoldens|TestExitCodes)$'
# The tests of the agent alone take half of the default limit on 2 CPUs. They wait for half of it: one package more than CPUs at a time.
go test -race -timeout 20m -p $(($(nproc) + 1)) -skip "$scripts" ./...
stage "scripts of berth" -run "$scripts" ./internal/cli ./internal/cli/simcmd
say "unit tests of the nested module"
# Kubernetes' scheduler takes 10 minutes to compile with the race detector: the tests that link it run without it, in test.sh.
go test -C kube -race $(go list -C kube ./internal/... | grep -v /internal/preemption)
say "the chart, rendered with Helm"
go test -C kube/helm ./...
say "well-known queries over the metrics, with Prometheus' engine"
go test -C kube/promql ./...
say "unit tests of the images"
go test -C hack/images -race ./...
