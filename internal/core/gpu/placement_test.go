package gpu_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"pgregory.net/rapid"
)

func placed(id gpu.UUID, start, size int) gpu.DeviceKey {
	return gpu.Placed(id, gpu.Placement{Start: start, Size: size})
}

func TestOverlapsByPlacement(t *testing.T) {
	at := func(key gpu.DeviceKey, start, size int) gpu.Located {
		return gpu.Located{Key: key, At: gpu.Placement{Start: start, Size: size}}
	}
	only := func(key gpu.DeviceKey) gpu.Located { return gpu.Located{Key: key} }
	mig1, mig2 := gpu.DeviceKey{GPU: "G0", MIG: "M1"}, gpu.DeviceKey{GPU: "G0", MIG: "M2"}
	share := func(key gpu.DeviceKey, n int) gpu.DeviceKey { key.Share = n; return key }
	lower, upper := only(placed("G0", 0, 4)), only(placed("G0", 4, 4))
	tests := map[string]struct {
		a    gpu.Located
		b    gpu.Located
		want bool
	}{
		"a placement and itself":                             {lower, lower, true},
		"two halves":                                         {lower, upper, false},
		"one within the other":                               {lower, only(placed("G0", 3, 1)), true},
		"one slice in common":                                {lower, only(placed("G0", 3, 2)), true},
		"the same slices of two GPUs":                        {lower, only(placed("G1", 0, 4)), false},
		"a placement and the whole GPU":                      {lower, only(gpu.DeviceKey{GPU: "G0"}), true},
		"a placement and a replica of the GPU":               {lower, only(gpu.DeviceKey{GPU: "G0", Share: 2}), true},
		"a placement and a MIG device below it":              {lower, at(mig1, 2, 2), true},
		"a placement and a MIG device beside it":             {lower, at(mig1, 4, 2), false},
		"a placement and a replica of a MIG device there":    {lower, at(share(mig1, 1), 0, 4), true},
		"a placement and a replica of one beside it":         {lower, at(share(mig1, 1), 4, 4), false},
		"a placement and a MIG device at an unknown place":   {lower, only(mig1), true},
		"two MIG devices in one GPU instance":                {at(mig1, 0, 4), at(mig2, 0, 4), false},
		"a replica of a placement and the placement":         {lower, only(share(lower.Key, 1)), true},
		"two replicas of a placement":                        {only(share(lower.Key, 1)), only(share(lower.Key, 2)), false},
		"replicas of two placements that overlap":            {only(share(lower.Key, 1)), only(share(placed("G0", 0, 2), 2)), true},
		"the last slices that a number can name":             {only(placed("G0", math.MaxInt-1, math.MaxInt)), only(placed("G0", math.MaxInt, 1)), true},
		"the first and the last slice that can be named":     {only(placed("G0", 0, 1)), only(placed("G0", math.MaxInt, math.MaxInt)), false},
		"a MIG device and itself, whatever the placement is": {at(mig1, 0, 4), only(mig1), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.a.Overlaps(test.b) != test.want || test.b.Overlaps(test.a) != test.want {
				t.Errorf("Overlaps(%v, %v), want %v", test.a, test.b, test.want)
			}
		})
	}
}

// twinCells is the simple twin of the rule: the memory slices of an eight-slice GPU that a device has or may have.
func twinCells(d gpu.Located) map[int]bool {
	from, to := 0, 8
	switch {
	case d.Key.Placement.Known():
		from, to = d.Key.Placement.Start, d.Key.Placement.Start+d.Key.Placement.Size
	case d.Key.MIG != "" && d.At.Known():
		from, to = d.At.Start, d.At.Start+d.At.Size
	}
	cells := map[int]bool{}
	for i := from; i < to; i++ {
		cells[i] = true
	}
	return cells
}

func drawLocated(t *rapid.T, label string) gpu.Located {
	start := rapid.IntRange(0, 7).Draw(t, label+" start")
	at := gpu.Placement{Start: start, Size: rapid.IntRange(1, 8-start).Draw(t, label+" size")}
	d := gpu.Located{Key: gpu.DeviceKey{
		GPU: rapid.SampledFrom([]gpu.UUID{"G0", "G0", "G0", "G1"}).Draw(t, label+" GPU"), Share: rapid.IntRange(0, 2).Draw(t, label+" share"),
	}}
	switch rapid.IntRange(0, 3).Draw(t, label+" kind") {
	case 0:
		d.Key.Placement = at
	case 1:
		d.Key.MIG, d.At = rapid.SampledFrom([]gpu.UUID{"M1", "M2"}).Draw(t, label+" MIG"), at
	case 2:
		d.Key.MIG = rapid.SampledFrom([]gpu.UUID{"M1", "M2"}).Draw(t, label+" MIG")
	}
	return d
}

// TestOverlapsIsThatOfSlices compares the rule with sets of memory slices.
func TestOverlapsIsThatOfSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLocated(t, "a"), drawLocated(t, "b")
		common := false
		for cell := range twinCells(a) {
			common = common || twinCells(b)[cell]
		}
		want := a.Key.GPU == b.Key.GPU && common
		switch {
		case a.Key.Unshared() == b.Key.Unshared():
			want = a.Key.Share == b.Key.Share || a.Key.Share == 0 || b.Key.Share == 0
		case a.Key.MIG != "" && b.Key.MIG != "":
			want = false // both exist
		}
		if a.Overlaps(b) != want || b.Overlaps(a) != want || !a.Overlaps(a) {
			t.Fatalf("Overlaps(%v, %v), want %v", a, b, want)
		}
		if a.Overlaps(b) && !a.Key.Overlaps(b.Key) {
			t.Fatalf("%v and %v overlap, and not when their placements are not known", a, b)
		}
	})
}

// TestCompareKeys: the order is total, equal only for equal keys, and keeps each device with its replicas together, the whole GPU first.
func TestCompareKeys(t *testing.T) {
	sign := func(n int) int { return max(-1, min(1, n)) }
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawLocated(t, "a").Key, drawLocated(t, "b").Key, drawLocated(t, "c").Key
		if !a.Valid() {
			t.Fatalf("%v is not valid", a)
		}
		if (gpu.CompareKeys(a, b) == 0) != (a == b) || sign(gpu.CompareKeys(a, b)) != -sign(gpu.CompareKeys(b, a)) {
			t.Fatalf("%v and %v compare as %d and %d", a, b, gpu.CompareKeys(a, b), gpu.CompareKeys(b, a))
		}
		keys := []gpu.DeviceKey{a, b, c}
		slices.SortFunc(keys, gpu.CompareKeys)
		if keys[0].Unshared() == keys[2].Unshared() && keys[1].Unshared() != keys[0].Unshared() {
			t.Fatalf("%v is between replicas of another device: %v", keys[1], keys)
		}
		whole := gpu.DeviceKey{GPU: a.GPU, Share: a.Share}
		if whole.Unshared() != a.Unshared() && gpu.CompareKeys(whole, a) >= 0 {
			t.Fatalf("%v is not before %v", whole, a)
		}
	})
}

func TestValidKeys(t *testing.T) {
	for text, want := range map[string]bool{
		`{"gpu":"G"}`:                                            true,
		`{"gpu":"G","share":3}`:                                  true,
		`{"gpu":"G","mig":"M"}`:                                  true,
		`{"gpu":"G","placement":{"start":0,"size":1}}`:           true,
		`{"gpu":"G","placement":{"start":4,"size":2},"share":1}`: true,
		`{}`:                     false,
		`{"mig":"M"}`:            false,
		`{"gpu":"G","share":-1}`: false,
		`{"gpu":"G","placement":{"start":4,"size":0}}`:               false,
		`{"gpu":"G","placement":{"start":-1,"size":2}}`:              false,
		`{"gpu":"G","placement":{"start":0,"size":-2}}`:              false,
		`{"gpu":"G","mig":"M","placement":{"start":0,"size":2}}`:     false,
		`{"gpu":"G","mig":"M","placement":{"start":0,"size":0}}`:     true,
		`{"gpu":"G","placement":{"start":0,"size":0},"share":2}`:     true,
		`{"gpu":"G","placement":{"start":7,"size":0},"mig":"M"}`:     false,
		`{"gpu":"","placement":{"start":0,"size":1},"mig":"","x":1}`: false,
	} {
		var key gpu.DeviceKey
		if err := json.Unmarshal([]byte(text), &key); err != nil {
			t.Fatal(err)
		}
		if key.Valid() != want {
			t.Errorf("%s is valid: %v, want %v", text, key.Valid(), want)
		}
	}
}

func TestKeyText(t *testing.T) {
	for want, key := range map[string]gpu.DeviceKey{
		"G0":       {GPU: "G0"},
		"G0/M1#2":  {GPU: "G0", MIG: "M1", Share: 2},
		"G0/4:2":   placed("G0", 4, 2),
		"G0/0:8#1": {GPU: "G0", Placement: gpu.Placement{Size: 8}, Share: 1},
	} {
		if got := key.String(); got != want {
			t.Errorf("%+v is %q, want %q", key, got, want)
		}
	}
	if got := placed("G0", 4, 2).Device(); got != "G0" {
		t.Errorf("a container sees %s in place of a device that is not made yet, want its GPU", got)
	}
}

// TestHolderNamesByPlacement: a hold by placement counts for what shares its memory slices, and a MIG device whose placement is not
// known may.
func TestHolderNamesByPlacement(t *testing.T) {
	claim := func(name string) gpu.Holder {
		return gpu.Holder{Kind: gpu.HolderClaim, ID: name, Namespace: "ns", Name: name}
	}
	holdings := []gpu.Holding{
		{Key: placed("GPU-a", 0, 4), Holder: claim("a")},
		{Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-b"}, Holder: claim("b"), Placement: gpu.Placement{Start: 4, Size: 2}},
		{Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-c"}, Holder: claim("c")},
	}
	for key, want := range map[gpu.DeviceKey][]string{
		{GPU: "GPU-a"}:               {"ResourceClaim ns/a", "ResourceClaim ns/b", "ResourceClaim ns/c"},
		placed("GPU-a", 0, 2):        {"ResourceClaim ns/a", "ResourceClaim ns/c"},
		placed("GPU-a", 5, 2):        {"ResourceClaim ns/b", "ResourceClaim ns/c"},
		{GPU: "GPU-a", MIG: "MIG-b"}: {"ResourceClaim ns/a", "ResourceClaim ns/b"},
		placed("GPU-b", 0, 2):        nil,
	} {
		if got := gpu.HolderNames(holdings, key); !slices.Equal(got, want) {
			t.Errorf("holders of %v: %v, want %v", key, got, want)
		}
	}
}
