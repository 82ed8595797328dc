#!/usr/bin/env bash
# The linters, all from Go modules: gofmt, go vet, staticcheck (staticcheck.conf
# says which checks). The import rules and the package comments are ordinary
# tests: architecture_test.go.
source "$(dirname "$0")/lib.sh"
need_go
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.7.0

unformatted=$(gofmt -l $(git ls-files '*.go' | grep -v zz_generated))
[ -z "$unformatted" ] || fail "not gofmt'ed: $unformatted (run gofmt -w on them)"
for module in . kube; do
	say "vet and staticcheck in $module"
	# The embedded Kubernetes (kube/cmd/hyperkube) is left out: one file, an hour of other people's types.
	packages=$(go list -C "$module" ./... | grep -v /cmd/hyperkube)
	(cd "$module" && go vet $packages && go run $staticcheck $packages)
done
