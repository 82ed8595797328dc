#!/usr/bin/env bash
# The Go benchmarks whose figures are in docs/performance.md.
source "$(dirname "$0")/lib.sh"
need_go
say "machine: $(nproc) cores, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
# A pattern that matches no benchmark is an error; packages without one are left out.
go test -run '^$' -bench "${BENCH:-.}" -benchmem "${BENCHPKG:-./...}" |
	awk '/^(Benchmark|pkg:|ok|FAIL|---|panic)/ && !/no test files/ { print } /^Benchmark/ { n++ } END { if (n == 0) { print "error: no benchmark matches" > "/dev/stderr"; exit 2 } }'
