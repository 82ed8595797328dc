// Package report turns the runs of a benchmark into tables and a verdict. It works on plain values: it measures nothing, and must not
// import anything of Kubernetes.
package report

import (
	"cmp"
	"slices"
)

// Names of the schedulers.
const (
	Stock = "stock"
	Ours  = "ours"
)

// Run is one measured run. Its JSON form is part of the report's.
type Run struct {
	// Load and Scheduler are names; Turn counts the runs of one load from 1, in the order in which they ran.
	Load      string `json:"load"`
	Scheduler string `json:"scheduler"`
	Turn      int    `json:"turn"`
	Nodes     int    `json:"nodes"`
	Pods      int    `json:"pods"`
	// Unbound is how many pods the scheduler found no node for. Loads are such that all fit when they come in their order.
	Unbound int `json:"unbound"`
	// Overlooked is how many of these fit on a node at the end.
	Overlooked int `json:"overlooked"`
	GPUs       int `json:"gpus"`
	// Seconds are from the first bind to the last.
	Seconds       float64 `json:"seconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	// CPUSeconds are those of the scheduler's process from its start to the last bind, and PeakBytes its largest resident set in that
	// time.
	CPUSeconds float64 `json:"cpuSeconds"`
	PeakBytes  int64   `json:"peakBytes"`
	// Reused is how many pods got a node from the scores of the pod before (the scheduler's batching).
	Reused int `json:"reused"`
	// ScoringMicroseconds are those of the extension points that score, per pod, with all plugins (see scheduler.Counts).
	ScoringMicroseconds float64 `json:"scoringMicroseconds"`
	// PluginCalls are the calls of Score of Berth's plugin, once per node.
	PluginCalls int `json:"pluginCalls"`
	// Profile is absent for a run without one.
	Profile *Profile `json:"profile,omitempty"`
}

// Profile is the CPU time of a part of the scheduler per pod (the plugin scores pods without GPUs too), in microseconds, added up over
// threads: the share that a CPU profile shows, of CPUSeconds.
type Profile struct {
	// ScoringMicroseconds are those of the plugin's methods that score, BerthMicroseconds those of all of Berth's functions.
	ScoringMicroseconds float64 `json:"scoringMicroseconds"`
	BerthMicroseconds   float64 `json:"berthMicroseconds"`
	// SampledSeconds are those of the samples, of all functions.
	SampledSeconds float64 `json:"sampledSeconds"`
}

// Machine is where the runs ran.
type Machine struct {
	CPU       string  `json:"cpu"`
	Cores     int     `json:"cores"`
	MemoryGiB float64 `json:"memoryGiB"`
	// LoadBefore and LoadAfter are the load averages of a minute. The benchmark itself is part of the second.
	LoadBefore float64 `json:"loadBefore"`
	LoadAfter  float64 `json:"loadAfter"`
	// SchedulerCores and OtherCores are those of the scheduler, and those of the API server, etcd and the benchmark; empty where all
	// share all.
	SchedulerCores []int `json:"schedulerCores"`
	OtherCores     []int `json:"otherCores"`
}

// Busy tells whether other work took much of the machine before the benchmark began. Pods per second are then not comparable: each run
// gets what the other work leaves.
func (m Machine) Busy() bool { return m.LoadBefore > 0.25*float64(m.Cores) }

// Bar is a limit that a report checks.
type Bar struct {
	Load string `json:"load"`
	What string `json:"what"`
	// Value is compared with Limit: it has to be at least that, or with AtMost at most.
	Value  float64 `json:"value"`
	Limit  float64 `json:"limit"`
	AtMost bool    `json:"atMost"`
	Met    bool    `json:"met"`
}

// Report is what a benchmark prints.
type Report struct {
	// Version is that of the JSON form.
	Version int     `json:"version"`
	Machine Machine `json:"machine"`
	Seed    uint64  `json:"seed"`
	Runs    []Run   `json:"runs"`
	Bars    []Bar   `json:"bars"`
}

// Met tells whether all bars were met. A report without a bar has met none.
func (r Report) Met() bool {
	return len(r.Bars) > 0 && !slices.ContainsFunc(r.Bars, func(b Bar) bool { return !b.Met })
}

// SpeedBars compares the pods per second of ours with those of stock, median with median, for each load: the ratio has to be at least
// least. A load that did not run with both has no bar.
func SpeedBars(runs []Run, least float64) []Bar {
	var bars []Bar
	for _, load := range loads(runs) {
		ratio, ok := Ratio(runs, load, func(r Run) float64 { return r.PodsPerSecond })
		if ok {
			bars = append(bars, bar(load, "pods/s, ours/stock", ratio, least, false),
				noneBar(runs, load, "pods without a node", func(r Run) int { return r.Unbound }))
		}
	}
	return bars
}

// LargeBars compares each load's largest peak of memory, in bytes, and the median time of scoring per pod, in microseconds, with the
// most that they may be. No pod may be left without a node that fits on one. Pods that fit on none are possible where the scheduler gets
// the pods in no order: the last ones can be large.
func LargeBars(runs []Run, bytes, microseconds float64) []Bar {
	var bars []Bar
	for _, load := range loads(runs) {
		bars = append(bars, bar(load, "peak memory in bytes", slices.Max(Values(runs, load, Ours, peak)), bytes, true),
			bar(load, "CPU time of the plugin's scoring in µs/pod", Median(Values(runs, load, Ours, scoring)), microseconds, true),
			noneBar(runs, load, "pods without a node that fit on one", func(r Run) int { return r.Overlooked }))
	}
	return bars
}

// noneBar demands that a number of pods is 0 in all runs.
func noneBar(runs []Run, load, what string, pods func(Run) int) Bar {
	b := Bar{Load: load, What: what, AtMost: true}
	for _, r := range runs {
		if r.Load == load {
			b.Value += float64(pods(r))
		}
	}
	b.Met = b.Value == 0
	return b
}

func peak(r Run) float64 { return float64(r.PeakBytes) }

func scoring(r Run) float64 {
	if r.Profile == nil {
		return 0
	}
	return r.Profile.ScoringMicroseconds
}

func allOfBerth(r Run) float64 {
	if r.Profile == nil {
		return 0
	}
	return r.Profile.BerthMicroseconds
}

func bar(load, what string, value, limit float64, atMost bool) Bar {
	b := Bar{Load: load, What: what, Value: value, Limit: limit, AtMost: atMost, Met: value >= limit}
	if atMost {
		// Nothing costs nothing: a value of 0 was not measured.
		b.Met = value > 0 && value <= limit
	}
	return b
}

// Ratio returns the median of ours over that of stock. It is false without values of both.
func Ratio(runs []Run, load string, value func(Run) float64) (float64, bool) {
	ours, stock := Values(runs, load, Ours, value), Values(runs, load, Stock, value)
	if len(ours) == 0 || len(stock) == 0 || Median(stock) == 0 {
		return 0, false
	}
	return Median(ours) / Median(stock), true
}

// Values returns a value of each run of a load with a scheduler, in the order of the turns.
func Values(runs []Run, load, scheduler string, value func(Run) float64) []float64 {
	chosen := slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Load != load || r.Scheduler != scheduler })
	slices.SortStableFunc(chosen, func(a, b Run) int { return cmp.Compare(a.Turn, b.Turn) })
	var values []float64
	for _, r := range chosen {
		values = append(values, value(r))
	}
	return values
}

// Median returns the middle value, of an even number the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// loads returns the names of the loads in the order of their first runs.
func loads(runs []Run) []string {
	var names []string
	for _, r := range runs {
		if !slices.Contains(names, r.Load) {
			names = append(names, r.Load)
		}
	}
	return names
}
