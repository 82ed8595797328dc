package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cluster/replay"
	"github.com/berth-gpu/berth/internal/cluster/whatif"
)

// clusterFlags are the flags of berth replay --cluster.
type clusterFlags struct {
	cluster bool
	from    []string
	add     []string
	remove  []string
	layouts []string
	scale   float64
	sources sources
}

// clusterNames lists the flags that only --cluster has, traceNames those that only traces have.
func clusterNames() []string {
	return []string{"add-nodes", "remove-node", "mig-layout", "scale"}
}
func traceNames() []string { return []string{"nodes", "pods", "published", "plot", "seeds", "inflate"} }

func (f *clusterFlags) bind(set *pflag.FlagSet) {
	set.BoolVar(&f.cluster, "cluster", false, "read the nodes and pods of a live cluster instead of lists")
	set.StringArrayVar(&f.from, "from", nil, "a `FILE` with the objects of a cluster, - for standard input; can be repeated, and implies --cluster")
	set.StringArrayVar(&f.add, "add-nodes", nil, "with --cluster, add nodes: `COUNT=NODE`, like the node NODE; can be repeated")
	set.StringArrayVar(&f.remove, "remove-node", nil, "with --cluster, remove the node `NAME`; can be repeated")
	set.StringArrayVar(&f.layouts, "mig-layout", nil, "with --cluster, another MIG layout: `LAYOUT[@TARGET]` (see above); can be repeated")
	set.Float64Var(&f.scale, "scale", 1, "with --cluster, how much the pods request in all, by what those of the cluster do")
	f.sources.bindKube(set, "cluster")
}

// given tells whether the question is about a cluster.
func (f *clusterFlags) given() bool { return f.cluster || len(f.from) > 0 }

// checkModes returns an error for flags of traces and clusters at the same time.
func (f *clusterFlags) checkModes(set *pflag.FlagSet) error {
	names, want := traceNames(), "leave it out: it is for the lists of a trace"
	if !f.given() {
		names, want = clusterNames(), "add --cluster or --from FILE"
		for _, named := range f.sources.connection.Named() {
			return usagef("%s: %s", named, want)
		}
	}
	if named := f.sources.connection.Named(); len(f.from) > 0 && len(named) > 0 {
		return usagef("%s: leave out what names an API server: --from reads files", strings.Join(named, " "))
	}
	for _, name := range names {
		if set.Changed(name) {
			return usagef("--%s: %s", name, want)
		}
	}
	return nil
}

// changes reads the changes of the flags.
func (f *clusterFlags) changes() (whatif.Changes, error) {
	changes := whatif.Changes{Remove: f.remove}
	for _, text := range f.add {
		one, err := whatif.ParseAdd(text)
		if err != nil {
			return changes, usagef("--add-nodes: %v", err)
		}
		changes.Add = append(changes.Add, one)
	}
	for _, text := range f.layouts {
		one, err := whatif.ParseLayout(text)
		if err != nil {
			return changes, usagef("--mig-layout: %v", err)
		}
		changes.Layouts = append(changes.Layouts, one)
	}
	if !(f.scale >= 1 && f.scale <= maxInflate) {
		return changes, usagef("--scale %v: want 1 to %d", f.scale, maxInflate)
	}
	return changes, nil
}

// runReplayCluster answers a question about a cluster.
func runReplayCluster(cmd *cobra.Command, deps Deps, flags *replayFlags) error {
	changes, err := flags.cluster.changes()
	if err != nil {
		return err
	}
	if err := flags.out.check(); err != nil {
		return err
	}
	policies, err := clusterPolicies(flags.policies)
	if err != nil {
		return usagef("--policy: %v", err)
	}
	watch := clock.RealClock{}
	report := &progress{out: deps.Err, clock: watch, began: watch.Now(), runs: len(policies)}
	report.last = report.began
	objects, err := flags.cluster.read(cmd.Context(), cmd.InOrStdin(), report)
	if err != nil {
		return err
	}
	answer, err := whatif.Ask(cmd.Context(), objects, whatif.Options{
		Changes: changes, Policies: policies, Seed: flags.seed, Scale: flags.cluster.scale, Progress: report.add,
	})
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return flags.out.print(deps.Out, answer, func(w io.Writer) error { return whatIfText(w, answer) })
}

// clusterPolicies returns policies by their names; "all" is each.
func clusterPolicies(names []string) ([]string, error) {
	for _, name := range names {
		if strings.EqualFold(name, "all") {
			return replay.AllNames(), nil
		}
	}
	return replay.Canonical(names)
}

// read reads the objects of the cluster, live or from files.
func (f *clusterFlags) read(ctx context.Context, in io.Reader, report *progress) (*whatif.Objects, error) {
	objects := &whatif.Objects{}
	if len(f.from) > 0 {
		for _, name := range f.from {
			if err := readDump(in, name, objects); err != nil {
				return nil, err
			}
		}
		return objects, nil
	}
	api, noAPI := f.sources.api()
	if api == nil {
		return nil, &hintError{fmt.Errorf("replay: no API server: %s", noAPI), "fix: " + f.sources.connection.Fix() + ", or give --from FILE with the output of\n  " + whatif.DumpCommand}
	}
	return objects, readCluster(ctx, api.Client, objects, report)
}

func readDump(in io.Reader, name string, objects *whatif.Objects) error {
	if name == "-" {
		return objects.Read("standard input", in)
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read a cluster: %w", err)
	}
	defer file.Close()
	return objects.Read(name, file)
}

// readCluster reads Nodes, GPUNodes and Pods, each once. Without the rights for GPUNodes or Pods a note is left.
func readCluster(ctx context.Context, client dynamic.Interface, objects *whatif.Objects, report *progress) error {
	var err error
	if objects.Nodes, err = listOf[corev1.Node](ctx, client, nodesResource()); err != nil {
		return apiError(fmt.Errorf("replay: %w", err), "")
	}
	report.read("Nodes", len(objects.Nodes))
	switch err := readGPUNodes(ctx, client, objects); {
	case apierrors.IsNotFound(err):
		objects.Notes = append(objects.Notes, "GPUNodes: the API server does not have this kind; the counts of the Nodes decide, and links and health do not count")
	case apierrors.IsForbidden(err):
		objects.Notes = append(objects.Notes, fmt.Sprintf("GPUNodes: this user may not read them (%v); the counts of the Nodes decide, and links and health do not count", err))
	case err != nil:
		return apiError(fmt.Errorf("replay: %w", err), "")
	}
	report.read("GPUNodes", len(objects.GPUNodes))
	objects.Pods, err = listOf[corev1.Pod](ctx, client, podResource())
	switch {
	case apierrors.IsForbidden(err):
		objects.PodsOfHolders(fmt.Sprintf("this user may not read them (%v)", err))
	case err != nil:
		return apiError(fmt.Errorf("replay: %w", err), "")
	}
	report.read("Pods", len(objects.Pods))
	return nil
}

// readGPUNodes reads GPUNodes in pages. One that cannot be decoded is a note.
func readGPUNodes(ctx context.Context, client dynamic.Interface, objects *whatif.Objects) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := client.Resource(v1alpha1.GPUNodes()).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list %s: %w", v1alpha1.GPUNodeResource, err)
		}
		for i := range page.Items {
			one := &page.Items[i]
			objects.AddGPUNode(one.GetName(), one.GetAPIVersion(), func(node *v1alpha1.GPUNode) error {
				return runtime.DefaultUnstructuredConverter.FromUnstructured(one.Object, node)
			})
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// whatIfText prints a report for people.
func whatIfText(w io.Writer, r *whatif.Report) error {
	now := &r.Now
	fmt.Fprintf(w, "Now: %d nodes, %s GPUs, %.1f %% allocated; %d pods run, %d wait, %d stay on their node\n\n",
		now.Nodes, gpus(now.GPUs), now.AllocatedPercent, r.Pods.Running, r.Pods.Waiting, r.Pods.Staying)
	var rows [][]string
	for _, d := range now.Devices {
		rows = append(rows, []string{orElse(d.Model, "-"), d.Resource, gpus(d.GPUs), gpus(d.Held), fmt.Sprintf("%.1f", d.Percent)})
	}
	if err := term.Table(w, []string{"MODEL", "RESOURCE", "GPUS", "HELD", "ALLOCATED %"}, rows); err != nil {
		return err
	}
	if err := idleText(w, "\nWhy GPUs are idle now:\n", now); err != nil {
		return err
	}
	if len(r.Changes) > 0 {
		fmt.Fprintf(w, "\nWhat if: %s\n", term.Clean(strings.Join(r.Changes, "; ")))
	} else {
		fmt.Fprintf(w, "\nWhat if: the same nodes\n")
	}
	if r.Pods.Added > 0 {
		fmt.Fprintf(w, "         %d more pods, drawn from those that there are (--scale %v)\n", r.Pods.Added, r.Scale)
	}
	fmt.Fprintln(w)
	if err := statesTable(w, r); err != nil {
		return err
	}
	if len(r.WhatIf) == 1 { // The table compares several.
		if err := stateText(w, r, &r.WhatIf[0]); err != nil {
			return err
		}
	}
	for i, note := range r.Notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "note: %s\n", term.Clean(note))
	}
	return nil
}

// statesTable prints the cluster as it is and as it would be below one another.
func statesTable(w io.Writer, r *whatif.Report) error {
	row := func(name string, s *whatif.State) []string {
		return []string{name, fmt.Sprint(s.Nodes), gpus(s.GPUs), gpus(s.Held), fmt.Sprintf("%.1f", s.AllocatedPercent), fmt.Sprintf("%.1f", s.FragmentationOfIdlePercent),
			fmt.Sprintf("%.1f", s.StrandedOfIdlePercent), fmt.Sprint(s.Unplaced), fmt.Sprint(s.StillWaiting), fmt.Sprint(s.Displaced)}
	}
	rows := [][]string{row("now", &r.Now)}
	for i := range r.WhatIf {
		rows = append(rows, row(r.WhatIf[i].Policy, &r.WhatIf[i]))
	}
	return term.Table(w, []string{"", "NODES", "GPUS", "HELD", "ALLOCATED %", "FRAGMENTED % OF IDLE", "STRANDED % OF IDLE", "WITHOUT NODE", "STILL WAIT", "DISPLACED"}, rows)
}

// stateText prints what a policy makes of the pods.
func stateText(w io.Writer, r *whatif.Report, s *whatif.State) error {
	fmt.Fprintf(w, "\n%s: %d of the %d pods that wait now would run", s.Policy, r.Pods.Waiting-s.StillWaiting, r.Pods.Waiting)
	if s.Displaced > 0 {
		fmt.Fprintf(w, "; %d of the %d that run would not", s.Displaced, r.Pods.Running)
	}
	fmt.Fprintln(w)
	for i, shape := range s.UnplacedShapes {
		if i == 0 {
			fmt.Fprint(w, "\nPods that would have no node, by what they request:\n")
		}
		if i == mostUnplaced {
			fmt.Fprintf(w, "  and %d more shapes (-o json lists them)\n", len(s.UnplacedShapes)-i)
			break
		}
		fmt.Fprintf(w, "  %6d  %s\n", shape.Pods, term.Clean(shape.Text))
	}
	return idleText(w, "\nWhy GPUs would be idle:\n", s)
}

// idleText prints why GPUs are idle.
func idleText(w io.Writer, head string, s *whatif.State) error {
	if len(s.Idle) == 0 {
		return nil
	}
	fmt.Fprint(w, head)
	var rows [][]string
	for _, idle := range s.Idle {
		rows = append(rows, []string{gpus(idle.GPUs), fmt.Sprint(idle.Nodes), string(idle.Reason), idle.Example + ": " + idle.Text})
	}
	return term.Table(w, []string{"GPUS", "NODES", "REASON", "EXAMPLE"}, rows)
}

// gpus prints a number of GPUs: whole ones without a fraction.
func gpus(number float64) string {
	if number == float64(int64(number)) {
		return fmt.Sprint(int64(number))
	}
	return fmt.Sprintf("%.2f", number)
}
