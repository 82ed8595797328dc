package mig

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// FuzzPlan plans GPUs and layouts made of arbitrary data: none may panic, a plan that is not refused can be executed,
// and the picture keeps its width.
func FuzzPlan(f *testing.F) {
	f.Add("1g.5gb", "1g.5gb+me", 2, 1, []byte{8, 7, 1, 1, 7, 0, 1, 2, 3, 1, 1, 1, 0, 3})
	f.Add("3g.20gb", "1c.3g.20gb", 1, 1, []byte{8, 7, 4, 3, 2, 0, 4, 9, 9, 4, 1, 1, 4})
	f.Add("", "+", -1, 1<<62, []byte{255, 255, 0, 0, 0})
	f.Add("x", "x", 1<<62, 1<<62, []byte{64, 64, 1, 1, 255, 63})
	f.Fuzz(func(t *testing.T, first, second string, n, m int, shape []byte) {
		next := func() int {
			if len(shape) == 0 {
				return 0
			}
			value := int(int8(shape[0]))
			shape = shape[1:]
			return value
		}
		g := GPU{UUID: "GPU-0", Capable: true, Enabled: true, Geometry: gpu.MIGGeometry{MemorySlices: next() % 9, ComputeSlices: next()}}
		for _, name := range []string{first, second} {
			p := gpu.MIGProfile{Name: name, Size: next(), ComputeSlices: next(), Max: next()}
			for range 4 {
				p.Starts = append(p.Starts, next())
			}
			g.Geometry.Profiles = append(g.Geometry.Profiles, p)
		}
		for i := range 3 {
			g.Instances = append(g.Instances, Instance{
				UUID: gpu.UUID("MIG-" + string(rune('a'+i))), GI: i, Profile: []string{first, second}[i%2], Start: next(), Size: next(),
			})
		}
		wanted := Wanted{Enabled: next() >= 0, Devices: map[string]int{first: n, second: m}}
		fuzzExact(t, g, Wanted{Enabled: wanted.Enabled, Placed: []Placed{
			{Profile: first, Start: n, Size: next()}, {Profile: second, Start: m, Size: next()}, {Profile: second, Start: next(), Size: next()},
		}})
		plan := PlanGPU(g, wanted)
		if plan.Refused == "" {
			if got := len(plan.Keep) + len(plan.Create); wanted.Enabled && got != total(wanted.Devices) {
				t.Fatalf("%d devices, want %d", got, total(wanted.Devices))
			}
		} else if plan.Changes() {
			t.Fatalf("refused (%s), and yet it does something", plan.Refused)
		}
		if !utf8.ValidString(first+second) || strings.ContainsAny(first+second, "\n") {
			return
		}
		for line := range strings.Lines(Describe([]GPUPlan{plan}, []GPU{g})) {
			if strings.HasPrefix(line, "  now ") && len(line) > 8*maxCell+12 {
				t.Fatalf("%d letters: %s", len(line), line)
			}
		}
	})
}

// fuzzExact plans exact placements: a plan that is not refused leads to exactly these.
func fuzzExact(t *testing.T, g GPU, wanted Wanted) {
	t.Helper()
	plan := PlanGPU(g, wanted)
	if plan.Refused != "" {
		if plan.Changes() {
			t.Fatalf("refused (%s), and yet it does something", plan.Refused)
		}
		return
	}
	got, want := planned(plan), slices.Clone(wanted.Placed)
	for _, list := range [][]Placed{got, want} {
		slices.SortFunc(list, func(a, b Placed) int { return a.Start - b.Start })
	}
	if !slices.Equal(got, want) {
		t.Fatalf("planned %v, want %v", got, want)
	}
}

func total(devices map[string]int) int {
	n := 0
	for _, count := range devices {
		n += count
	}
	return n
}
