package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/load"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/scheduler"
)

func compareCommand(programs func() (Programs, error)) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Run schedulers in turn with each load, and compare the pods per second",
		Long:  "compare runs schedulers in turn with each load, and compares the pods per second.\n\nThe loads:\n" + listLoads(load.Loads()),
		Args:  cobra.NoArgs,
		Example: `  schedulerbench compare                                        500 nodes, each load
  schedulerbench compare --load single --nodes 50 --pods 200    a small run
  schedulerbench compare --load gangs,topology --rounds 6       more runs of two loads
  schedulerbench compare --load gangs --scheduler stock,ours,berth-intree`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := begin(cmd, f, programs)
			if err != nil {
				return err
			}
			kinds, err := choose(b.programs, f.schedulers)
			if err != nil {
				return err
			}
			return b.measure(cmd.Context(), kinds, func(runs []report.Run) []report.Bar { return report.CompareBars(runs, limits(b.loads)) })
		},
	}
	common(cmd, &f, 500, 0, 0)
	var all []string
	for _, l := range load.Loads() {
		all = append(all, l.Name)
	}
	cmd.Flags().StringSliceVar(&f.loads, "load", all, "loads to run")
	cmd.Flags().StringSliceVar(&f.schedulers, "scheduler", []string{report.Stock, report.Ours},
		"schedulers to run, also "+report.InTree+": Berth's, which leaves gangs to Kubernetes' own gang scheduling (loads with gangs only)")
	return cmd
}

// listLoads describes loads, a line each.
func listLoads(loads []load.Load) string {
	var text strings.Builder
	for _, l := range loads {
		fmt.Fprintf(&text, "  %-11s  %s; rounds: %d", l.Name, l.About, l.Rounds)
		if l.Bars.LeastSpeed > 0 {
			fmt.Fprintf(&text, "; bar: %g times the pods per second of stock", l.Bars.LeastSpeed)
		}
		if l.Bars.MostWait > 0 {
			fmt.Fprintf(&text, "; bar: 99 of 100 other pods wait at most %g s", l.Bars.MostWait)
		}
		if l.Bars.MostSeconds > 0 {
			fmt.Fprintf(&text, "; bar: refused within %g s", l.Bars.MostSeconds)
		}
		text.WriteString("\n")
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// choose returns the schedulers with these names, in their order.
func choose(p Programs, names []string) ([]scheduler.Kind, error) {
	all := []scheduler.Kind{scheduler.Stock(p.Stock...), scheduler.Ours(p.Ours...), scheduler.OursInTree(p.Ours...)}
	var kinds []scheduler.Kind
	for _, name := range names {
		i := slices.IndexFunc(all, func(k scheduler.Kind) bool { return k.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--scheduler %q: want %s, %s or %s", name, report.Stock, report.Ours, report.InTree)
		}
		kinds = append(kinds, all[i])
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("--scheduler names none: want %s, %s or %s", report.Stock, report.Ours, report.InTree)
	}
	return kinds, nil
}

// suited leaves out what does not differ from another scheduler with these objects.
func suited(kinds []scheduler.Kind, objects load.Objects) []scheduler.Kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k scheduler.Kind) bool { return k.Name == report.InTree && len(objects.Gangs) == 0 })
}

// limits returns the bars of the loads for the report.
func limits(loads []load.Load) map[string]report.Limits {
	all := map[string]report.Limits{}
	for _, l := range loads {
		all[l.Name] = report.Limits(l.Bars)
	}
	return all
}

// outcome says what a run has measured, for a line of progress.
func outcome(r report.Run) string {
	switch {
	case r.Beside != nil:
		return fmt.Sprintf("%d of %d pods bound in %.2f s, 99 of 100 of %d others within %.3f s", r.Pods-r.Unbound, r.Pods, r.Seconds, r.Beside.Pods, r.Beside.Seconds99)
	case r.Refusal != nil:
		return fmt.Sprintf("%d of %d pods refused within %.3f s", r.Refusal.Pods, r.Pods, r.Refusal.Seconds)
	case r.Gangs != nil:
		return fmt.Sprintf("%.0f pods/s, %.1f gangs/s, %d of %d gangs bound", r.PodsPerSecond, r.Gangs.PerSecond, r.Gangs.Whole, r.Gangs.Count)
	}
	return fmt.Sprintf("%.0f pods/s", r.PodsPerSecond)
}
