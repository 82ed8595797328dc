package fleet

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/core/placement/shared"
)

const whole = "nvidia.com/gpu"

// Topologies of four GPUs.
var (
	// twoPairs: 0 and 1, and 2 and 3, have two NVLinks; the pairs are connected by one.
	twoPairs = []string{"X NV2 NV1 NV1", "NV2 X NV1 NV1", "NV1 NV1 X NV2", "NV1 NV1 NV2 X"}
	// switched: all have twelve NVLinks.
	switched = []string{"X NV12 NV12 NV12", "NV12 X NV12 NV12", "NV12 NV12 X NV12", "NV12 NV12 NV12 X"}
	// sockets: pairs below a switch, no NVLinks.
	sockets = []string{"X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PIX", "SYS SYS PIX X"}
)

func links(t testing.TB, rows []string) *shared.Topology {
	t.Helper()
	topology, err := gpu.ParseTopology(rows)
	if err != nil {
		t.Fatal(err)
	}
	made, err := shared.NewCache(shared.Options{}).Topology(topology, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// node returns a node of whole GPUs: U usable, D degraded, x draining, g gone, - held.
func node(name, gpus string, topology *shared.Topology) Node {
	n := Node{Name: name, CPU: 64_000, FreeCPU: 64_000, Memory: 64_000, FreeMemory: 64_000, Links: topology}
	states := map[rune]State{'U': Usable, 'D': Degraded, 'x': Draining, 'g': Gone, '-': Usable}
	for i, letter := range gpus {
		g := GPU{Free: Whole, Resource: whole, Unit: Whole, Physical: uint8(i), State: states[letter]}
		if letter == '-' {
			g.Free = 0
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}

func ofGPUs(n int32) Shape { return Shape{CPU: 1000, Memory: 1000, Resource: whole, GPUs: n} }

func set(gpus ...int) GPUSet {
	var s GPUSet
	for _, i := range gpus {
		s = s.With(i)
	}
	return s
}

func TestChoose(t *testing.T) {
	mig := func(free ...int32) Node {
		n := Node{CPU: 64_000, FreeCPU: 64_000, Memory: 64_000, FreeMemory: 64_000}
		for i, f := range free {
			n.GPUs = append(n.GPUs, GPU{Free: f, Size: 875, Unit: 125, Resource: "nvidia.com/mig-1g.5gb", Physical: uint8(i)})
		}
		return n
	}
	spread := mig(875, 250, 500)
	spread.Spread = true
	one := Shape{Resource: "nvidia.com/mig-1g.5gb", GPUs: 1}
	tests := map[string]struct {
		node  Node
		shape Shape
		want  GPUSet
	}{
		"a linked pair":                           {node("n", "UUUU", links(t, twoPairs)), ofGPUs(2), set(0, 1)},
		"the pair that is left":                   {node("n", "U-UU", links(t, twoPairs)), ofGPUs(2), set(2, 3)},
		"the one whose partner is held":           {node("n", "U-UU", links(t, twoPairs)), ofGPUs(1), set(0)},
		"healthy GPUs apart before a pair":        {node("n", "UDDU", links(t, twoPairs)), ofGPUs(2), set(0, 3)},
		"a degraded one with its healthy partner": {node("n", "UDD-", links(t, twoPairs)), ofGPUs(2), set(0, 1)},
		"without links, the first":                {node("n", "-UDU", nil), ofGPUs(2), set(1, 3)},
		"without links, degraded ones last":       {node("n", "DDU-", nil), ofGPUs(2), set(0, 2)},
		"a MIG device of the GPU in use":          {mig(875, 250, 500), one, set(1)},
		"not of a full one":                       {mig(875, 0, 500), one, set(2)},
		"spread, of the GPU that is used least":   {spread, one, set(0)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Choose(&test.node, &test.shape).GPUs; got != test.want {
				t.Errorf("GPUs %b; want %b", got, test.want)
			}
			if !Fits(&test.node, &test.shape) {
				t.Error("the pod does not fit")
			}
		})
	}
}

// TestChooseTwin compares the choice of whole GPUs with placement's own answer for the classes, worked out from the definition: no GPU of
// a class is taken while one of a better class is left.
func TestChooseTwin(t *testing.T) {
	topology, err := gpu.ParseTopology(twoPairs)
	if err != nil {
		t.Fatal(err)
	}
	twin, err := placement.NewNode(topology, nil)
	if err != nil {
		t.Fatal(err)
	}
	known := links(t, twoPairs)
	rapid.Check(t, func(t *rapid.T) {
		letters := ""
		for range 4 {
			letters += rapid.SampledFrom([]string{"U", "U", "D", "x", "g", "-"}).Draw(t, "GPU")
		}
		n := node("n", letters, known)
		var all, must placement.Set
		count := int32(rapid.IntRange(1, 4).Draw(t, "count"))
		for _, class := range []byte{'U', 'D'} {
			if all.Len() >= int(count) {
				break
			}
			must = all
			for i := range letters {
				if letters[i] == class {
					all |= placement.SetOf(i)
				}
			}
		}
		s := ofGPUs(count)
		if fit := Fits(&n, &s); fit != (all.Len() >= int(count)) {
			t.Fatalf("%s: %d of them fit: %v", letters, count, fit)
		} else if !fit {
			return
		}
		want, err := twin.Choose(all, must, int(count))
		if err != nil {
			t.Fatal(err)
		}
		if got := Choose(&n, &s).GPUs; got != GPUSet(want) {
			t.Fatalf("%s: %d of them are %b; want %s", letters, count, got, want)
		}
	})
}

// TestPrefer: the node that a policy prefers for a pod, whatever the fixed order says.
func TestPrefer(t *testing.T) {
	host := func(n Node, switches string, busy ...int) Node {
		for i := range n.GPUs {
			n.GPUs[i].Switch = switches[i]
		}
		for _, i := range busy {
			n.AddTraffic(i, HostBandwidth)
		}
		return n
	}
	heavy := ofGPUs(1)
	heavy.Traffic = HostBandwidth
	tests := map[string]struct {
		policy string
		shape  Shape
		nodes  []Node
		want   string
	}{
		"linked before scattered":              {PolicyPack, ofGPUs(2), []Node{node("scattered", "U-U-", links(t, sockets)), node("linked", "UU--", links(t, sockets))}, "linked"},
		"NVLinks before PCIe":                  {PolicyPack, ofGPUs(2), []Node{node("pcie", "UU--", links(t, sockets)), node("nvlink", "U-U-", links(t, twoPairs))}, "nvlink"},
		"full NVLinks before partial ones":     {PolicyPack, ofGPUs(2), []Node{node("partial", "U-U-", links(t, twoPairs)), node("full", "UU--", links(t, twoPairs))}, "full"},
		"a fast model is not better for pack":  {PolicyPack, ofGPUs(2), []Node{node("fast", "UUUU", links(t, switched)), node("slow", "UU--", links(t, twoPairs))}, "slow"},
		"but for latency":                      {PolicyLatency, ofGPUs(2), []Node{node("fast", "UUUU", links(t, switched)), node("slow", "UU--", links(t, twoPairs))}, "fast"},
		"healthy before linked":                {PolicyPack, ofGPUs(2), []Node{node("degraded", "DU--", links(t, twoPairs)), node("apart", "U-U-", links(t, sockets))}, "apart"},
		"healthy before packed":                {PolicyPack, ofGPUs(1), []Node{node("degraded", "D---", nil), node("empty", "UUUU", nil)}, "empty"},
		"packed":                               {PolicyPack, ofGPUs(1), []Node{node("empty", "UUUU", links(t, switched)), node("used", "U---", links(t, switched))}, "used"},
		"spread":                               {PolicySpread, ofGPUs(1), []Node{node("empty", "UUUU", links(t, switched)), node("used", "UUU-", links(t, switched))}, "empty"},
		"a single GPU does not break a pair":   {PolicyPack, ofGPUs(1), []Node{node("pair", "UU--", links(t, sockets)), node("apart", "U-U-", links(t, sockets))}, "apart"},
		"another PCIe switch":                  {PolicyPack, heavy, []Node{host(node("crowded", "-U", nil), "aa", 0), host(node("apart", "-UUU", nil), "abbb", 0)}, "apart"},
		"no resource, no GPU: away from GPUs":  {PolicyPack, Shape{CPU: 63_000, Memory: 1000}, []Node{node("GPUs", "UUUU", nil), node("none", "", nil)}, "none"},
		"spread: no GPU requested, no GPU had": {PolicySpread, Shape{CPU: 1000, Memory: 1000}, []Node{node("GPUs", "UUUU", nil), node("none", "", nil)}, "none"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			mix := TypicalShapes([]Shape{ofGPUs(1), ofGPUs(1), ofGPUs(2), ofGPUs(4)}, 1)
			for seed := range uint64(4) {
				f, err := New(test.nodes, seed)
				if err != nil {
					t.Fatal(err)
				}
				policy, err := NewPolicy(test.policy, NewMeasure(mix))
				if err != nil {
					t.Fatal(err)
				}
				op, ok := NewDecider(f, policy).Best(test.shape)
				if !ok || f.Node(op.Node).Name != test.want {
					t.Fatalf("seed %d: %v, %s; want %s", seed, ok, f.Node(max(0, op.Node)).Name, test.want)
				}
			}
		})
	}
	if _, err := NewPolicy("fastest", nil); err == nil {
		t.Error("an unknown policy was accepted")
	}
}

// TestFitDevices: why devices of a resource cannot be had.
func TestFitDevices(t *testing.T) {
	replicas := func(free int32, single bool, bandwidth int16) Node {
		return Node{CPU: 64_000, FreeCPU: 64_000, Memory: 64_000, FreeMemory: 64_000, GPUs: []GPU{
			{Free: free, Size: Whole, Unit: 250, Resource: "nvidia.com/gpu.shared", Single: single, Bandwidth: bandwidth}}}
	}
	share := Shape{Resource: "nvidia.com/gpu.shared", GPUs: 1}
	heavy := share
	heavy.Traffic = Bandwidth
	tests := map[string]struct {
		node  Node
		shape Shape
		want  string
	}{
		"fits":                  {node("n", "UU", nil), ofGPUs(2), "the pod fits"},
		"no such resource":      {node("n", "UU", nil), share, "it has no nvidia.com/gpu.shared"},
		"too few":               {node("n", "UU", nil), ofGPUs(3), "it has 2 nvidia.com/gpu, the pod requests 3"},
		"too few usable":        {node("n", "Uxg", nil), ofGPUs(2), "1 of its nvidia.com/gpu are usable (1 draining, 1 gone), the pod requests 2"},
		"too few free":          {node("n", "U-", nil), ofGPUs(2), "1 of its nvidia.com/gpu are free, the pod requests 2"},
		"degraded ones count":   {node("n", "UDD", nil), ofGPUs(3), "the pod fits"},
		"a replica":             {replicas(250, true, 0), share, "the pod fits"},
		"no replica":            {replicas(0, true, 0), share, "0 of its nvidia.com/gpu.shared are free, the pod requests 1"},
		"several replicas":      {replicas(1000, true, 0), Shape{Resource: share.Resource, GPUs: 2}, "it refuses requests for more than one nvidia.com/gpu.shared, the pod requests 2"},
		"bandwidth, alone":      {replicas(1000, true, 0), heavy, "the pod fits"},
		"bandwidth, not alone":  {replicas(750, true, 1), heavy, "the pod needs much memory bandwidth, and would share its GPU with another such pod (0 of the free nvidia.com/gpu.shared would not)"},
		"bandwidth of another":  {replicas(750, true, 1), share, "the pod fits"},
		"a share is no replica": {replicas(750, true, 0), Shape{GPUs: 1, Share: 250}, "it has 0 GPUs, the pod requests 1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reason := Fit(&test.node, test.shape)
			if got := reason.String(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if Fits(&test.node, &test.shape) != (reason.Lack == None) {
				t.Error("fits says something else")
			}
		})
	}
}

// TestLossOfResources compares the loss of nodes with resources with its definition: for each pod of the mix, what it cannot use of
// what is idle.
func TestLossOfResources(t *testing.T) {
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		n := Node{Model: "T4", CPU: 10_000, FreeCPU: rapid.Int64Range(0, 10_000).Draw(t, "CPU"), Memory: 1, FreeMemory: 1}
		for i := range rapid.IntRange(1, 8).Draw(t, "GPUs") {
			unit := rapid.SampledFrom([]int32{Whole, 250, 125}).Draw(t, "unit")
			n.GPUs = append(n.GPUs, GPU{
				Resource: rapid.SampledFrom(names).Draw(t, "resource"), Unit: unit, Size: Whole, Physical: uint8(i),
				Free: unit * rapid.Int32Range(0, Whole/unit).Draw(t, "free"), State: rapid.SampledFrom([]State{Usable, Degraded, Draining}).Draw(t, "state"),
			})
		}
		var mix Mix
		for range rapid.IntRange(1, 6).Draw(t, "shapes") {
			shape := Shape{CPU: rapid.Int64Range(0, 12_000).Draw(t, "needs CPU"), Models: rapid.SampledFrom([]ModelSet{{}, Models("T4"), Models("A10")}).Draw(t, "models")}
			if shape.GPUs = rapid.Int32Range(0, 4).Draw(t, "count"); shape.GPUs > 0 {
				shape.Resource = rapid.SampledFrom(names).Draw(t, "wants")
			}
			mix = append(mix, Typical{Shape: shape, Weight: rapid.Int64Range(1, 9).Draw(t, "weight")})
		}
		want := int64(0)
		for _, m := range mix {
			idle, own, units := int64(0), int64(0), int32(0)
			for _, g := range n.GPUs {
				if g.State == Draining {
					continue
				}
				idle += int64(g.Free)
				if g.Resource == m.Shape.Resource {
					own += int64(g.Free)
					units += g.Free / g.Unit
				}
			}
			fit := m.Shape.GPUs > 0 && m.Shape.CPU <= n.FreeCPU && m.Shape.Models.Allows("T4") && units >= m.Shape.GPUs
			if !fit {
				own = 0
			}
			want += m.Weight * (idle - own)
		}
		if got := NewMeasure(mix).Fragmentation(&n); got != want {
			t.Fatalf("loss %d; want %d", got, want)
		}
	})
}

// TestReplace: a replaced node counts in the sums, is asked again, and keeps its place in the order.
func TestReplace(t *testing.T) {
	f, err := New([]Node{node("a", "UU", nil), node("b", "UU", nil)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDecider(f, Pack(NewMeasure(nil)))
	i, _ := f.Find("a")
	if _, _, ok := d.On(i, ofGPUs(2)); !ok {
		t.Fatal("the pod does not fit")
	}
	if err := f.Replace(i, node("a", "U-g", nil)); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := d.On(i, ofGPUs(2)); ok {
		t.Error("the pod fits on what was replaced")
	}
	if want := (Totals{CPU: 128_000, Memory: 128_000, GPU: 3000}); f.Free() != want || f.Node(i).Index() != i {
		t.Errorf("free %+v; want %+v", f.Free(), want)
	}
	bad := node("a", "U", nil)
	bad.GPUs[0].Unit = 0
	mark := f.Checkpoint()
	errors := []error{f.Replace(i, node("a", "U", nil)), f.Replace(1-i, node("a", "U", nil)), f.Replace(i, bad), f.Replace(7, node("a", "U", nil))}
	f.Rollback(mark)
	if slices.Contains(errors, nil) {
		t.Errorf("errors %v; want one for an open checkpoint, another name, a node that cannot be, and another index", errors)
	}
}

// TestTogether: several requests of one pod are placed one after another, and leave nothing behind.
func TestTogether(t *testing.T) {
	f, err := New([]Node{node("a", "UUUU", links(t, twoPairs))}, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDecider(f, Pack(NewMeasure(nil)))
	second := Shape{Resource: whole, GPUs: 2}
	ops, score, ok := d.Together(0, []Shape{ofGPUs(2), second})
	got := ""
	for _, op := range ops {
		got += fmt.Sprintf("%b ", op.GPUs)
	}
	if !ok || got != "11 1100 " || score < 0 || f.Free().GPU != 4000 {
		t.Errorf("%v, %s, score %d, %d left; want both pairs and all left", ok, got, score, f.Free().GPU)
	}
	if _, _, ok := d.Together(0, []Shape{ofGPUs(3), second}); ok {
		t.Error("five of four GPUs fit")
	}
	mig := node("b", "UU", nil)
	for i := range mig.GPUs {
		mig.GPUs[i] = GPU{Free: 375, Size: 375, Unit: 125, Resource: "mig", Physical: uint8(i)}
	}
	if err := f.Replace(0, func() Node { mig.Name = "a"; return mig }()); err != nil {
		t.Fatal(err)
	}
	for count, want := range map[int32]bool{1: true, 2: true, 6: true, 7: false} {
		s := Shape{CPU: 1000, Resource: "mig", GPUs: count}
		ops, _, ok := d.Together(0, []Shape{s})
		_, _, alone := d.On(0, s)
		if ok != want || alone != want || want && len(ops) != int(count) {
			t.Errorf("%d MIG devices of 6: %v in %d operations, %v; want %v", count, ok, len(ops), alone, want)
		}
	}
	plan, why, err := planned(d, nil, []Shape{{Resource: "mig", GPUs: 5}, {Resource: "mig", GPUs: 1}, {Resource: "mig", GPUs: 1}})
	if len(plan) != 6 || why == nil || err != nil {
		t.Errorf("plan %v, %v, %v; want 6 operations and no place for the last pod", plan, why, err)
	}
}
