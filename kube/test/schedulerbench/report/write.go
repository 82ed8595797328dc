package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// column is a value of the comparison.
type column struct {
	what   string
	format string
	value  func(Run) float64
	// only tells which runs have the value; nil: all.
	only func(Run) bool
}

// columns are the values of runs that are alike.
func columns(of []Run) []column {
	all := []column{
		{what: "CPU s", format: "%.2f", value: func(r Run) float64 { return r.CPUSeconds }},
		{what: "peak MB", format: "%.0f", value: func(r Run) float64 { return peak(r) / 1e6 }},
		{what: "reused", format: "%.0f", value: func(r Run) float64 { return float64(r.Reused) }},
		{what: "scoring, all plugins, µs/pod", format: "%.0f", value: func(r Run) float64 { return r.ScoringMicroseconds }},
	}
	if slices.ContainsFunc(of, inTree) {
		all = append(all,
			column{"in-tree: attempts for a gang", "%.0f", gangs(func(g Gangs) float64 { return float64(g.Attempts) }), inTree},
			column{"in-tree: decision, ms/attempt", "%.2f", gangs(func(g Gangs) float64 { return g.DecisionMilliseconds }), inTree},
			column{"in-tree: whole cycle, ms/attempt", "%.2f", gangs(func(g Gangs) float64 { return g.CycleMilliseconds }), inTree})
	}
	return append(outcome(of[0]), all...)
}

// inTree tells whether Kubernetes' own gang scheduling scheduled the gangs of a run.
func inTree(r Run) bool { return r.Gangs != nil && r.Gangs.Attempts > 0 }

// outcome are the values about what was bound, and how fast.
func outcome(of Run) []column {
	if of.Beside == nil {
		return outcomeAlone(of)
	}
	return append([]column{
		{what: "other pods, median wait in ms", format: "%.0f", value: func(r Run) float64 { return r.Beside.MedianSeconds * 1e3 }},
		{what: "other pods, p99 wait in ms", format: "%.0f", value: func(r Run) float64 { return r.Beside.Seconds99 * 1e3 }},
		{what: "other pods, longest wait in ms", format: "%.0f", value: func(r Run) float64 { return r.Beside.MostSeconds * 1e3 }},
		{what: "other pods without a node", format: "%.0f", value: func(r Run) float64 { return float64(r.Beside.Unbound) }},
	}, outcomeAlone(of)...)
}

// outcomeAlone is outcome without other pods.
func outcomeAlone(of Run) []column {
	bound := func(r Run) float64 { return float64(r.Pods - r.Unbound) }
	if of.Refusal != nil {
		return []column{
			{what: "s until the first pod is refused", format: "%.3f", value: func(r Run) float64 { return r.Refusal.FirstSeconds }},
			{what: "s until all pods are refused", format: "%.3f", value: refusalSeconds},
			{what: "pods bound", format: "%.0f", value: bound},
		}
	}
	all := []column{
		{what: "pods/s", format: "%.0f", value: func(r Run) float64 { return r.PodsPerSecond }},
		{what: "pods without a node", format: "%.0f", value: func(r Run) float64 { return float64(r.Unbound) }},
	}
	if of.Gangs == nil {
		return all
	}
	all = append(all,
		column{what: "gangs/s", format: "%.1f", value: gangs(func(g Gangs) float64 { return g.PerSecond })},
		column{what: "s from the first bind to the last", format: "%.2f", value: func(r Run) float64 { return r.Seconds }},
		column{what: "s for the slowest gang", format: "%.2f", value: gangs(func(g Gangs) float64 { return g.LongestSeconds })},
		column{what: "gangs with some pods bound", format: "%.0f", value: gangs(func(g Gangs) float64 { return float64(g.Partial) })})
	if of.Gangs.Restricted > 0 {
		all = append(all, column{what: "gangs too far apart", format: "%.0f", value: gangs(func(g Gangs) float64 { return float64(g.Scattered) })})
	}
	return all
}

func gangs(value func(Gangs) float64) func(Run) float64 {
	return func(r Run) float64 {
		if r.Gangs == nil {
			return 0
		}
		return value(*r.Gangs)
	}
}

// WriteJSON writes the report as JSON.
func (r Report) WriteJSON(w io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// WriteText writes the report as tables.
func (r Report) WriteText(w io.Writer) error {
	var text bytes.Buffer
	m := r.Machine
	fmt.Fprintf(&text, "machine: %d cores, %.0f GiB, %s; load %.2f before, %.2f after\n",
		m.Cores, m.MemoryGiB, m.CPU, m.LoadBefore, m.LoadAfter)
	if m.Busy() {
		fmt.Fprintln(&text, "warning: other work ran when the benchmark began; repeat it on an idle machine before you compare pods/s")
	}
	if len(m.SchedulerCores) > 0 {
		fmt.Fprintf(&text, "cores: %s the scheduler's, %s of etcd, kube-apiserver and this program\n",
			numbers(m.SchedulerCores), numbers(m.OtherCores))
	} else {
		fmt.Fprintln(&text, "cores: not divided between the scheduler and the API server")
	}
	fmt.Fprintf(&text, "seed: %d\n", r.Seed)
	for _, load := range loads(r.Runs) {
		r.writeLoad(&text, load)
	}
	fmt.Fprintln(&text)
	for _, b := range r.Bars {
		verdict, relation := "MISSED", "at least"
		if b.Met {
			verdict = "met"
		}
		if b.AtMost {
			relation = "at most"
		}
		fmt.Fprintf(&text, "%s: %s is %s, bar %s %s: %s\n", b.Load, b.What, short(b.Value), relation, short(b.Limit), verdict)
	}
	_, err := w.Write(text.Bytes())
	return err
}

// short prints a ratio with two digits, and a large number as a whole one.
func short(value float64) string {
	if value == 0 {
		return "0"
	}
	if value < 100 {
		return fmt.Sprintf("%.3f", value)
	}
	return fmt.Sprintf("%.0f", value)
}

// writeLoad writes a table: a row per value, its medians, ratios and all its runs.
func (r Report) writeLoad(text *bytes.Buffer, load string) {
	of := slices.DeleteFunc(slices.Clone(r.Runs), func(run Run) bool { return run.Load != load })
	fmt.Fprintf(text, "\n%s: %d nodes, %d pods, %d GPUs%s\n", load, of[0].Nodes, of[0].Pods, of[0].GPUs, gangCount(of[0]))
	schedulers := slices.DeleteFunc([]string{Stock, Ours, InTree}, func(name string) bool {
		return !slices.ContainsFunc(of, func(run Run) bool { return run.Scheduler == name })
	})
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	header := append([]string{""}, schedulers...)
	for _, name := range schedulers {
		if compared(schedulers, name) {
			header = append(header, name+"/"+Stock)
		}
	}
	for _, name := range schedulers {
		header = append(header, name+", each run")
	}
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, c := range columns(of) {
		fmt.Fprintln(table, strings.Join(row(of, load, schedulers, c), "\t"))
	}
	writeProfile(table, of, load)
	_ = table.Flush() // A buffer takes everything.
	for _, name := range schedulers {
		writeNotes(text, of, name)
	}
}

// compared tells whether a scheduler has a ratio to stock.
func compared(schedulers []string, name string) bool {
	return name != Stock && slices.Contains(schedulers, Stock)
}

// row returns the cells of a value.
func row(runs []Run, load string, schedulers []string, c column) []string {
	if c.only != nil {
		runs = slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return !c.only(r) })
	}
	cells := []string{c.what}
	for _, name := range schedulers {
		cells = append(cells, median(c.format, Values(runs, load, name, c.value)))
	}
	for _, name := range schedulers {
		if !compared(schedulers, name) {
			continue
		}
		ratio := "-"
		if value, ok := Ratio(runs, load, name, c.value); ok {
			ratio = fmt.Sprintf("%.2f", value)
		}
		cells = append(cells, ratio)
	}
	for _, name := range schedulers {
		cells = append(cells, list(c.format, Values(runs, load, name, c.value)))
	}
	return cells
}

func gangCount(r Run) string {
	if r.Gangs == nil {
		return ""
	}
	return fmt.Sprintf(", gangs: %d", r.Gangs.Count)
}

// writeNotes writes the gates of a scheduler, and what it said of pods that it refused in its first run.
func writeNotes(text *bytes.Buffer, runs []Run, scheduler string) {
	i := slices.IndexFunc(runs, func(r Run) bool { return r.Scheduler == scheduler })
	if len(runs[i].Gates) > 0 {
		fmt.Fprintf(text, "%s ran with the feature gates %s\n", scheduler, strings.Join(runs[i].Gates, ", "))
	}
	if runs[i].Refusal != nil {
		for _, message := range runs[i].Refusal.Messages {
			fmt.Fprintf(text, "%s says: %s\n", scheduler, message)
		}
	}
}

// writeProfile writes the rows of the runs that have a profile.
func writeProfile(table io.Writer, runs []Run, load string) {
	profiled := slices.DeleteFunc(slices.Clone(runs), func(run Run) bool { return run.Profile == nil })
	for _, c := range []column{
		{what: "CPU of the plugin's scoring, µs/pod", format: "%.0f", value: scoring},
		{what: "CPU of all of Berth's code, µs/pod", format: "%.0f", value: allOfBerth},
	} {
		if ours := Values(profiled, load, Ours, c.value); len(ours) > 0 {
			fmt.Fprintf(table, "%s\t%s\t%s\n", c.what, median(c.format, ours), list(c.format, ours))
		}
	}
}

func median(format string, values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, Median(values))
}

func list(format string, values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	var words []string
	for _, v := range values {
		words = append(words, fmt.Sprintf(format, v))
	}
	return strings.Join(words, ", ")
}

func numbers(values []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(values)), ","), "[]")
}
