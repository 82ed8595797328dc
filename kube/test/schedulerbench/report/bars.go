package report

import "slices"

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

// Met tells whether all bars were met. A report without a bar has met none.
func (r Report) Met() bool {
	return len(r.Bars) > 0 && !slices.ContainsFunc(r.Bars, func(b Bar) bool { return !b.Met })
}

// Limits are the limits of a load. A limit of 0 is none.
type Limits struct {
	// LeastSpeed is the least ratio of ours to stock in pods per second.
	LeastSpeed float64
	// MostSeconds is the longest time of ours until pods that fit nowhere are refused.
	MostSeconds float64
	// MostWait is the longest time in seconds that 99 of 100 pods beside gangs wait with ours.
	MostWait float64
}

// CompareBars compares ours with stock, median with median, for each load. The limits are by the names of the loads. A load that did not
// run with both has no bar for the speed. What must never be has a bar always: a pod without a node with any scheduler, where all fit;
// with Berth's schedulers a gang of which some pods are bound, one that is not within the part of the cluster that it demands, and a bound
// pod of a gang that does not fit.
func CompareBars(runs []Run, limits map[string]Limits) []Bar {
	var bars []Bar
	for _, load := range loads(runs) {
		of := slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Load != load })
		limit, impossible := limits[load], slices.ContainsFunc(of, func(r Run) bool { return r.Refusal != nil })
		if impossible {
			bars = append(bars, noneBar(of, load, "bound pods of a gang that does not fit", byBerth(func(r Run) int { return r.Pods - r.Unbound })))
		} else {
			bars = append(bars, speedBars(of, load, limit.LeastSpeed)...)
			bars = append(bars, noneBar(of, load, "pods without a node", func(r Run) int { return r.Unbound }))
		}
		if seconds := Values(of, load, Ours, refusalSeconds); limit.MostSeconds > 0 && impossible && len(seconds) > 0 {
			bars = append(bars, bar(load, "seconds until all pods are refused", Median(seconds), limit.MostSeconds, true))
		}
		if waits := Values(of, load, Ours, wait99); limit.MostWait > 0 && len(waits) > 0 {
			bars = append(bars, bar(load, "seconds that 99 of 100 other pods wait", Median(waits), limit.MostWait, true))
		}
		if slices.ContainsFunc(of, hasGangs) && !impossible {
			bars = append(bars, noneBar(of, load, "gangs of which some pods are bound", byBerth(func(r Run) int { return r.Gangs.Partial })))
		}
		if slices.ContainsFunc(of, restricted) {
			bars = append(bars, noneBar(of, load, "gangs on nodes that are too far apart", byBerth(func(r Run) int { return r.Gangs.Scattered })))
		}
	}
	return bars
}

// speedBars returns the bar for the pods per second, if there is a limit and the load ran with both.
func speedBars(runs []Run, load string, least float64) []Bar {
	speed := func(r Run) float64 { return r.PodsPerSecond }
	if least == 0 || len(Values(runs, load, Ours, speed)) == 0 || len(Values(runs, load, Stock, speed)) == 0 {
		return nil
	}
	// The ratio to a stock that bound nothing is 0, which misses the bar.
	ratio, _ := Ratio(runs, load, Ours, speed)
	return []Bar{bar(load, "pods/s, ours/stock", ratio, least, false)}
}

// byBerth counts what Berth's schedulers did.
func byBerth(count func(Run) int) func(Run) int {
	return func(r Run) int {
		if r.Scheduler == Stock {
			return 0
		}
		return count(r)
	}
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

// noneBar demands that a number is 0 in all runs of a load.
func noneBar(runs []Run, load, what string, count func(Run) int) Bar {
	b := Bar{Load: load, What: what, AtMost: true}
	for _, r := range runs {
		if r.Load == load {
			b.Value += float64(count(r))
		}
	}
	b.Met = b.Value == 0
	return b
}

func bar(load, what string, value, limit float64, atMost bool) Bar {
	b := Bar{Load: load, What: what, Value: value, Limit: limit, AtMost: atMost, Met: value >= limit}
	if atMost {
		// Nothing costs nothing: a value of 0 was not measured.
		b.Met = value > 0 && value <= limit
	}
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

func wait99(r Run) float64 {
	if r.Beside == nil {
		return 0
	}
	return r.Beside.Seconds99
}

func hasGangs(r Run) bool { return r.Gangs != nil }

func restricted(r Run) bool { return r.Gangs != nil && r.Gangs.Restricted > 0 }

func refusalSeconds(r Run) float64 {
	if r.Refusal == nil {
		return 0
	}
	return r.Refusal.Seconds
}
