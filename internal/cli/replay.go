package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cli/replayplot"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cluster/replay"
)

// mostUnplaced is how many shapes of unplaced pods are printed for the only policy, mostUnplacedOfSeveral for each of several.
const mostUnplaced, mostUnplacedOfSeveral = 10, 3

// maxInflate and maxSeeds bound a replay.
const (
	maxInflate = 10
	maxSeeds   = 1000
)

// replayFlags are the flags of berth replay.
type replayFlags struct {
	nodes     string
	pods      string
	published string
	plot      string
	policies  []string
	seed      uint64
	seeds     int
	inflate   float64
	out       output
	cluster   clusterFlags
}

func newReplayCommand(deps Deps) *cobra.Command {
	var flags replayFlags
	cmd := &cobra.Command{
		Use:   "replay (--nodes FILE --pods FILE | --cluster | --from FILE)",
		Short: "Place the pods of a trace, or those of a cluster again, by the scheduler's policy",
		Long: `Place the pods of a trace on the nodes of a list by the code that the scheduler decides with,
and print how much of the GPUs is allocated, how much of what is idle is fragmented, and which
pods fit nowhere. No cluster is needed.

The pods arrive one by one in a random order and never leave; copies of random pods follow
until they request --inflate times the GPUs that there are. A seed always gives the same
result. Single seeds differ by some tenths of a per cent: compare means of ten (--seeds 10).

The lists are CSV files in the openb format:

  nodes   sn,cpu_milli,memory_mib,gpu,model
  pods    name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec

gpu_milli is the share of each GPU in thousandths, gpu_spec the accepted models, separated
by |, empty for any; other columns are ignored. The policies are Random, DotProd,
GpuClustering, GpuPacking, BestFit and FGD, the baselines of a publication, and pack, spread and
latency, those of Berth. With --published their published results are printed beside them.

With --cluster it reads the nodes and pods of a live cluster, or with --from what
"kubectl get nodes,gpunodes,pods -A -o json" has written. It prints which GPUs are held and why
the others are idle, and then answers "what if": the pods that run and those that wait are
placed again, in the order of their creation, by --policy and after these changes, in this
order. Nothing is changed in the cluster.

  --remove-node NAME          without this node
  --add-nodes COUNT=NODE      with COUNT more like NODE, which are named NODE+1, NODE+2, ...
  --mig-layout LAYOUT@TARGET  with another MIG layout on the GPUs of TARGET, a node or a GPU
                              model; without @TARGET on all that have MIG. LAYOUT is
                              RESOURCE=COUNT,... or PROFILE=COUNT,... for each GPU, or a name
                              such as all-1g.10gb, all-balanced, all-disabled (MIG off)
  --scale FACTOR              with more pods, drawn by --seed from those that there are, until
                              they request FACTOR times as many GPUs`,
		Example: `  berth replay --nodes nodes.csv --pods pods.csv
  berth replay --nodes nodes.csv --pods pods.csv --policy FGD --policy pack --seeds 10
  berth replay --nodes nodes.csv --pods pods.csv --policy all --seeds 10 --plot curves.svg
  berth replay --nodes nodes.csv --pods pods.csv --seed 42 -o json | jq .allocationPercent.at130
  berth replay --cluster
  berth replay --cluster --policy pack --policy spread --add-nodes 4=gpu-node-1 --scale 1.5
  berth replay --from dump.json --mig-layout 1g.10gb=7@NVIDIA-A100-SXM4-80GB -o json | jq '.whatIf[].allocatedPercent'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.cluster.checkModes(cmd.Flags()); err != nil {
				return err
			}
			if flags.cluster.given() {
				return runReplayCluster(cmd, deps, &flags)
			}
			return runReplay(cmd, deps, &flags)
		},
	}
	set := cmd.Flags()
	set.StringVar(&flags.nodes, "nodes", "", "the node `FILE`")
	set.StringVar(&flags.pods, "pods", "", "the pod `FILE`")
	set.StringVar(&flags.published, "published", "", "a `FILE` with published results, to print beside those of openb traces")
	set.StringVar(&flags.plot, "plot", "", "draw the curves to this `FILE`, .svg or .png")
	set.StringSliceVar(&flags.policies, "policy", []string{"pack"}, "the policy `NAME`, all for each; can be repeated")
	flags.cluster.bind(set)
	set.Uint64Var(&flags.seed, "seed", 42, "the first seed `N`")
	set.IntVar(&flags.seeds, "seeds", 1, "how many seeds, from --seed on")
	set.Float64Var(&flags.inflate, "inflate", 1.3, "how much of the GPUs the pods request in the end; 1.3 is 130 %")
	flags.out.bind(set)
	return cmd
}

// check returns an error for flags that cannot be.
func (f *replayFlags) check() error {
	if err := f.out.check(); err != nil {
		return err
	}
	switch {
	case f.nodes == "" || f.pods == "":
		return usagef("want a node list and a pod list: --nodes FILE --pods FILE, or --cluster")
	case f.seeds < 1 || f.seeds > maxSeeds:
		return usagef("--seeds %d: want 1 to %d", f.seeds, maxSeeds)
	case !(f.inflate > 0 && f.inflate <= maxInflate):
		return usagef("--inflate %v: want more than 0, and at most %d", f.inflate, maxInflate)
	}
	if f.plot != "" {
		if err := replayplot.Check(f.plot); err != nil {
			return usagef("%v", err)
		}
	}
	policies, err := replay.Canonical(f.policies)
	if err != nil {
		return usagef("--policy: %v", err)
	}
	f.policies = policies
	return nil
}

func runReplay(cmd *cobra.Command, deps Deps, flags *replayFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	trace, published, err := readTrace(flags)
	if err != nil {
		return err
	}
	watch := clock.RealClock{}
	options := replay.Options{Policies: flags.policies, Inflate: flags.inflate, Parallel: runtime.GOMAXPROCS(0), Now: watch.Now}
	for i := range flags.seeds {
		options.Seeds = append(options.Seeds, flags.seed+uint64(i))
	}
	report := &progress{out: deps.Err, clock: watch, began: watch.Now(), runs: len(options.Policies) * len(options.Seeds)}
	report.last = report.began
	options.Progress = report.add
	runs, err := replay.RunAll(cmd.Context(), trace, options)
	if err != nil {
		return err
	}
	report.finish(runs)
	result := replay.NewReport(trace, options, runs, published)
	if flags.plot != "" {
		image, err := replayplot.Image(result, flags.plot)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(flags.plot, image, 0o644); err != nil {
			return fmt.Errorf("write the file of --plot: %w", err)
		}
	}
	return flags.out.print(deps.Out, result, func(w io.Writer) error { return replayText(w, result) })
}

func readTrace(flags *replayFlags) (*replay.Trace, []replay.Published, error) {
	nodes, err := readList(flags.nodes, replay.ReadNodes)
	if err != nil {
		return nil, nil, err
	}
	pods, err := readList(flags.pods, replay.ReadPods)
	if err != nil || flags.published == "" {
		return &replay.Trace{Nodes: nodes, Pods: pods}, nil, err
	}
	published, err := readList(flags.published, replay.ReadPublished)
	return &replay.Trace{Nodes: nodes, Pods: pods}, replay.OfTrace(published, flags.pods), err
}

func readList[T any](path string, read func(string, io.Reader) ([]T, error)) ([]T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a list: %w", err)
	}
	defer file.Close()
	return read(path, file)
}

// progress prints how far a replay is, at most once per second.
type progress struct {
	out   io.Writer
	clock clock.PassiveClock
	runs  int
	began time.Time

	mu   sync.Mutex
	last time.Time
	pods int
}

func (p *progress) add(pods int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods += pods
	if now := p.clock.Now(); now.Sub(p.last) >= time.Second {
		p.last = now
		fmt.Fprintf(p.out, "replay: %d decisions of %d runs after %.0f s\n", p.pods, p.runs, now.Sub(p.began).Seconds())
	}
}

// read prints how many objects of a kind were read, if reading has taken a second since the last line.
func (p *progress) read(kind string, count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.clock.Now(); now.Sub(p.last) >= time.Second {
		p.last = now
		fmt.Fprintf(p.out, "replay: read %d %s after %.0f s\n", count, kind, now.Sub(p.began).Seconds())
	}
}

// finish prints the speed: decisions per second of the runs' own time.
func (p *progress) finish(runs []replay.Run) {
	var spent time.Duration
	for i := range runs {
		spent += runs[i].Elapsed
	}
	if spent > 0 {
		fmt.Fprintf(p.out, "replay: %d decisions, %.0f per second and run\n", p.pods, float64(p.pods)/spent.Seconds())
	}
}

func replayText(w io.Writer, report *replay.Report) error {
	fmt.Fprintf(w, "%d nodes, %d GPUs; %d pods, %d typical shapes; means of %d seeds from %d on\n\n",
		report.Nodes, report.GPUs, report.Pods, report.Typical, len(report.Results[0].Seeds), report.Results[0].Seeds[0])
	end := replay.Key(replay.EndPercent(report.Inflate))
	keys := []string{replay.Key(100), end}
	if end == keys[0] || report.Results[0].AllocationPercent[keys[0]] == 0 {
		keys = []string{end}
	}
	head := []string{"POLICY"}
	for _, key := range keys {
		head = append(head, "ALLOCATED % "+key, "SD", "PUBLISHED (RANGE)")
	}
	head = append(head, "FRAGMENTED % OF IDLE", "UNPLACED PODS")
	var rows [][]string
	for i := range report.Results {
		result := &report.Results[i]
		row := []string{result.Policy}
		for _, key := range keys {
			published := "-"
			if known, ok := result.Published[key]; ok {
				published = fmt.Sprintf("%.2f (%.2f-%.2f)", known.Mean, known.Min, known.Max)
			}
			row = append(row, fmt.Sprintf("%.2f", result.AllocationPercent[key]), fmt.Sprintf("%.2f", result.StandardDeviation[key]), published)
		}
		unplaced := 0
		for _, shape := range result.Unplaced {
			unplaced += shape.Pods
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", result.FragmentationOfIdlePercent[end]), fmt.Sprintf("%d of %d", unplaced, result.Pods)))
	}
	if err := term.Table(w, head, rows); err != nil {
		return err
	}
	most := mostUnplaced
	if len(report.Results) > 1 {
		most = mostUnplacedOfSeveral
	}
	for i := range report.Results {
		printUnplaced(w, &report.Results[i], most)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", replayplot.Text(report))
	return err
}

func printUnplaced(w io.Writer, result *replay.Result, most int) {
	if len(result.Unplaced) == 0 {
		return
	}
	fmt.Fprintf(w, "\nUnplaced by %s, pods of a shape:\n", result.Policy)
	for i, shape := range result.Unplaced {
		if i == most {
			fmt.Fprintf(w, "  and %d more shapes (-o json lists them)\n", len(result.Unplaced)-i)
			return
		}
		fmt.Fprintf(w, "  %6d  %s\n", shape.Pods, term.Clean(shape.Text))
	}
}
