package report

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

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
		// want has one entry per bar; wantMet is the report's.
		want    []float64
		wantMet bool
	}{
		"faster":         {runs: runs("a", []float64{100, 500, 90}, []float64{110, 1, 120}), want: []float64{1.1}, wantMet: true},
		"just":           {runs: runs("a", []float64{100}, []float64{95}), want: []float64{0.95}, wantMet: true},
		"slower":         {runs: runs("a", []float64{100}, []float64{94}), want: []float64{0.94}},
		"an even number": {runs: runs("a", []float64{90, 110}, []float64{100, 300}), want: []float64{2}, wantMet: true},
		"one of two loads slower": {runs: append(runs("a", []float64{1}, []float64{1}), runs("b", []float64{2}, []float64{1})...),
			want: []float64{1, 0.5}},
		"nothing to compare with":  {runs: runs("a", nil, []float64{100})},
		"no runs":                  {},
		"stock that binds nothing": {runs: runs("a", []float64{0}, []float64{100})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bars := SpeedBars(tc.runs, 0.95)
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

// TestUnboundPodsMissABar: a scheduler that leaves pods behind is not fast.
func TestUnboundPodsMissABar(t *testing.T) {
	all := runs("a", []float64{1, 1}, []float64{2, 2})
	if !(Report{Bars: SpeedBars(all, 0.95)}).Met() {
		t.Fatal("a bar is missed although all pods are bound")
	}
	all[2].Unbound = 1
	if bars := SpeedBars(all, 0.95); (Report{Bars: bars}).Met() {
		t.Errorf("all bars are met although a pod has no node: %+v", bars)
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
	r := Report{Version: 1, Seed: 7, Machine: Machine{Cores: 2, LoadBefore: 0.6, SchedulerCores: []int{1}, OtherCores: []int{0}},
		Runs: runs("mixed", []float64{100, 120}, []float64{90}), Bars: SpeedBars(runs("mixed", []float64{100, 120}, []float64{90}), 0.95)}
	var text, document bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seed: 7\n", "load 0.60 before", "warning: other work", "cores: 1 the scheduler's, 0 of etcd", "100, 120", "0.82",
		"0.818, bar at least 0.950: MISSED"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if err := r.WriteJSON(&document); err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(document.Bytes(), &got); err != nil || len(got.Runs) != 3 || got.Seed != 7 || got.Met() {
		t.Errorf("read back %+v, %v", got, err)
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
