#!/usr/bin/env bash
# The linters, all from Go modules: gofmt, go vet, and hack/berthlint (staticcheck,
# errorlint, gocyclo, sloglint, modernize; staticcheck.conf says which checks).
# The import rules and the package comments are ordinary tests: hack/rules.
# Then, that nothing is exported which no other package uses: hack/deadexports. Last, that generated files are fresh: hack/fresh.sh.
source "$(dirname "$0")/lib.sh"
need_go
berthlint=$BIN/berthlint

unformatted=$(gofmt -l $(git ls-files '*.go' | grep -v zz_generated))
[ -z "$unformatted" ] || fail "not gofmt'ed: $unformatted (run gofmt -w on them)"
mkdir -p "$BIN"
# The same program in each clone and commit: staticcheck keeps its results per program, and takes 10 minutes without them.
go build -C hack/berthlint -buildvcs=false -o "$berthlint" .
for module in . kube kube/helm kube/promql hack/berthlint hack/images; do
	say "vet and berthlint in $module"
	# The embedded Kubernetes (kube/cmd/hyperkube) is left out: one file, an hour of other people's types.
	packages=$(go list -C "$module" ./... | grep -v /cmd/hyperkube)
	(cd "$module" && go vet $packages && "$berthlint" $packages)
done
say "exported names that no other package uses"
go run ./hack/deadexports . kube hack/images
hack/fresh.sh
