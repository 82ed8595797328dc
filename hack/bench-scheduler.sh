#!/usr/bin/env bash
# Berth's scheduler beside stock kube-scheduler, each against an etcd and API server of its own. With the argument "large": 5,000 nodes and
# 50,000 pods, Berth's alone. BENCH_ARGS are further arguments of schedulerbench (see its --help).
source "$(dirname "$0")/lib.sh"
need_go
hack/build.sh schedulers
say "machine: $(nproc) CPUs, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"
# shellcheck disable=SC2086 # arguments, separated by spaces
exec "$BIN/schedulerbench" "${1:-compare}" ${BENCH_ARGS:-}
