#!/usr/bin/env bash
# Unit tests of all modules with the race detector. The nested module's
# end-to-end tests are not among them.
source "$(dirname "$0")/lib.sh"
need_go
say "unit tests of the root module"
# The tests of the agent alone take half of the default limit on 2 CPUs.
go test -race -timeout 20m ./...
say "unit tests of the nested module"
# Kubernetes' scheduler takes 10 minutes to compile with the race detector: the tests that link it run without it, in test.sh.
go test -C kube -race $(go list -C kube ./internal/... | grep -v /internal/preemption)
say "the chart, rendered with Helm"
go test -C kube/helm ./...
say "well-known queries over the metrics, with Prometheus' engine"
go test -C kube/promql ./...
say "unit tests of the images"
go test -C hack/images -race ./...
