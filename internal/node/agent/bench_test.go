package agent

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkStandalone calls a whole agent (simulated hardware, real ledger, real Unix sockets, no Kubernetes) as the
// kubelet does, and prints the median and the 99th percentile in microseconds. The target for both calls is a median
// under 200.
func BenchmarkStandalone(b *testing.B) {
	for _, profile := range []string{"a100x8-40g", "v100x8-hybrid-mesh", "a100x16"} {
		bench := newBench(b, profile)
		ids := bench.await(func(s state) bool { return len(s.Healthy) == len(inventoryOf(b, bench.machine)) }).Healthy
		for _, size := range []int{1, 2, 4, 8} {
			b.Run(profile+"/GetPreferredAllocation/"+strconv.Itoa(size), func(b *testing.B) {
				measure(b, func(i int) error {
					// A different device is unavailable each time, so that no response equals the previous one.
					available := slices.Delete(slices.Clone(ids), i%len(ids), i%len(ids)+1)
					_, err := bench.kubelet.Preferred(b.Context(), resource, available, nil, min(size, len(available)))
					return err
				})
			})
			b.Run(profile+"/Allocate/"+strconv.Itoa(size), func(b *testing.B) {
				measure(b, func(i int) error {
					_, err := bench.kubelet.Allocate(b.Context(), resource, ids[:size])
					return err
				})
			})
		}
	}
}

func measure(b *testing.B, call func(i int) error) {
	var times []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		if err := call(i); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	at := func(share int) float64 {
		return float64(times[(len(times)-1)*share/100].Nanoseconds()) / 1000
	}
	b.ReportMetric(at(50), "p50-us")
	b.ReportMetric(at(99), "p99-us")
}
