// Package command is the command line of schedulerbench: which loads run with which schedulers, in which order, and which bars they
// have to meet.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/controlplane"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/round"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/scheduler"
)

// Bars of the large benchmark. Those of comparisons are in the table of loads.
const (
	// mostBytes is the most memory of the scheduler with 5,000 nodes and 50,000 pods.
	mostBytes = 1e9
	// mostMicroseconds is the most CPU time of the plugin's scoring per pod.
	mostMicroseconds = 2000
)

// ErrMissed is the error of a benchmark that ran and missed a bar.
var ErrMissed = errors.New("a bar was missed")

// ExitCode maps an error of the command to the exit code of the program: 1 when a bar was missed, 2 when the benchmark could not run.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrMissed):
		return 1
	}
	return 2
}

// Programs are the command lines, without flags, of the programs that the benchmark runs.
type Programs struct {
	// Self is the program with this command line.
	Self string
	// Stock and Ours are the schedulers.
	Stock []string
	Ours  []string
}

// flags are those of a benchmark.
type flags struct {
	loads      []string
	schedulers []string
	nodes      int
	pods       int
	// nodesGiven is true where the command line says how many nodes.
	nodesGiven bool
	rounds     int
	qps        int
	stalled    time.Duration
	seed       uint64
	pin        bool
	output     string
	profile    string
}

func (f flags) check() error {
	switch {
	case f.nodes < 1 || f.nodes > 20000:
		return fmt.Errorf("--nodes %d: want 1 to 20000", f.nodes)
	case f.pods < 0 || f.pods > 200000:
		return fmt.Errorf("--pods %d: want 0 (as many as fill the GPUs) to 200000", f.pods)
	case f.rounds < 0 || f.rounds > 100:
		return fmt.Errorf("--rounds %d: want 0 (as many as the load has by itself) to 100", f.rounds)
	case f.qps < 1 || f.qps > 1000000:
		return fmt.Errorf("--qps %d: want 1 to 1000000", f.qps)
	case f.stalled <= 0:
		return fmt.Errorf("--stalled %v: want more than 0", f.stalled)
	case f.output != "" && f.output != "json":
		return fmt.Errorf("-o %q: want json, or nothing for tables", f.output)
	}
	return nil
}

// New returns the command line. Programs is called when a benchmark begins.
func New(programs func() (Programs, error)) *cobra.Command {
	root := &cobra.Command{
		Use:   "schedulerbench",
		Short: "Measure berth-scheduler beside the stock kube-scheduler",
		Long: `schedulerbench runs schedulers against an API server with etcd and with nodes and
pods that are objects only. Each run has a fresh control plane. All pods are
created first; then the scheduler starts, and the time from the first bind to the
last is measured. Pods that cannot be bound (load impossible) are created when the
scheduler is ready, and the time until all are refused is measured.

In loads with gangs the stock scheduler runs with Kubernetes' own gang scheduling,
which is behind feature gates: each gang is a PodGroup. Berth's scheduler reads
labels of the pods.`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(compareCommand(programs), largeCommand(programs), controlPlaneCommand())
	usage.Prepare(root)
	return root
}

func largeCommand(programs func() (Programs, error)) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "large",
		Short: "Run berth-scheduler on many nodes, and check its memory and the CPU time of its scoring",
		Args:  cobra.NoArgs,
		Example: `  schedulerbench large                          5,000 nodes and 50,000 pods: 12 GB of memory
  schedulerbench large --nodes 50 --pods 500    a small run`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := begin(cmd, f, programs)
			if err != nil {
				return err
			}
			// Memory is measured as it is without an order of the pods, which only comparisons need.
			b.setup.Lists, b.setup.Profile, b.setup.ProfileFile = controlplane.Streamed, true, f.profile
			return b.measure(cmd.Context(), []scheduler.Kind{scheduler.Ours(b.programs.Ours...)},
				func(runs []report.Run) []report.Bar { return report.LargeBars(runs, mostBytes, mostMicroseconds) })
		},
	}
	common(cmd, &f, 5000, 50000, 1)
	cmd.Flags().StringSliceVar(&f.loads, "load", []string{"mixed"}, "loads to run")
	cmd.Flags().StringVar(&f.profile, "profile", "", "file for the scheduler's CPU profile, for go tool pprof")
	return cmd
}

func common(cmd *cobra.Command, f *flags, nodes, pods, rounds int) {
	set := cmd.Flags()
	set.IntVar(&f.nodes, "nodes", nodes, "nodes of 8 GPUs")
	set.IntVar(&f.pods, "pods", pods, "pods; 0: as many as fill all GPUs, or half of them with gangs. More than that are pods without GPUs (load mixed)")
	set.IntVar(&f.rounds, "rounds", rounds, "runs of each scheduler with each load; 0: as many as the load has by itself")
	set.IntVar(&f.qps, "qps", 5000, "requests per second that each scheduler may send, and at once")
	set.DurationVar(&f.stalled, "stalled", time.Minute, "give up when no pod was bound or refused for this long")
	set.Uint64Var(&f.seed, "seed", 1, "seed of the pods' sizes")
	set.BoolVar(&f.pin, "pin", true, "give the scheduler cores of its own, half of them")
	set.StringVarP(&f.output, "output", "o", "", "json: print JSON")
}

// controlPlaneCommand is what a benchmark starts for each run.
func controlPlaneCommand() *cobra.Command {
	var dir string
	var port int
	var streamed bool
	var gates []string
	cmd := &cobra.Command{
		Use: controlplane.Command, Short: "etcd and kube-apiserver in one process", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			return controlplane.Serve(dir, port, controlplane.Options{Lists: controlplane.Lists(streamed), Gates: gates})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of all files")
	cmd.Flags().BoolVar(&streamed, "streamed-lists", true, "stream lists to clients that start to watch")
	cmd.Flags().StringSliceVar(&gates, "gates", nil, "feature gates to switch on")
	cmd.Flags().IntVar(&port, "port", 0, "port of the API server")
	return cmd
}

// benchmark is one that has begun.
type benchmark struct {
	flags    flags
	programs Programs
	loads    []load.Load
	setup    round.Setup
	machine  report.Machine
	output   io.Writer
}

// begin checks the flags and divides the cores.
func begin(cmd *cobra.Command, f flags, programs func() (Programs, error)) (*benchmark, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	f.nodesGiven = cmd.Flags().Changed("nodes")
	b := &benchmark{flags: f, machine: readMachine(), output: cmd.OutOrStdout()}
	var err error
	if b.loads, err = load.Named(f.loads); err != nil {
		return nil, err
	}
	if b.programs, err = programs(); err != nil {
		return nil, err
	}
	began, lines := time.Now(), cmd.ErrOrStderr()
	b.setup = round.Setup{Program: b.programs.Self, Stalled: f.stalled, Say: func(format string, arguments ...any) {
		// One write, so that lines of several goroutines do not mix.
		fmt.Fprintf(lines, "[%4.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, arguments...))
	}}
	return b, b.divide()
}

// divide gives half of the cores to the scheduler, on a machine that has more than one.
func (b *benchmark) divide() error {
	cores, err := process.Cores()
	if err != nil {
		return err
	}
	if !b.flags.pin || len(cores) < 2 {
		return nil
	}
	half := len(cores) / 2
	b.setup.OtherCores, b.setup.SchedulerCores = cores[:half], cores[half:]
	b.machine.OtherCores, b.machine.SchedulerCores = b.setup.OtherCores, b.setup.SchedulerCores
	return process.PinSelf(b.setup.OtherCores)
}

// measure runs each load with each scheduler as often as there are rounds, and prints the report.
func (b *benchmark) measure(ctx context.Context, kinds []scheduler.Kind, bars func([]report.Run) []report.Bar) error {
	dir, err := os.MkdirTemp("", "schedulerbench.")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	b.setup.Dir = dir
	out := report.Report{Version: 1, Seed: b.flags.seed}
	for _, l := range b.loads {
		runs, err := b.runLoad(ctx, l, kinds)
		if err != nil {
			return err
		}
		out.Runs = append(out.Runs, runs...)
	}
	if len(out.Runs) == 0 {
		return fmt.Errorf("nothing to run: %s runs loads with gangs only", report.InTree)
	}
	out.Machine, out.Bars = b.machine, bars(out.Runs)
	out.Machine.LoadAfter = loadAverage()
	write := out.WriteText
	if b.flags.output == "json" {
		write = out.WriteJSON
	}
	if err := write(b.output); err != nil {
		return err
	}
	if !out.Met() {
		return ErrMissed
	}
	return nil
}

// runLoad runs the schedulers with one load in turn.
func (b *benchmark) runLoad(ctx context.Context, l load.Load, kinds []scheduler.Kind) ([]report.Run, error) {
	nodes := b.flags.nodes
	if l.Nodes > 0 && !b.flags.nodesGiven {
		nodes = l.Nodes
	}
	objects, err := l.Make(nodes, b.flags.pods, b.flags.seed)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", l.Name, err)
	}
	rounds := b.flags.rounds
	if rounds == 0 {
		rounds = l.Rounds
	}
	order := turns(suited(kinds, objects), rounds)
	b.setup.Say("load %s: %s; %d nodes, %d pods, seed %d, %d runs", l.Name, l.About, nodes, len(objects.Pods), b.flags.seed, len(order))
	var runs []report.Run
	for i, kind := range order {
		b.setup.Say("run %d of %d: %s, %s: starting etcd and kube-apiserver", i+1, len(order), l.Name, kind.Name)
		kind.QPS = b.flags.qps
		run, err := b.setup.Run(ctx, kind, l, objects)
		if err != nil {
			return nil, err
		}
		run.Turn = i + 1
		b.setup.Say("run %d of %d: %s, %s: %s, %.2f s of CPU, %.0f MB", run.Turn, len(order), l.Name, kind.Name, outcome(run), run.CPUSeconds,
			float64(run.PeakBytes)/1e6)
		runs = append(runs, run)
	}
	return runs, nil
}

// turns is the order of the runs: each round in the reverse order of the one before (stock, ours, ours, stock), so that a machine that
// becomes slower or faster in the meantime favours neither.
func turns(kinds []scheduler.Kind, rounds int) []scheduler.Kind {
	var order []scheduler.Kind
	for r := range rounds {
		for i := range kinds {
			if r%2 == 1 {
				i = len(kinds) - 1 - i
			}
			order = append(order, kinds[i])
		}
	}
	return order
}

// InDirectory returns the programs that hack/build.sh builds into a directory, for the program at self.
func InDirectory(bin, self string) (Programs, error) {
	p := Programs{Self: self, Stock: []string{filepath.Join(bin, "hyperkube"), "kube-scheduler"},
		Ours: []string{filepath.Join(bin, "berth-scheduler")}}
	for _, program := range []string{p.Stock[0], p.Ours[0]} {
		if _, err := os.Stat(program); err != nil {
			return Programs{}, fmt.Errorf("look for the schedulers: %w (run hack/build.sh schedulers, or set BIN to their directory)", err)
		}
	}
	return p, nil
}
