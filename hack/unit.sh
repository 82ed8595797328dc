#!/usr/bin/env bash
# Unit tests of all modules. The nested module's end-to-end tests are not among them.
source "$(dirname "$0")/lib.sh"
need_go
files_in_memory
status=0
# unit NAME [arguments of stage]: a stage that does not keep the later ones from running. go vet of all tests is lint.sh's.
unit() { stage "$@" -vet=off -ldflags=-w || status=1; }

# The race detector makes each step up to ten times as slow. It watches the packages in which goroutines can meet: those that start some,
# lock or serve.
meets='^[^/]*\bgo (func\(|[a-zA-Z_.]+\()|"sync["/]|"net/http["/]|errgroup|synctest\.'
# Tests that do one step after the other, and many of them; scripts start berth some 900 times.
sequential='^(TestScripts|TestGoldens|TestExitCodes|TestCutOff)$'
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./...)
concurrent=() plain=() named=()
while read -r package dir; do
	if grep -qsE "$meets" "$dir"/*.go; then concurrent+=("$package"); else plain+=("$package"); fi
	! grep -qshE "^func ${sequential:1:-1}\(" "$dir"/*_test.go || named+=("$package")
done <<<"$packages"
# Many of their tests wait, so twice as many packages as CPUs run side by side.
unit "unit tests with the race detector" -race -p $((2 * $(nproc))) -timeout 20m -skip "$sequential" "${concurrent[@]}"
unit "unit tests of packages without goroutines" -timeout 20m "${plain[@]}"
unit "tests that run one step after the other" -run "$sequential" "${named[@]}"
# Kubernetes' scheduler takes 10 minutes to compile with the race detector: the tests that link it run without it, in checks.sh.
unit "unit tests of the nested module" -C kube -race $(go list -C kube ./internal/... | grep -v /internal/preemption)
# Go caches results, and does not see that a file outside the module has changed.
unit "the chart, rendered with Helm" -C kube/helm -count=1 ./...
unit "well-known queries over the metrics, with Prometheus' engine" -C kube/promql ./...
unit "unit tests of the images" -C hack/images -race ./...
exit $status
