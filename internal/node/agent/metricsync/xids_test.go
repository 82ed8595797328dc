package metricsync

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestXIDs checks that an error that NVML and the kernel log both report counts once.
func TestXIDs(t *testing.T) {
	event, line := gpu.Event{GPU: "GPU-a", Code: gpu.XID(94)}, gpu.Event{GPU: "GPU-a", Code: gpu.XID(94), Log: true}
	for title, test := range map[string]struct {
		events []gpu.Event
		want   uint64
	}{
		"reported by both":               {[]gpu.Event{event, line}, 1},
		"the log first":                  {[]gpu.Event{line, event}, 1},
		"a storm":                        {[]gpu.Event{event, event, line, event, line, line}, 3},
		"NVML missed one":                {[]gpu.Event{event, line, line}, 2},
		"the log cannot be read":         {[]gpu.Event{event, event}, 2},
		"another GPU, and no XID at all": {[]gpu.Event{{GPU: "GPU-b"}, {Code: gpu.XID(94)}, event}, 1},
	} {
		t.Run(title, func(t *testing.T) {
			var counts XIDs
			for i, e := range test.events {
				e.Time = time.Unix(int64(i), 0)
				counts.Add(e)
			}
			all := counts.All()
			if len(all) != 1 || all[0].Count != test.want || !all[0].Last.Equal(time.Unix(int64(len(test.events)-1), 0)) {
				t.Errorf("counted %+v, want one XID %d times, at last with the last event", all, test.want)
			}
		})
	}
}

// TestRecentXIDs checks that only the errors of the window are kept, each once, and a bounded number of them.
func TestRecentXIDs(t *testing.T) {
	start := time.Unix(0, 0)
	for title, test := range map[string]struct {
		seconds []int
		want    int
	}{
		"one":                     {[]int{0}, 1},
		"two, close to the other": {[]int{0, 299}, 2},
		"one of two is too old":   {[]int{0, 301}, 1},
		"a storm":                 {make([]int, 2000), 1000},
	} {
		t.Run(title, func(t *testing.T) {
			var counts XIDs
			for _, s := range test.seconds {
				at := start.Add(time.Duration(s) * time.Second)
				counts.Add(gpu.Event{GPU: "GPU-a", Code: gpu.XID(94), Time: at})
				counts.Add(gpu.Event{GPU: "GPU-a", Code: gpu.XID(94), Log: true, Time: at})
			}
			if got := counts.All()[0].Recent; len(got) != test.want {
				t.Errorf("%d are recent, want %d", len(got), test.want)
			}
		})
	}
}
