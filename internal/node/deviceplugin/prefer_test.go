package deviceplugin

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// viewOf is the view of a machine with real placement.
func viewOf(t testing.TB, h *hardware) *view {
	t.Helper()
	numa := make([]int, 0, len(h.snapshot.GPUs))
	for i := range h.snapshot.GPUs {
		numa = append(numa, h.snapshot.GPUs[i].NUMANode)
	}
	node, err := placement.NewNode(h.snapshot.Topology, numa)
	if err != nil {
		t.Fatal(err)
	}
	w := &viewer{vendors: testVendors(), strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}, ID: v1alpha1.IDStrategyUUID}}
	return w.build(h.State().Offers[0], h.State(), node, nil, time.Time{})
}

// preferred answers a request.
func (v *view) preferred(available, must []string, size int, blocked func(gpu.DeviceKey) bool) ([]string, error) {
	return v.prefer(v.request(available, must, size), blocked)
}

func blocking(indices ...int) func(gpu.DeviceKey) bool {
	return func(key gpu.DeviceKey) bool {
		return slices.ContainsFunc(indices, func(i int) bool { return key.GPU == uuid(i) })
	}
}

func TestPrefer(t *testing.T) {
	tests := map[string]struct {
		lost      []int
		degraded  []int
		blocked   []int
		listed    []int
		available []string
		must      []string
		size      int
		want      []string
		wantErr   string
	}{
		"a linked pair":                        {available: uuids(1, 2, 3, 5), size: 2, want: uuids(2, 3)},
		"a pair keeps other pairs whole":       {available: uuids(0, 1, 2, 3, 4, 5, 6), size: 1, want: uuids(6)},
		"the must's partner":                   {available: uuids(first(8)...), must: uuids(5), size: 2, want: uuids(4, 5)},
		"all":                                  {available: uuids(7, 1), size: 2, want: uuids(1, 7)},
		"none":                                 {available: uuids(7, 1), size: 0},
		"only the must":                        {available: uuids(0, 1, 2), must: uuids(2, 0), size: 2, want: uuids(0, 2)},
		"a must that is not available":         {available: uuids(0, 1, 2), must: uuids(3), size: 2, want: uuids(2, 3)},
		"duplicates count once":                {available: append(uuids(0, 1), uuids(0, 1)...), must: uuids(1, 1), size: 2, want: uuids(0, 1)},
		"a blocked GPU is left out":            {blocked: []int{2}, available: uuids(1, 2, 3, 4, 5), size: 2, want: uuids(4, 5)},
		"a blocked GPU if need be":             {blocked: []int{2, 6}, available: uuids(2, 3, 6), size: 2, want: uuids(2, 3)},
		"a listed GPU is left out":             {listed: []int{2}, available: uuids(1, 2, 3, 4, 5), size: 2, want: uuids(4, 5)},
		"a listed GPU before a blocked one":    {blocked: []int{0}, listed: []int{6}, available: uuids(0, 6), size: 1, want: uuids(6)},
		"good, listed and blocked":             {blocked: []int{0, 2}, listed: []int{6}, available: uuids(0, 2, 3, 6), size: 3, want: uuids(2, 3, 6)},
		"a degraded GPU is left out":           {degraded: []int{2}, available: uuids(1, 2, 3, 4, 5), size: 2, want: uuids(4, 5)},
		"healthy GPUs apart before a pair":     {degraded: []int{2, 3}, available: uuids(1, 2, 3, 4), size: 2, want: uuids(1, 4)},
		"a degraded GPU if need be":            {degraded: []int{2, 5}, available: uuids(2, 3, 5), size: 2, want: uuids(2, 3)},
		"the best of the degraded GPUs":        {degraded: []int{1, 2, 3}, available: uuids(0, 1, 2, 3), size: 2, want: uuids(0, 1)},
		"only degraded GPUs":                   {degraded: first(8), available: uuids(1, 2, 3, 5), size: 2, want: uuids(2, 3)},
		"a degraded GPU before a listed one":   {degraded: []int{0}, listed: []int{6}, available: uuids(0, 6), size: 1, want: uuids(0)},
		"a degraded GPU before a lost one":     {degraded: []int{6}, lost: []int{0}, available: uuids(0, 6), size: 1, want: uuids(6)},
		"a degraded must stays":                {degraded: []int{2}, available: uuids(first(4)...), must: uuids(2), size: 2, want: uuids(2, 3)},
		"a blocked must stays":                 {blocked: []int{2}, available: uuids(first(4)...), must: uuids(2), size: 2, want: uuids(2, 3)},
		"a lost GPU is left out":               {lost: []int{0}, available: uuids(0, 1, 2, 3), size: 2, want: uuids(2, 3)},
		"a lost GPU if need be":                {lost: []int{0}, available: uuids(0, 1), size: 2, want: uuids(0, 1)},
		"a GPU that is gone is left out":       {available: append(uuids(2, 3), "GPU-gone"), size: 2, want: uuids(2, 3)},
		"a GPU that is gone if need be":        {available: append(uuids(2), "GPU-gone", "GPU-far"), size: 2, want: append(uuids(2), "GPU-far")},
		"a must that is gone":                  {available: append(uuids(2, 3), "GPU-gone"), must: []string{"GPU-gone"}, size: 2, want: append(uuids(2), "GPU-gone")},
		"lost, blocked and gone, all together": {lost: []int{0}, blocked: []int{1}, available: append(uuids(0, 1), "GPU-gone"), size: 3, want: append(uuids(0, 1), "GPU-gone")},
		"more than there are":                  {available: uuids(0, 1), size: 3, wantErr: "0 must be among them and 2 are available"},
		"fewer than must be":                   {available: uuids(0, 1), must: uuids(0, 1), size: 1, wantErr: "2 must be among them"},
		"a negative number":                    {available: uuids(0, 1), size: -1, wantErr: "prefer -1 devices"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := machine(8)
			for _, i := range test.lost {
				h.setHealthy(i, false)
			}
			for _, i := range test.degraded {
				h.degrade(i)
			}
			v := viewOf(t, h)
			q := v.request(test.available, test.must, test.size)
			for _, i := range test.listed {
				q.listed = append(q.listed, gpu.DeviceKey{GPU: uuid(i)})
			}
			got, err := v.prefer(q, blocking(test.blocked...))
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("error %v, want %q", err, test.wantErr)
			}
			slices.Sort(got)
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, got); len(test.want)+len(got) > 0 && diff != "" {
				t.Errorf("preference differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreferProperties holds for any request that can be answered, with placement and without.
func TestPreferProperties(t *testing.T) {
	good := viewOf(t, machine(8))
	half := machine(8)
	for i := range 4 {
		half.degrade(2*i + 1)
	}
	degraded := viewOf(t, half)
	shared := (&viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}}).build(offer.Offer{Resource: resource, Devices: mixedOffer()}, State{Snapshot: partitioned()}, nil, nil, time.Time{})
	failing := viewOf(t, machine(8))
	failing.chooser = brokenChooser{}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom([]*view{good, degraded, shared, failing}).Draw(t, "view")
		ids := []string{"GPU-gone", "GPU-far"}
		for _, d := range v.devices {
			ids = append(ids, d.ID)
		}
		available := rapid.SliceOfDistinct(rapid.SampledFrom(ids), rapid.ID).Draw(t, "available")
		must := rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 0, 4, rapid.ID).Draw(t, "must")
		all := union(available, must)
		size := rapid.IntRange(len(must), len(all)).Draw(t, "size")
		blockedIDs := rapid.SliceOfDistinct(rapid.SampledFrom(ids), rapid.ID).Draw(t, "blocked")
		blocked := func(key gpu.DeviceKey) bool { return slices.Contains(blockedIDs, offer.DeviceID(key)) }

		got, err := v.preferred(available, must, size, blocked)
		if err != nil {
			t.Fatalf("a request that can be answered: %v", err)
		}
		if len(got) != size || len(union(got, nil)) != size {
			t.Fatalf("%v are not %d different ids", got, size)
		}
		spare, poor, spareHealthy, fair := 0, 0, 0, 0
		for _, id := range all {
			taken := slices.Contains(got, id)
			_, known := v.byID[id]
			bad := !known || slices.Contains(blockedIDs, id)
			worn := known && v.devices[v.byID[id]].Health == gpu.Degraded
			switch {
			case slices.Contains(must, id):
				if !taken {
					t.Fatalf("%s must be among %v", id, got)
				}
			case taken && bad:
				poor++
			case !taken && !bad:
				spare++
				if !worn {
					spareHealthy++
				}
			case taken && worn:
				fair++
			}
		}
		if fair > 0 && spareHealthy > 0 {
			t.Fatalf("%v has %d degraded devices although %d healthy ones were left", got, fair, spareHealthy)
		}
		if poor > 0 && spare > 0 {
			t.Fatalf("%v has %d bad devices although %d good ones were left", got, poor, spare)
		}
		for _, id := range got {
			if !slices.Contains(all, id) {
				t.Fatalf("%s was not offered", id)
			}
		}
		slices.Reverse(available)
		slices.Reverse(must)
		again, err := v.preferred(available, must, size, blocked)
		if err != nil || !slices.Equal(got, again) {
			t.Fatalf("%v, but in another order %v, %v", got, again, err)
		}
	})
}

type brokenChooser struct{}

func (brokenChooser) Choose(placement.Set, placement.Set, int) (placement.Set, error) {
	return 0, errors.New("broken")
}

// countingChooser counts the requests that reach it.
type countingChooser struct {
	chooser
	asked int
}

func (c *countingChooser) Choose(available, must placement.Set, size int) (placement.Set, error) {
	c.asked++
	return c.chooser.Choose(available, must, size)
}

func TestMemo(t *testing.T) {
	node := viewOf(t, machine(8)).chooser
	counting := &countingChooser{chooser: node}
	m := &memo{chooser: counting}
	rapid.Check(t, func(t *rapid.T) {
		available := placement.Set(rapid.Uint32Range(0, 255).Draw(t, "available"))
		must := placement.Set(rapid.Uint32Range(0, 255).Draw(t, "must"))
		if rapid.Bool().Draw(t, "answerable") {
			must &= available
		}
		size := rapid.IntRange(0, 8).Draw(t, "size")
		want, wantErr := node.Choose(available, must, size)
		for range 2 {
			got, err := m.Choose(available, must, size)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Fatalf("got %v, %v; want %v, %v", got, err, want, wantErr)
			}
		}
		before := counting.asked
		if _, err := m.Choose(available, must, size); err == nil && counting.asked != before {
			t.Fatal("the same request was not answered from the cache")
		}
	})
}

func union(a, b []string) []string {
	set := make(map[string]bool)
	for _, id := range append(slices.Clone(a), b...) {
		set[id] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func TestFree(t *testing.T) {
	v := viewOf(t, machine(4))
	got := v.keys(nil, v.request(append(uuids(3, 0, 1, 3), "GPU-gone"), uuids(1), 2).free)
	if diff := cmp.Diff([]gpu.DeviceKey{{GPU: uuid(0)}, {GPU: uuid(3)}}, got); diff != "" {
		t.Errorf("free devices differ (-want +got):\n%s", diff)
	}
}

func TestList(t *testing.T) {
	h := machine(4)
	h.snapshot.GPUs[1].NUMANode = gpu.NoNUMANode
	h.setHealthy(2, false)
	h.degrade(1)
	book := &blocks{}
	book.set(0, &ledger.Block{})
	book.set(3, &ledger.Block{Unseen: true})
	list, healthy := viewOf(t, h).list(book)
	if healthy != 2 {
		t.Errorf("%d healthy devices, want 2", healthy)
	}
	var got []string
	for _, device := range list.Devices {
		got = append(got, device.ID+" "+device.Health+" "+device.Topology.String())
	}
	for i := range got {
		got[i] = strings.Join(strings.Fields(got[i]), " ")
	}
	want := []string{"GPU-00 Healthy nodes:{}", "GPU-01 Healthy <nil>", "GPU-02 Unhealthy nodes:{ID:1}", "GPU-03 Unhealthy nodes:{ID:1}"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list differs (-want +got):\n%s", diff)
	}
}

func TestLinger(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h, w := machine(3), &viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}, linger: 15 * time.Second}
	devices := h.State().Offers[0].Devices
	v := w.build(offer.Offer{Resource: resource, Devices: devices}, State{Snapshot: &h.snapshot}, nil, nil, begin)
	steps := []struct {
		after   time.Duration
		offered []offer.Device
		want    string
		expiry  time.Duration
	}{
		{0, devices, "GPU-00 GPU-01 GPU-02", 0},
		{time.Second, devices[1:], "GPU-01 GPU-02 -GPU-00", 16 * time.Second},
		{5 * time.Second, devices[2:], "GPU-02 -GPU-00 -GPU-01", 16 * time.Second},
		{6 * time.Second, devices[1:], "GPU-01 GPU-02 -GPU-00", 16 * time.Second},
		{16 * time.Second, devices[1:], "GPU-01 GPU-02", 0},
		{20 * time.Second, nil, "-GPU-01 -GPU-02", 35 * time.Second},
		{35 * time.Second, nil, "", 0},
	}
	for i, step := range steps {
		v = w.build(offer.Offer{Resource: resource, Devices: step.offered}, State{Snapshot: &h.snapshot}, nil, v, begin.Add(step.after))
		var got []string
		for _, d := range v.devices {
			mark := ""
			if !d.Health.Allocatable() {
				mark = "-"
			}
			got = append(got, mark+d.ID)
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("step %d: devices %q, want %q", i, text, step.want)
		}
		var want time.Time
		if step.expiry > 0 {
			want = begin.Add(step.expiry)
		}
		if at := v.nextExpiry(w.linger); !at.Equal(want) {
			t.Errorf("step %d: expires at %v, want %v", i, at, want)
		}
	}
}
