#!/usr/bin/env bash
# Pushes the image of each program to REGISTRY, tagged with TAG, by default the version. Prints each reference with its digest.
source "$(dirname "$0")/lib.sh"
[ -n "${REGISTRY:-}" ] || fail "no registry: name it as in: make push REGISTRY=registry.example.com/berth"
TAG=${TAG:-$(version)} hack/images.sh >&2
"$BIN/berth-images" push --images "$BIN/images" "$REGISTRY"
