#!/usr/bin/env bash
# Makes the generated files again: deep copies and CRDs of api/, and what
# go:generate lines ask for: docs/cli and others.
source "$(dirname "$0")/lib.sh"
need_go
go generate ./...
