package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
// in which both schedulers take them.
func TestBenchmark(t *testing.T) {
	tests := map[string]struct {
		args     string
		wantRuns []string
		wantPods int
		wantGPUs int
		wantBars int
	}{
		"compare": {args: "compare --load mixed --nodes 30 --rounds 1",
			wantRuns: []string{"stock", "ours"}, wantPods: 127, wantGPUs: 240, wantBars: 2},
		"large, some without a GPU": {args: "large --nodes 10 --pods 150",
			wantRuns: []string{"ours"}, wantPods: 150, wantGPUs: 72, wantBars: 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			r := bench(t, tc.args)
			if len(r.Runs) != len(tc.wantRuns) || len(r.Bars) != tc.wantBars {
				t.Fatalf("%d runs and bars %+v, want runs of %v and %d bars", len(r.Runs), r.Bars, tc.wantRuns, tc.wantBars)
			}
			for i, got := range r.Runs {
				if got.Scheduler != tc.wantRuns[i] || got.Pods != tc.wantPods || got.GPUs != tc.wantGPUs {
					t.Errorf("run %d of %s with %d pods and %d GPUs, want %s, %d and %d", i, got.Scheduler, got.Pods, got.GPUs,
						tc.wantRuns[i], tc.wantPods, tc.wantGPUs)
				}
				if got.PodsPerSecond <= 0 || got.CPUSeconds <= 0 || got.PeakBytes < 20e6 || got.ScoringMicroseconds <= 0 {
					t.Errorf("run %d was not measured: %+v", i, got)
				}
				if profiled := got.Profile != nil && got.Profile.SampledSeconds > 0; profiled != strings.HasPrefix(tc.args, "large") {
					t.Errorf("run %d has the profile %+v", i, got.Profile)
				}
				// The stock scheduler has no plugin of ours; ours scores with it, so that its profile is in force.
				if ours := got.Scheduler == report.Ours; (got.PluginCalls > 0) != ours {
					t.Errorf("run %d of %s: %d calls of the plugin", i, got.Scheduler, got.PluginCalls)
				}
			}
			if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) != 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}
