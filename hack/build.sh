#!/usr/bin/env bash
# Builds the programs into BIN; with the argument "sandbox" also the embedded
# Kubernetes, containerd and the sandbox.
source "$(dirname "$0")/lib.sh"
need_go
mkdir -p "$BIN"
# A line every 20 s tells that a long compile is alive.
(while sleep 20; do say "still compiling"; done) &
ticker=$!
trap 'kill $ticker 2>/dev/null || true' EXIT

# build MODULE-DIR OUTPUT PACKAGE [go build flags]: says so only when it takes long.
build() {
	local dir=$1 out=$2 package=$3
	shift 3
	local at=$SECONDS
	[ -e "$BIN/$out" ] || say "building $out"
	go build -C "$dir" -trimpath -o "$BIN/$out" "$@" "$package"
	[ $((SECONDS - at)) -lt 3 ] || say "built $out in $((SECONDS - at)) s"
}

build . berth ./cmd/berth
build . berth-agent ./cmd/berth-agent
# Static, since it runs on hosts with an older C library; not without cgo, since the
# toolkit's hooks reach go-nvml through its configuration package.
build . berth-cdi-hook ./cmd/berth-cdi-hook -tags=netgo,osusergo -ldflags='-s -w -linkmode external -extldflags "-static -Wl,--no-warnings"'
[ "${1:-}" = sandbox ] || exit 0

[ -e "$BIN/hyperkube" ] || say "the first build compiles Kubernetes and containerd: about 6 minutes on 2 cores; later ones take seconds"
# Static, and with one setting for all: a change of it compiles everything again.
export CGO_ENABLED=0
version=k8s.io/component-base/version
build kube workload ./cmd/workload -ldflags='-s -w'
# Without these Kubernetes would call itself v0.0.0.
build kube hyperkube ./cmd/hyperkube -ldflags="-s -w -X $version.gitVersion=v1.37.1 -X $version.gitMajor=1 -X $version.gitMinor=37 -X $version.gitCommit=none -X $version.gitTreeState=archive"
build kube/containerd containerd github.com/containerd/containerd/v2/cmd/containerd -ldflags='-s -w -X github.com/containerd/containerd/v2/version.Version=2.4.2' -tags=no_btrfs,no_devmapper,no_zfs,no_aufs
build kube/containerd containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 -ldflags='-s -w'
build kube berth-sandbox ./cmd/berth-sandbox
