#!/usr/bin/env bash
# The Go benchmarks whose figures are in docs/performance.md.
source "$(dirname "$0")/lib.sh"
need_go
say "machine: $(nproc) cores, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
go test -run '^$' -bench "${BENCH:-.}" -benchmem "${BENCHPKG:-./...}" | grep -E '^(Benchmark|pkg:|ok)' | grep -v 'no test files'
