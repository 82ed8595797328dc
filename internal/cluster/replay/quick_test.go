package replay

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	dir := "/work/shared/data/openb/"
	nf, _ := os.Open(dir + "openb_node_list_gpu_node.csv")
	nodes, err := ReadNodes("n", nf)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"default", "cpu100", "gpushare40", "gpuspec10", "multigpu20"} {
		pf, _ := os.Open(dir + "openb_pod_list_" + name + ".csv")
		pods, err := ReadPods("p", pf)
		if err != nil {
			t.Fatal(err)
		}
		tr := &Trace{nodes, pods}
		var seeds []uint64
		for s := uint64(42); s < 52; s++ {
			seeds = append(seeds, s)
		}
		runs, err := RunAll(context.Background(), tr, Options{Policies: Names(), Seeds: seeds, Inflate: 1.3, Parallel: 2, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		for p, pol := range Names() {
			var a, b, dps float64
			var ev, sc uint64
			for i := range seeds {
				r := runs[p*len(seeds)+i]
				x, _ := r.Allocated(100)
				y, _ := r.Allocated(len(r.Samples) - 1)
				a += x / 10
				b += y / 10
				dps += float64(r.Arrivals) / r.Elapsed.Seconds() / 10
				ev += r.Stats.Evaluations / 10
				sc += r.Stats.Scores / 10
			}
			fmt.Printf("%-12s %-14s %.2f %.2f  %.0f/s eval %d scores %d arrivals %d samples %d\n", name, pol, a, b, dps, ev, sc, runs[0].Arrivals, len(runs[0].Samples))
		}
	}
}
