package replay

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// openb finds a file of the openb traces: in $BERTH_OPENB, or in shared/data/openb beside or in a folder above this one.
func openb(tb testing.TB, name string) string {
	tb.Helper()
	if dir := os.Getenv("BERTH_OPENB"); dir != "" {
		return filepath.Join(dir, name)
	}
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "shared", "data", "openb", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	tb.Skip("the openb traces are not here; set BERTH_OPENB to their folder")
	return ""
}

func load[T any](tb testing.TB, name string, read func(string, *os.File) ([]T, error)) []T {
	tb.Helper()
	file, err := os.Open(openb(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	list, err := read(name, file)
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

func openbTrace(tb testing.TB, name string) *Trace {
	tb.Helper()
	return &Trace{
		Nodes: load(tb, "openb_node_list_gpu_node.csv", func(n string, f *os.File) ([]fleet.Node, error) { return ReadNodes(n, f) }),
		Pods:  load(tb, "openb_pod_list_"+name+".csv", func(n string, f *os.File) ([]fleet.Shape, error) { return ReadPods(n, f) }),
	}
}

// TestPublished compares the baselines with the publication, and pack with FGD: two seeds of one trace, or with BERTH_SOAK all
// traces with the ten seeds of the protocol.
func TestPublished(t *testing.T) {
	traces, seeds, slack := []string{"default"}, 2, 0.5
	if os.Getenv("BERTH_SOAK") != "" {
		traces, seeds, slack = []string{"default", "cpu100", "gpushare40", "gpuspec10", "multigpu20"}, 10, 0
	}
	published := load(t, "published_allocation_percent.csv", func(n string, f *os.File) ([]Published, error) { return ReadPublished(n, f) })
	for _, name := range traces {
		t.Run(name, func(t *testing.T) {
			options := Options{Policies: policyNames(), Inflate: 1.3, Parallel: runtime.GOMAXPROCS(0), Now: time.Now}
			for i := range seeds {
				options.Seeds = append(options.Seeds, 42+uint64(i))
			}
			trace := openbTrace(t, name)
			runs, err := RunAll(t.Context(), trace, options)
			if err != nil {
				t.Fatal(err)
			}
			report := NewReport(trace, options, runs, OfTrace(published, "openb_pod_list_"+name+".csv"))
			at := map[string]map[string]float64{}
			for i, result := range report.Results {
				at[result.Policy] = result.AllocationPercent
				t.Logf("%-13s %.2f %.2f, published %.2f %.2f, %d evaluations per pod, %.0f decisions/s", result.Policy, result.AllocationPercent["at100"], result.AllocationPercent["at130"],
					result.Published["at100"].Mean, result.Published["at130"].Mean, result.Evaluations/uint64(result.Pods), float64(runs[i*seeds].arrivalsOf)/runs[i*seeds].Elapsed.Seconds())
				for key, known := range result.Published {
					if got := result.AllocationPercent[key]; got < known.Min-slack || got > known.Max+slack {
						t.Errorf("%s %s: %.2f; want %.2f to %.2f", result.Policy, key, got, known.Min-slack, known.Max+slack)
					}
				}
			}
			for _, key := range []string{"at100", "at130"} {
				if at["pack"][key] <= at["FGD"][key] {
					t.Errorf("%s: pack %.2f, FGD %.2f; want more", key, at["pack"][key], at["FGD"][key])
				}
			}
			if name == "default" && at["pack"]["at130"] < 95.85 {
				t.Errorf("pack allocates %.2f; want at least 95.85", at["pack"]["at130"])
			}
		})
	}
}

// TestPermutation: a permutation of the node list gives the same results on a trace of 1,213 nodes, and so the same mean.
func TestPermutation(t *testing.T) {
	trace := openbTrace(t, "default")
	options := Options{Policies: AllNames(), Seeds: []uint64{42, 43}, Inflate: 1.05, Parallel: runtime.GOMAXPROCS(0)}
	want, err := RunAll(t.Context(), trace, options)
	if err != nil {
		t.Fatal(err)
	}
	nodes := slices.Clone(trace.Nodes)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	got, err := RunAll(t.Context(), &Trace{nodes, trace.Pods}, options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if diff := cmp.Diff(want[i].Samples, got[i].Samples); diff != "" {
			t.Errorf("%s, seed %d (-list +permutation):\n%s", want[i].Policy, want[i].Seed, diff)
		}
	}
}

// TestRenamed: with the names of equal nodes exchanged, ties go to other nodes, and the mean over ten seeds stays the same within 0.2.
func TestRenamed(t *testing.T) {
	if os.Getenv("BERTH_SOAK") == "" {
		t.Skip("140 runs; set BERTH_SOAK")
	}
	trace := openbTrace(t, "default")
	options := Options{Policies: policyNames(), Inflate: 1.3, Parallel: runtime.GOMAXPROCS(0)}
	for i := range 10 {
		options.Seeds = append(options.Seeds, 42+uint64(i))
	}
	means := func(nodes []fleet.Node) map[string]float64 {
		runs, err := RunAll(t.Context(), &Trace{nodes, trace.Pods}, options)
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]float64{}
		for _, result := range NewReport(trace, options, runs, nil).Results {
			at[result.Policy] = result.AllocationPercent["at130"]
		}
		return at
	}
	nodes := slices.Clone(trace.Nodes)
	for i, k := range rand.New(rand.NewPCG(1, 1)).Perm(len(nodes)) {
		nodes[i].Name = trace.Nodes[k].Name
	}
	want := means(trace.Nodes)
	for policy, got := range means(nodes) {
		t.Logf("%-13s %.2f %.2f", policy, want[policy], got)
		if diff := got - want[policy]; diff > 0.2 || diff < -0.2 {
			t.Errorf("%s: the mean at 130 %% is %.2f with other names; want %.2f within 0.2", policy, got, want[policy])
		}
	}
}

// TestTypicalShapes compares the number of typical shapes with that of the publication.
func TestTypicalShapes(t *testing.T) {
	for name, want := range map[string]int{"default": 35, "cpu100": 35, "gpushare40": 36, "multigpu20": 38} {
		if got := len(fleet.TypicalShapes(openbTrace(t, name).Pods, TypicalCover)); got != want {
			t.Errorf("%s: %d typical shapes; want %d", name, got, want)
		}
	}
}

// TestWork bounds how much is asked for a decision on 1,213 nodes: asking each node for each pod would be 1,213 evaluations.
func TestWork(t *testing.T) {
	runs, err := RunAll(t.Context(), openbTrace(t, "default"), Options{Policies: []string{"pack"}, Seeds: []uint64{42}, Inflate: 1.3})
	if err != nil {
		t.Fatal(err)
	}
	stats := runs[0].Stats
	if stats.Evaluations > 45*stats.Decisions || stats.Scores > 20*stats.Decisions {
		t.Errorf("%+v; want at most 45 evaluations and 20 scores per decision", stats)
	}
}

// BenchmarkDecisions prints decisions per second on 1,213 nodes.
func BenchmarkDecisions(b *testing.B) {
	trace := openbTrace(b, "default")
	decisions := 0
	for b.Loop() {
		runs, err := RunAll(b.Context(), trace, Options{Policies: []string{"pack"}, Seeds: []uint64{42}, Inflate: 1.3})
		if err != nil {
			b.Fatal(err)
		}
		decisions += runs[0].arrivalsOf
	}
	b.ReportMetric(float64(decisions)/b.Elapsed().Seconds(), "decisions/s")
}
