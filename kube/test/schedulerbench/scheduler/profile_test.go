package scheduler

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// stacks returns a CPU profile with a sample of so many seconds for each stack, innermost function first.
func stacks(kind string, samples map[int64][]string) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: kind, Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: kind, Unit: "nanoseconds"}}
	for seconds, names := range samples {
		sample := &profile.Sample{Value: []int64{1, seconds * int64(time.Second)}}
		for _, name := range names {
			f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
			l := &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
			p.Function, p.Location, sample.Location = append(p.Function, f), append(p.Location, l), append(sample.Location, l)
		}
		p.Sample = append(p.Sample, sample)
	}
	return p
}

func TestSumUp(t *testing.T) {
	tests := map[string]struct {
		samples map[int64][]string
		// want are seconds.
		want CPUProfile
	}{
		"none": {},
		"the stock scheduler": {samples: map[int64][]string{
			2: {"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources.(*Fit).Score", "main.main"}}, want: CPUProfile{All: 2}},
		"scores": {samples: map[int64][]string{
			1: {berth + "internal/core/fleet.Fit", plugin + "PreFilter", "k8s.io/kubernetes/pkg/scheduler.x"},
			2: {plugin + "Score"},
			4: {"slices.Sort", plugin + "NormalizeScore.func1"},
			8: {plugin + "PreScore"}}, want: CPUProfile{All: 15, Berth: 15, Scoring: 15}},
		"other methods, other code of ours, and none of ours": {samples: map[int64][]string{
			1: {"runtime.mapaccess1", plugin + "Filter"},
			2: {plugin + "Reserve"},
			4: {berth + "internal/cluster/scheduler/gpunodes.(*Follower).Run"},
			8: {"runtime.gcBgMarkWorker"}}, want: CPUProfile{All: 15, Berth: 7}},
		"names that only begin like ours": {samples: map[int64][]string{
			1: {"github.com/berth-gpu/berthing.Score"},
			2: {plugin + "ScoreExtensions"}}, want: CPUProfile{All: 3, Berth: 2}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := sumUp(stacks("cpu", tc.samples))
			want := CPUProfile{All: tc.want.All * time.Second, Berth: tc.want.Berth * time.Second, Scoring: tc.want.Scoring * time.Second}
			if err != nil || got != want {
				t.Errorf("sumUp = %+v, %v; want %+v", got, err, want)
			}
		})
	}
	if _, err := sumUp(stacks("delay", nil)); err == nil {
		t.Error("no error for another profile, want one")
	}
}

func TestWriteKeepsTheProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpu.pprof")
	if err := write(path, stacks("cpu", map[int64][]string{3: {plugin + "Score"}})); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read, err := profile.ParseData(data)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sumUp(read); err != nil || got.Scoring != 3*time.Second {
		t.Errorf("read back %+v, %v; want 3 s of scoring", got, err)
	}
}
