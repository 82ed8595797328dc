#!/usr/bin/env bash
# Berth's scheduler beside stock kube-scheduler, each against an etcd and API server of its own, with all loads: single pods, gangs, which the
# stock one schedules with Kubernetes' own gang scheduling, and other pods beside gangs. With the argument "gangs": the loads with gangs, also
# with Berth's scheduler that leaves gangs to Kubernetes. With "beside": other pods beside gangs. With "large": 5,000 nodes and 50,000 pods,
# Berth's alone. BENCH_ARGS are further arguments of schedulerbench (see its --help).
source "$(dirname "$0")/lib.sh"
need_go
hack/build.sh schedulers
say "machine: $(nproc) CPUs, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"
case ${1:-compare} in
gangs) set -- compare --load gangs,gangs-large,impossible,topology --scheduler stock,ours,berth-intree ;;
beside) set -- compare --load beside-equal,beside-kinds,beside-many,beside-segments,beside-unfit ;;
*) set -- "${1:-compare}" ;;
esac
# shellcheck disable=SC2086 # arguments, separated by spaces
exec "$BIN/schedulerbench" "$@" ${BENCH_ARGS:-}
