#!/usr/bin/env bash
# Makes the generated files again: deep copies and CRDs of api/, and what
# go:generate lines ask for: docs/cli and others.
source "$(dirname "$0")/lib.sh"
need_go
go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.0 object crd paths=./api/... output:crd:dir=charts/berth/crds
go generate ./...
