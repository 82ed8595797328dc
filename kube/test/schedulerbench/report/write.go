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
	what, format string
	value        func(Run) float64
}

func columns() []column {
	return []column{
		{"pods/s", "%.0f", func(r Run) float64 { return r.PodsPerSecond }},
		{"pods without a node", "%.0f", func(r Run) float64 { return float64(r.Unbound) }},
		{"CPU s", "%.2f", func(r Run) float64 { return r.CPUSeconds }},
		{"peak MB", "%.0f", func(r Run) float64 { return peak(r) / 1e6 }},
		{"reused", "%.0f", func(r Run) float64 { return float64(r.Reused) }},
		{"scoring, all plugins, µs/pod", "%.0f", func(r Run) float64 { return r.ScoringMicroseconds }},
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

// writeLoad writes a table: a row per value, its medians and all its runs.
func (r Report) writeLoad(text *bytes.Buffer, load string) {
	for _, run := range r.Runs {
		if run.Load == load {
			fmt.Fprintf(text, "\n%s: %d nodes, %d pods, %d GPUs\n", load, run.Nodes, run.Pods, run.GPUs)
			break
		}
	}
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\tstock\tours\tratio\tstock, each run\tours, each run\n")
	for _, c := range columns() {
		stock, ours := Values(r.Runs, load, Stock, c.value), Values(r.Runs, load, Ours, c.value)
		ratio := "-"
		if value, ok := Ratio(r.Runs, load, c.value); ok {
			ratio = fmt.Sprintf("%.2f", value)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", c.what, median(c.format, stock), median(c.format, ours), ratio,
			list(c.format, stock), list(c.format, ours))
	}
	r.writeProfile(table, load)
	_ = table.Flush() // A buffer takes everything.
}

// writeProfile writes the rows of the runs that have a profile.
func (r Report) writeProfile(table io.Writer, load string) {
	profiled := slices.DeleteFunc(slices.Clone(r.Runs), func(run Run) bool { return run.Profile == nil })
	for _, c := range []column{
		{"CPU of the plugin's scoring, µs/pod", "%.0f", scoring},
		{"CPU of all of Berth's code, µs/pod", "%.0f", allOfBerth},
	} {
		if ours := Values(profiled, load, Ours, c.value); len(ours) > 0 {
			fmt.Fprintf(table, "%s\t-\t%s\t-\t-\t%s\n", c.what, median(c.format, ours), list(c.format, ours))
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
