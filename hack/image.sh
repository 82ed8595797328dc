#!/usr/bin/env bash
# The agent's image, for deploy/agent.yaml.
source "$(dirname "$0")/lib.sh"
hack/build.sh
go run -C kube ./cmd/berth-sandbox agent-image --bin "$BIN" -o "$BIN/berth-agent.tar"
