#!/usr/bin/env bash
# The Go benchmarks whose figures are in docs/performance.md. With RUN=pairs only the calls in pairs, as ratios beside their bars.
source "$(dirname "$0")/lib.sh"
need_go
say "machine: $(nproc) cores, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"

# pairs prints each row of BenchmarkPairs as multiples of an empty call, and fails when one is above its bar.
pairs() {
	say "each ratio is to an empty call on the same connection; bars: preference 2x with 8 GPUs and 3x with 16, Allocate 1.3x of free GPUs and 3x of finished pods', refusal 300 ms"
	go test -run '^$' -bench '^BenchmarkPairs$' -benchtime "${BENCHTIME:-3s}" ./internal/node/agent |
		awk '
		function verdict(value, bar) { rows++; if (value > bar) { missed++; return "MISSED" } return "met" }
		!/^Benchmark/ { if (/FAIL|panic|---/) print; next }
		{
			for (i = 3; i < NF; i += 2) metric[$(i + 1)] = $i
			row = $1; sub(/^BenchmarkPairs\//, "", row); sub(/-[0-9]+$/, "", row)
			if (row ~ /refusal$/) {
				printf "%-56s longest %4d ms (300 ms, %s)\n", row, metric["longest-ms"], verdict(metric["longest-ms"], 300)
				next
			}
			first = row ~ /x16/ ? 3 : 2; second = row ~ /free$/ ? 1.3 : 3
			printf "%-56s empty %4.0f us, preference %4.0f us %.2fx (%sx, %s), Allocate %4.0f us %.2fx (%sx, %s)\n", row, metric["empty-us"],
				metric["preferred-us"], metric["preferred/empty"], first, verdict(metric["preferred/empty"], first),
				metric["allocate-us"], metric["allocate/empty"], second, verdict(metric["allocate/empty"], second)
			fflush()
		}
		END {
			if (rows == 0) { print "error: the benchmark printed no row" > "/dev/stderr"; exit 2 }
			printf "%d of %d bars met\n", rows - missed, rows
			exit missed > 0
		}'
	say "load $(cut -d' ' -f1-3 /proc/loadavg)"
}

if [ "${RUN:-.}" = pairs ]; then
	pairs
	exit
fi
# A pattern that matches no benchmark is an error; packages without one are left out.
go test -run '^$' -bench "${BENCH:-.}" -benchmem "${BENCHPKG:-./...}" |
	awk '/^(Benchmark|pkg:|ok|FAIL|---|panic)/ && !/no test files/ { print } /^Benchmark/ { n++ } END { if (n == 0) { print "error: no benchmark matches" > "/dev/stderr"; exit 2 } }'
