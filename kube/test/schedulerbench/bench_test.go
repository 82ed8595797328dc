package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-gpu/berth/kube/internal/plugins"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/command"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/controlplane"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
)

// TestMain makes the test binary all programs of a benchmark, so that the tests need none that was built before.
func TestMain(m *testing.M) {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	switch name {
	case controlplane.Command:
		os.Exit(run())
	case "kube-scheduler":
		os.Args = os.Args[1:]
		os.Exit(cli.Run(app.NewSchedulerCommand()))
	case "berth-scheduler":
		os.Args = os.Args[1:]
		var options []app.Option
		for name, factory := range plugins.Registry(legacyregistry.Register) {
			options = append(options, app.WithPlugin(name, factory))
		}
		os.Exit(cli.Run(app.NewSchedulerCommand(options...)))
	}
	os.Exit(m.Run())
}

// bench runs a benchmark with the schedulers in this binary.
func bench(t *testing.T, args string) report.Report {
	t.Helper()
	root := command.New(func() (command.Programs, error) {
		self, err := os.Executable()
		return command.Programs{Self: self, Stock: []string{self, "kube-scheduler"}, Ours: []string{self, "berth-scheduler"}}, err
	})
	var output, lines bytes.Buffer
	root.SetOut(&output)
	root.SetErr(&lines)
	root.SetArgs(strings.Fields(args + " --stalled 20s -o json"))
	// Bars are not checked here: the machine runs other tests too.
	if err := root.ExecuteContext(t.Context()); err != nil && !errors.Is(err, command.ErrMissed) {
		t.Fatalf("%v; its progress:\n%s", err, &lines)
	}
	var r report.Report
	if err := json.Unmarshal(output.Bytes(), &r); err != nil {
		t.Fatalf("read %q: %v", &output, err)
	}
	return r
}

// TestBenchmark runs a benchmark of a few nodes. It fails when a pod is not bound, so that it proves that mixed pods fit in the order
// in which both schedulers take them, and that Kubernetes' own gang scheduling binds whole gangs where they have to be.
func TestBenchmark(t *testing.T) {
	tests := map[string]struct {
		args     string
		wantRuns []string
		wantPods int
		wantGPUs int
		// wantBars are what the bars are about, besides the loads.
		wantBars []string
		// wantGangs are those of runs with Kubernetes' own gang scheduling, without the times; Count is that of all runs.
		wantGangs report.Gangs
		// wantBound is the number of pods that these runs bind.
		wantBound int
	}{
		"compare": {args: "compare --load mixed --nodes 30 --rounds 1",
			wantRuns: []string{"stock", "ours"}, wantPods: 127, wantGPUs: 240, wantBound: 127,
			wantBars: []string{"pods/s, ours/stock", "pods without a node"}},
		"gangs": {args: "compare --load gangs --nodes 10 --rounds 1",
			wantRuns: []string{"stock", "ours"}, wantPods: 40, wantGPUs: 40, wantBound: 40, wantGangs: report.Gangs{Count: 5, Whole: 5},
			wantBars: []string{"pods/s, ours/stock", "pods without a node", "gangs of which some pods are bound"}},
		"gangs within racks": {args: "compare --load topology --nodes 20 --rounds 1 --scheduler stock,berth-intree",
			wantRuns: []string{"stock", "berth-intree"}, wantPods: 16, wantGPUs: 128, wantBound: 16,
			wantGangs: report.Gangs{Count: 4, Whole: 4, Restricted: 4},
			wantBars:  []string{"pods without a node", "gangs of which some pods are bound", "gangs on nodes that are too far apart"}},
		"a gang that does not fit": {args: "compare --load impossible --nodes 20 --rounds 1 --scheduler stock",
			wantRuns: []string{"stock"}, wantPods: 10, wantGPUs: 80, wantGangs: report.Gangs{Count: 1},
			wantBars: []string{"bound pods of a gang that does not fit"}},
		"large, some without a GPU": {args: "large --nodes 10 --pods 150",
			wantRuns: []string{"ours"}, wantPods: 150, wantGPUs: 72,
			wantBars: []string{"peak memory in bytes", "CPU time of the plugin's scoring in µs/pod", "pods without a node that fit on one"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			r := bench(t, tc.args)
			var bars []string
			for _, b := range r.Bars {
				bars = append(bars, b.What)
			}
			if len(r.Runs) != len(tc.wantRuns) || !slices.Equal(bars, tc.wantBars) {
				t.Fatalf("%d runs and bars %q, want runs of %v and %q", len(r.Runs), bars, tc.wantRuns, tc.wantBars)
			}
			for i, got := range r.Runs {
				if got.Scheduler != tc.wantRuns[i] || got.Pods != tc.wantPods || got.GPUs != tc.wantGPUs {
					t.Errorf("run %d of %s with %d pods and %d GPUs, want %s, %d and %d", i, got.Scheduler, got.Pods, got.GPUs,
						tc.wantRuns[i], tc.wantPods, tc.wantGPUs)
				}
				checkMeasured(t, got, strings.HasPrefix(tc.args, "large"))
				checkGangs(t, got, tc.wantGangs, tc.wantBound)
			}
			if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) != 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}

// checkMeasured checks that a run was measured.
func checkMeasured(t *testing.T, got report.Run, profiled bool) {
	t.Helper()
	if got.CPUSeconds <= 0 || got.PeakBytes < 20e6 || got.ScoringMicroseconds <= 0 {
		t.Errorf("%s was not measured: %+v", got.Scheduler, got)
	}
	if timed := got.PodsPerSecond > 0 || got.Refusal != nil && got.Refusal.Seconds > 0; !timed {
		t.Errorf("%s has no time: %+v", got.Scheduler, got)
	}
	if has := got.Profile != nil && got.Profile.SampledSeconds > 0; has != profiled {
		t.Errorf("%s has the profile %+v", got.Scheduler, got.Profile)
	}
	// The stock scheduler has no plugin of ours; ours calls it, so that its profile is in force.
	if ours := got.Scheduler != report.Stock; (got.PluginCalls > 0) != ours {
		t.Errorf("%s: %d calls of the plugin", got.Scheduler, got.PluginCalls)
	}
}

// checkGangs checks what became of the gangs of a run.
func checkGangs(t *testing.T, got report.Run, want report.Gangs, bound int) {
	t.Helper()
	if want.Count == 0 {
		if got.Gangs != nil || len(got.Gates) != 0 {
			t.Errorf("%s ran with the gates %q, and has the gangs %+v", got.Scheduler, got.Gates, got.Gangs)
		}
		return
	}
	if got.Gangs == nil || got.Gangs.Count != want.Count {
		t.Fatalf("%s has the gangs %+v, want %d", got.Scheduler, got.Gangs, want.Count)
	}
	if got.Scheduler == report.Ours {
		return
	}
	if got.Gangs.Attempts < want.Count || got.Gangs.CycleMilliseconds <= 0 || len(got.Gates) == 0 {
		t.Errorf("%s with the gates %q tried %d gangs in %.2f ms each", got.Scheduler, got.Gates, got.Gangs.Attempts, got.Gangs.CycleMilliseconds)
	}
	outcome := report.Gangs{Count: got.Gangs.Count, Whole: got.Gangs.Whole, Partial: got.Gangs.Partial,
		Restricted: got.Gangs.Restricted, Scattered: got.Gangs.Scattered}
	if diff := cmp.Diff(want, outcome); diff != "" || got.Pods-got.Unbound != bound {
		t.Errorf("%s bound %d pods, want %d; gangs (-want +got):\n%s", got.Scheduler, got.Pods-got.Unbound, bound, diff)
	}
	if impossible := bound == 0; (got.Refusal != nil) != impossible {
		t.Errorf("%s has the refusal %+v", got.Scheduler, got.Refusal)
	} else if impossible && (got.Refusal.Pods != got.Pods || !strings.Contains(strings.Join(got.Refusal.Messages, "\n"), "minCount (10) cannot be satisfied")) {
		t.Errorf("%s refused %d of %d pods and says %q", got.Scheduler, got.Refusal.Pods, got.Pods, got.Refusal.Messages)
	}
}
