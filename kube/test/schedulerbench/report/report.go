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
	// InTree is Berth's scheduler with Kubernetes' own gang scheduling.
	InTree = "berth-intree"
)

// Run is one measured run. Its JSON form is part of the report's.
type Run struct {
	// Load and Scheduler are names; Turn counts the runs of one load from 1, in the order in which they ran.
	Load      string `json:"load"`
	Scheduler string `json:"scheduler"`
	Turn      int    `json:"turn"`
	Nodes     int    `json:"nodes"`
	Pods      int    `json:"pods"`
	// Gates are the feature gates that were on for this run.
	Gates []string `json:"gates,omitempty"`
	// Unbound is how many pods the scheduler found no node for. Loads are such that all fit when they come in their order, but for the one
	// that is impossible.
	Unbound int `json:"unbound"`
	// Overlooked is how many of these fit on a node at the end.
	Overlooked int `json:"overlooked"`
	GPUs       int `json:"gpus"`
	// Seconds are from the first bind to the last; the speed is 0 when fewer than two pods were bound.
	Seconds       float64 `json:"seconds"`
	PodsPerSecond float64 `json:"podsPerSecond"`
	// CPUSeconds are those of the scheduler's process from its start to the last bind or refusal, and PeakBytes its largest resident set in
	// that time.
	CPUSeconds float64 `json:"cpuSeconds"`
	PeakBytes  int64   `json:"peakBytes"`
	// Reused is how many pods got a node from the scores of the pod before (the scheduler's batching).
	Reused int `json:"reused"`
	// ScoringMicroseconds are those of the extension points that score, per pod, with all plugins (see scheduler.Counts).
	ScoringMicroseconds float64 `json:"scoringMicroseconds"`
	// PluginCalls are the calls of Berth's placement plugin, once per pod or per node.
	PluginCalls int `json:"pluginCalls"`
	// Gangs is absent for a load without gangs.
	Gangs *Gangs `json:"gangs,omitempty"`
	// Refusal is absent for a load whose pods fit.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Beside is absent for a load without other pods beside its gangs.
	Beside *Beside `json:"beside,omitempty"`
	// Profile is absent for a run without one.
	Profile *Profile `json:"profile,omitempty"`
}

// Gangs is what became of the gangs of a run.
type Gangs struct {
	Count int `json:"count"`
	// Whole is how many gangs are bound with all their pods, and Partial how many with some, but not all. The others are not bound.
	Whole   int `json:"whole"`
	Partial int `json:"partial"`
	// Restricted is how many gangs have to be within a part of the cluster, and Scattered how many of them are not.
	Restricted int `json:"restricted"`
	Scattered  int `json:"scattered"`
	// PerSecond counts whole gangs from the first bind to the last.
	PerSecond float64 `json:"perSecond"`
	// LongestSeconds is the longest time from the first bind of a whole gang to its last.
	LongestSeconds float64 `json:"longestSeconds"`
	// Attempts, DecisionMilliseconds and CycleMilliseconds are those of Kubernetes' own gang scheduling, 0 with any other: how often a
	// whole gang was tried, and the mean time of an attempt, without and with what is written before the next attempt begins.
	Attempts             int     `json:"attempts,omitempty"`
	DecisionMilliseconds float64 `json:"decisionMilliseconds,omitempty"`
	CycleMilliseconds    float64 `json:"cycleMilliseconds,omitempty"`
}

// Beside is how long pods without a gang waited for their node beside gangs, from the creation of these on.
type Beside struct {
	Pods int `json:"pods"`
	// Unbound is how many of them got no node. The times are those of the others.
	Unbound int `json:"unbound"`
	// MedianSeconds and Seconds99 are the times within which half and 99 of 100 of the pods had their node, MostSeconds the longest.
	MedianSeconds float64 `json:"medianSeconds"`
	Seconds99     float64 `json:"seconds99"`
	MostSeconds   float64 `json:"mostSeconds"`
}

// Refusal is what a scheduler said of the pods for which it found no node.
type Refusal struct {
	// Pods is how many it refused.
	Pods int `json:"pods"`
	// FirstSeconds and Seconds are from the creation of the last pod until the first and until all of these were refused.
	FirstSeconds float64 `json:"firstSeconds"`
	Seconds      float64 `json:"seconds"`
	// Messages are what it said, each once, sorted.
	Messages []string `json:"messages"`
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

// Report is what a benchmark prints.
type Report struct {
	// Version is that of the JSON form.
	Version int     `json:"version"`
	Machine Machine `json:"machine"`
	Seed    uint64  `json:"seed"`
	Runs    []Run   `json:"runs"`
	Bars    []Bar   `json:"bars"`
}

// Ratio returns the median of a scheduler over that of stock. It is false without values of both.
func Ratio(runs []Run, load, scheduler string, value func(Run) float64) (float64, bool) {
	ours, stock := Values(runs, load, scheduler, value), Values(runs, load, Stock, value)
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
