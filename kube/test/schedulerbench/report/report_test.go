package report

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// runs returns runs of one load with these speeds.
func runs(load string, stock, ours []float64) []Run {
	var all []Run
	for i := range max(len(stock), len(ours)) {
		if i < len(stock) {
			all = append(all, Run{Load: load, Scheduler: Stock, Turn: len(all) + 1, PodsPerSecond: stock[i]})
		}
		if i < len(ours) {
			all = append(all, Run{Load: load, Scheduler: Ours, Turn: len(all) + 1, PodsPerSecond: ours[i]})
		}
	}
	return all
}

func TestSpeedBars(t *testing.T) {
	tests := map[string]struct {
		runs []Run
		// want has one entry per bar of a speed; wantMet is the report's.
		want    []float64
		wantMet bool
	}{
		"faster":         {runs: runs("a", []float64{100, 500, 90}, []float64{110, 1, 120}), want: []float64{1.1}, wantMet: true},
		"just":           {runs: runs("a", []float64{100}, []float64{95}), want: []float64{0.95}, wantMet: true},
		"slower":         {runs: runs("a", []float64{100}, []float64{94}), want: []float64{0.94}},
		"an even number": {runs: runs("a", []float64{90, 110}, []float64{100, 300}), want: []float64{2}, wantMet: true},
		"one of two loads slower": {runs: append(runs("a", []float64{1}, []float64{1}), runs("b", []float64{2}, []float64{1})...),
			want: []float64{1, 0.5}},
		"nothing to compare with":  {runs: runs("a", nil, []float64{100}), wantMet: true},
		"no bar":                   {runs: runs("free", []float64{100}, []float64{1}), wantMet: true},
		"no runs":                  {},
		"stock that binds nothing": {runs: runs("a", []float64{0}, []float64{100}), want: []float64{0}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bars := CompareBars(tc.runs, speedLimits())
			var got []float64
			for _, b := range bars {
				if !b.AtMost {
					got = append(got, b.Value)
				}
			}
			if met := (Report{Bars: bars}).Met(); !slices.Equal(got, tc.want) || met != tc.wantMet {
				t.Errorf("ratios %v, met %v; want %v, %v", got, met, tc.want, tc.wantMet)
			}
		})
	}
}

// speedLimits limit the speed of all loads of the tests but "free".
func speedLimits() map[string]Limits {
	return map[string]Limits{"a": {LeastSpeed: 0.95}, "b": {LeastSpeed: 0.95}, "mixed": {LeastSpeed: 0.95}}
}

// TestUnboundPodsMissABar: a scheduler that leaves pods behind is not fast.
func TestUnboundPodsMissABar(t *testing.T) {
	all := runs("a", []float64{1, 1}, []float64{2, 2})
	if !(Report{Bars: CompareBars(all, speedLimits())}).Met() {
		t.Fatal("a bar is missed although all pods are bound")
	}
	all[2].Unbound = 1
	if bars := CompareBars(all, speedLimits()); (Report{Bars: bars}).Met() {
		t.Errorf("all bars are met although a pod has no node: %+v", bars)
	}
}

func TestGangBars(t *testing.T) {
	of := func(scheduler string, g Gangs) Run {
		return Run{Load: "a", Scheduler: scheduler, Turn: 1, PodsPerSecond: 1, Gangs: &g}
	}
	tests := map[string]struct {
		runs []Run
		// want are the bars that are missed.
		want []string
		bars int
	}{
		"all whole":                 {runs: []Run{of(Stock, Gangs{Whole: 2}), of(Ours, Gangs{Whole: 2})}, bars: 3},
		"one partly bound":          {runs: []Run{of(Stock, Gangs{}), of(Ours, Gangs{Partial: 1})}, want: []string{"gangs of which some pods are bound"}, bars: 3},
		"in-tree counts as Berth's": {runs: []Run{of(InTree, Gangs{Partial: 1})}, want: []string{"gangs of which some pods are bound"}, bars: 2},
		"stock does not count":      {runs: []Run{of(Stock, Gangs{Partial: 1, Restricted: 2, Scattered: 1}), of(Ours, Gangs{Restricted: 2})}, bars: 4},
		"one too far apart": {runs: []Run{of(Stock, Gangs{Restricted: 1}), of(Ours, Gangs{Restricted: 1, Scattered: 1})},
			want: []string{"gangs on nodes that are too far apart"}, bars: 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bars := CompareBars(tc.runs, speedLimits())
			var got []string
			for _, b := range bars {
				if !b.Met {
					got = append(got, b.What)
				}
			}
			if !slices.Equal(got, tc.want) || len(bars) != tc.bars {
				t.Errorf("%q are missed of %+v, want %q of %d", got, bars, tc.want, tc.bars)
			}
		})
	}
}

func TestRefusalBars(t *testing.T) {
	of := func(scheduler string, seconds float64, unbound int) Run {
		return Run{Load: "a", Scheduler: scheduler, Pods: 10, Unbound: unbound, Gangs: &Gangs{}, Refusal: &Refusal{Seconds: seconds}}
	}
	const bound, late = "bound pods of a gang that does not fit", "seconds until all pods are refused"
	tests := map[string]struct {
		runs   []Run
		limits Limits
		want   []string
	}{
		"none bound":                 {runs: []Run{of(Stock, 9, 10), of(Ours, 1, 10)}, limits: Limits{MostSeconds: 1}},
		"no limit":                   {runs: []Run{of(Stock, 9, 10), of(Ours, 100, 10)}},
		"late":                       {runs: []Run{of(Ours, 1.5, 10)}, limits: Limits{MostSeconds: 1}, want: []string{late}},
		"a median":                   {runs: []Run{of(Ours, 1.5, 10), of(Ours, 0.5, 10), of(Ours, 0.4, 10)}, limits: Limits{MostSeconds: 1}},
		"some bound":                 {runs: []Run{of(Stock, 9, 10), of(Ours, 1, 1)}, limits: Limits{MostSeconds: 1}, want: []string{bound}},
		"some bound by stock":        {runs: []Run{of(Stock, 9, 1), of(Ours, 1, 10)}},
		"the speed is not asked for": {runs: []Run{of(Stock, 9, 10), of(Ours, 1, 10)}, limits: Limits{LeastSpeed: 1.5}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, b := range CompareBars(tc.runs, map[string]Limits{"a": tc.limits}) {
				if !b.Met {
					got = append(got, b.What)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%q are missed, want %q", got, tc.want)
			}
		})
	}
}

// TestOverlookedPodsMissABar: in the large run a pod may find no node, but not while it fits on one.
func TestOverlookedPodsMissABar(t *testing.T) {
	all := []Run{{Load: "a", Scheduler: Ours, PeakBytes: 1, Unbound: 2, Profile: &Profile{ScoringMicroseconds: 1}}}
	if bars := LargeBars(all, 10, 20); !(Report{Bars: bars}).Met() {
		t.Errorf("a bar is missed: %+v", bars)
	}
	all[0].Overlooked = 1
	if bars := LargeBars(all, 10, 20); (Report{Bars: bars}).Met() {
		t.Errorf("all bars are met although a pod was overlooked: %+v", bars)
	}
}

func TestLargeBars(t *testing.T) {
	tests := map[string]struct {
		bytes        []int64
		microseconds []float64
		want         []bool
	}{
		"below":            {bytes: []int64{5, 10}, microseconds: []float64{20}, want: []bool{true, true, true}},
		"one peak above":   {bytes: []int64{5, 11, 5}, microseconds: []float64{20, 20, 20}, want: []bool{false, true, true}},
		"median time over": {bytes: []int64{5, 5, 5}, microseconds: []float64{1, 21, 22}, want: []bool{true, false, true}},
		"not measured":     {bytes: []int64{0}, microseconds: []float64{0}, want: []bool{false, false, true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var all []Run
			for i, b := range tc.bytes {
				all = append(all, Run{Load: "a", Scheduler: Ours, Turn: i, PeakBytes: b,
					Profile: &Profile{ScoringMicroseconds: tc.microseconds[min(i, len(tc.microseconds)-1)]}})
			}
			var got []bool
			for _, b := range LargeBars(all, 10, 20) {
				got = append(got, b.Met)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("met %v, want %v", got, tc.want)
			}
		})
	}
}

// TestMedianTwin compares with counting: as many values are at or below the median as at or above it, and it lies between values.
func TestMedianTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1000), 1, 20).Draw(t, "values")
		before := slices.Clone(values)
		median, below, above := Median(values), 0, 0
		for _, v := range values {
			if v <= median {
				below++
			}
			if v >= median {
				above++
			}
		}
		if 2*below < len(values) || 2*above < len(values) || median < slices.Min(values) || median > slices.Max(values) {
			t.Errorf("median %v of %v", median, values)
		}
		if !slices.Equal(values, before) {
			t.Errorf("the values were changed to %v", values)
		}
	})
}

func TestWrite(t *testing.T) {
	gang := func(r Run, g Gangs) Run { r.Gangs = &g; return r }
	refused := Run{Load: "x", Scheduler: Ours, Gates: []string{"GenericWorkload"}, Pods: 10, Unbound: 10, Gangs: &Gangs{Count: 1},
		Refusal: &Refusal{Pods: 10, FirstSeconds: 0.012, Seconds: 0.25, Messages: []string{"too few nodes"}}}
	three := []Run{{Load: "g", Scheduler: Stock, Turn: 1, PodsPerSecond: 100}, {Load: "g", Scheduler: Ours, Turn: 2, PodsPerSecond: 200},
		{Load: "g", Scheduler: InTree, Turn: 3, PodsPerSecond: 50}}
	for i := range three {
		three[i] = gang(three[i], Gangs{Count: 25, Whole: 25, Restricted: 25, Scattered: i, PerSecond: 12.5})
	}
	tests := map[string]struct {
		runs []Run
		want []string
		not  []string
	}{
		"two schedulers": {runs: runs("mixed", []float64{100, 120}, []float64{90}),
			want: []string{"seed: 7\n", "load 0.60 before", "warning: other work", "cores: 1 the scheduler's, 0 of etcd", "100, 120", "0.82",
				"stock  ours  ours/stock  stock, each run  ours, each run", "0.818, bar at least 0.950: MISSED"},
			not: []string{"gangs", "refused", "berth-intree"}},
		"gangs, three schedulers": {runs: three,
			want: []string{"gangs: 25\n", "stock  ours  berth-intree  ours/stock  berth-intree/stock", "gangs/s ", "12.5", "gangs too far apart", "2.00",
				"g: gangs on nodes that are too far apart is 3.000, bar at most 0: MISSED"},
			not: []string{"refused"}},
		"gangs, in tree and not": {runs: []Run{gang(three[0], Gangs{Count: 25, Attempts: 26}), gang(three[1], Gangs{Count: 25})},
			want: []string{"in-tree: attempts for a gang       26     -     -           26               -\n"}},
		"a refusal": {runs: []Run{refused},
			want: []string{"s until all pods are refused", "0.250", "0.012", "ours says: too few nodes", "ours ran with the feature gates GenericWorkload"},
			not:  []string{"\npods/s", "in-tree"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := Report{Version: 1, Seed: 7, Machine: Machine{Cores: 2, LoadBefore: 0.6, SchedulerCores: []int{1}, OtherCores: []int{0}},
				Runs: tc.runs, Bars: CompareBars(tc.runs, speedLimits())}
			var text, document bytes.Buffer
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("no %q in\n%s", want, text.String())
				}
			}
			for _, not := range tc.not {
				if strings.Contains(text.String(), not) {
					t.Errorf("%q in\n%s", not, text.String())
				}
			}
			if err := r.WriteJSON(&document); err != nil {
				t.Fatal(err)
			}
			var got Report
			if err := json.Unmarshal(document.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, got); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBusy(t *testing.T) {
	tests := map[string]struct {
		machine Machine
		want    bool
	}{
		"idle":             {machine: Machine{Cores: 2, LoadBefore: 0.1}},
		"a little":         {machine: Machine{Cores: 2, LoadBefore: 0.5}},
		"one core of two":  {machine: Machine{Cores: 2, LoadBefore: 1}, want: true},
		"one core of many": {machine: Machine{Cores: 32, LoadBefore: 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.machine.Busy(); got != tc.want {
				t.Errorf("Busy = %v, want %v", got, tc.want)
			}
		})
	}
}
