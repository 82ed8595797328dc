package drafleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-gpu/berth/internal/core/fleet/firstfit"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	drapool "github.com/berth-gpu/berth/internal/node/dra/pool"
)

// of returns a claim with one request for a number of devices of a class, and matchAttribute constraints.
func of(count int64, class string, attributes ...resourceapi.FullyQualifiedName) *resourceapi.ResourceClaim {
	made := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "c"}}
	made.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}}
	for i := range attributes {
		made.Spec.Devices.Constraints = append(made.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &attributes[i]})
	}
	return made
}

func TestSimple(t *testing.T) {
	type request = resourceapi.ExactDeviceRequest
	yes := true
	distinct := resourceapi.FullyQualifiedName("gpu.berth.dev/uuid")
	exact := func(change func(*request)) *resourceapi.ResourceClaim {
		claim := of(1, "gpu.berth.dev")
		change(claim.Spec.Devices.Requests[0].Exactly)
		return claim
	}
	list := of(1, "gpu.berth.dev")
	list.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a"}}}
	apart := of(2, "gpu.berth.dev")
	apart.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: &distinct}}
	many := of(20, "gpu.berth.dev")
	many.Spec.Devices.Requests = append(many.Spec.Devices.Requests, of(13, "gpu.berth.dev").Spec.Devices.Requests...)
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"one":       {of(1, "gpu.berth.dev"), ""},
		"linked":    {of(4, "gpu.berth.dev", "gpu.berth.dev/nvlinkIsland"), ""},
		"32":        {of(32, "gpu.berth.dev"), ""},
		"33":        {many, "it wants more than 32 devices"},
		"a list":    {list, "request gpu is a prioritized list"},
		"distinct":  {apart, "constraint 1 is no matchAttribute"},
		"no domain": {of(1, "gpu.berth.dev", "nvlinkIsland"), "constraint 1 is no matchAttribute"},
		"all": {exact(func(r *request) {
			r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
		}), `request gpu has allocationMode "All"`},
		"none":     {exact(func(r *request) { r.Count = 0 }), "request gpu has count 0"},
		"admin":    {exact(func(r *request) { r.AdminAccess = &yes }), "request gpu wants admin access"},
		"capacity": {exact(func(r *request) { r.Capacity = &resourceapi.CapacityRequirements{} }), "request gpu requests capacity"},
		"no CEL":   {exact(func(r *request) { r.Selectors = make([]resourceapi.DeviceSelector, 1) }), "request gpu has a selector without CEL"},
		"derivation": {exact(func(r *request) {
			r.DerivedAttributes = make([]resourceapi.DeviceDerivedAttribute, 1)
		}), "request gpu has derived attributes"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := simple(test.claim)
			want := "ResourceClaim ml/c: not of the simple form: " + test.want
			switch {
			case test.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case test.want != "" && (!errors.Is(err, firstfit.ErrNotSimple) || err.Error() != want):
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

// gpus returns a slice of GPUs for the node, with the given architectures.
func gpus(version string, architectures ...string) *resourceapi.ResourceSlice {
	name := nodeName
	made := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s", ResourceVersion: version}}
	made.Spec.Driver, made.Spec.NodeName = "gpu.berth.dev", &name
	made.Spec.Pool = resourceapi.ResourcePool{Name: nodeName, ResourceSliceCount: 1}
	for i := range architectures {
		made.Spec.Devices = append(made.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("gpu-", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"architecture": {StringValue: &architectures[i]}}})
	}
	return made
}

func hopper(string) *resourceapi.DeviceClass {
	made := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "hopper"}}
	made.Spec.Selectors = selectors(`device.attributes["gpu.berth.dev"].architecture == "Hopper"`)
	return made
}

// picked returns the devices of a claim for one device of the class, or the error.
func picked(ctx context.Context, c *Converter, class func(string) *resourceapi.DeviceClass, list ...*resourceapi.ResourceSlice) ([]string, error) {
	n, err := c.Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, NewSlices(list))
	if err != nil {
		return nil, err
	}
	claims, err := n.Claims(ctx, []*resourceapi.ResourceClaim{of(1, "hopper")}, class)
	if err != nil {
		return nil, err
	}
	result, err := n.Predict(claims, make([]bool, n.Len()), firstfit.DefaultSteps)
	var names []string
	for _, p := range result.Picks {
		names = append(names, n.ID(p.Device).Device)
	}
	return names, err
}

// TestRemembers changes the attributes of a slice, which nothing does but this test, to see what is evaluated again.
func TestRemembers(t *testing.T) {
	c := New(10)
	steps := []struct {
		name   string
		slice  *resourceapi.ResourceSlice
		forget bool
		want   string
	}{
		{"first", gpus("1", "Volta", "Hopper"), false, "gpu-1"},
		{"the same version", gpus("1", "Hopper", "Hopper"), false, "gpu-1"},
		{"the next version", gpus("2", "Hopper", "Hopper"), false, "gpu-0"},
		{"deleted", gpus("2", "Volta", "Hopper"), true, "gpu-1"},
		{"without a version", gpus("", "Hopper", "Hopper"), false, "gpu-0"},
		{"and again", gpus("", "Volta", "Hopper"), false, "gpu-1"},
	}
	for _, step := range steps {
		if step.forget {
			c.Keep(nil)
		}
		names, err := picked(t.Context(), c, hopper, step.slice)
		if err != nil || !slices.Equal(names, []string{step.want}) {
			t.Fatalf("%s: %v, %v, want %s", step.name, names, err, step.want)
		}
	}
}

// TestExpressionsBounded asks about more expressions than are remembered.
func TestExpressionsBounded(t *testing.T) {
	c, s := New(10), gpus("1", "Volta", "Hopper")
	for i := range maxExpressions + 10 {
		names, err := picked(t.Context(), c, func(string) *resourceapi.DeviceClass {
			made := hopper("")
			made.Spec.Selectors = append(made.Spec.Selectors, selectors(fmt.Sprintf("%d == %d", i, i))...)
			return made
		}, s)
		if err != nil || !slices.Equal(names, []string{"gpu-1"}) {
			t.Fatalf("expression %d: %v, %v", i, names, err)
		}
	}
	if n := len(c.slices["s"].verdicts); n > maxExpressions {
		t.Errorf("%d expressions are remembered", n)
	}
}

func TestErrors(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	counters := func(total, amount string) []*resourceapi.ResourceSlice {
		list := []*resourceapi.ResourceSlice{gpus("1", "Hopper"), gpus("1")}
		list[1].Name = "t"
		list[1].Spec.SharedCounters = []resourceapi.CounterSet{{Name: "set", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse(total)}}}}
		list[0].Spec.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{
			{CounterSet: "set", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse(amount)}}},
		}
		list[0].Spec.Pool.ResourceSliceCount, list[1].Spec.Pool.ResourceSliceCount = 2, 2
		return list
	}
	binding := gpus("1", "Hopper")
	binding.Spec.Devices[0].BindingConditions = []string{"example.com/ready"}
	unparsable := gpus("1", "Hopper")
	unparsable.Spec.NodeName = nil
	unparsable.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Like"}}},
	}}
	only := func(one *resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		return []*resourceapi.ResourceSlice{one}
	}
	none := func(string) *resourceapi.DeviceClass { return nil }
	tests := map[string]struct {
		ctx    context.Context
		slices []*resourceapi.ResourceSlice
		class  func(string) *resourceapi.DeviceClass
		want   error
		text   string
	}{
		"no class":           {t.Context(), only(gpus("1", "Hopper")), none, ErrNoClass, "request gpu: the DeviceClass does not exist: hopper"},
		"context ended":      {ended, only(gpus("1", "Hopper")), hopper, context.Canceled, "context canceled"},
		"binding conditions": {t.Context(), only(binding), hopper, firstfit.ErrNotSimple, "device gpu-0 has binding conditions"},
		"node selector":      {t.Context(), only(unparsable), hopper, nil, "devices of node node-1: ResourceSlice s: parse node selector"},
		"half a counter":     {t.Context(), counters("500m", "1"), hopper, firstfit.ErrNotSimple, "a pool whose counter c of counter set set is 500m"},
		"half an amount":     {t.Context(), counters("1", "500m"), hopper, firstfit.ErrNotSimple, "a pool whose device gpu-0 takes 500m of counter c"},
		"less than nothing":  {t.Context(), counters("-1", "1"), hopper, firstfit.ErrNotSimple, "is -1"},
		"too large":          {t.Context(), counters("2Pi", "1"), hopper, firstfit.ErrNotSimple, "is 2Pi"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			names, err := picked(test.ctx, New(10), test.class, test.slices...)
			if err == nil || test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%v, error %v, want %v: %s", names, err, test.want, test.text)
			}
		})
	}
}

// TestRestOfBerthsSlices allocates a MIG device and a whole GPU of what Berth's agent publishes.
func TestRestOfBerthsSlices(t *testing.T) {
	k := newKit(t)
	snapshot, list := machine(t, "h100x8", true)
	n, err := New(10).Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, NewSlices(list))
	if err != nil {
		t.Fatal(err)
	}
	claims, err := n.Claims(t.Context(), []*resourceapi.ResourceClaim{of(1, "mig-1g.10gb.gpu.berth.dev"), of(1, "gpu.berth.dev")}, k.class)
	if err != nil {
		t.Fatal(err)
	}
	result, err := n.Predict(claims, make([]bool, n.Len()), firstfit.DefaultSteps)
	if err != nil || result.Outcome != firstfit.Fits {
		t.Fatalf("%+v, %v", result, err)
	}
	rest := n.Rest(make([]bool, n.Len()), result.Picks)
	all := slices.Concat(rest.Whole, rest.Used)
	slices.Sort(all)
	var want []string
	for i := range snapshot.GPUs {
		want = append(want, string(snapshot.GPUs[i].UUID))
	}
	slices.Sort(want)
	if len(rest.Used) != 2 || !slices.Equal(all, want) {
		t.Errorf("used %v and whole %v, want 2 and 6 of %v", rest.Used, rest.Whole, want)
	}
}

// machine returns what the agent of a simulated machine publishes.
func machine(t testing.TB, profile string, dynamic bool) (*gpu.Snapshot, []*resourceapi.ResourceSlice) {
	t.Helper()
	s := nvidiatest.New(t, profile).Scan()
	with := drapool.Settings{Node: nodeName, GPUs: map[gpu.UUID]drapool.Use{}}
	for i := range s.GPUs {
		with.GPUs[s.GPUs[i].UUID] = drapool.Use{DynamicMIG: dynamic}
	}
	result := drapool.Build(s, with, nil)
	var list []*resourceapi.ResourceSlice
	for i := range result.Slices {
		result.Slices[i].ResourceVersion = "1"
		list = append(list, &result.Slices[i])
	}
	return s, list
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	k := newKit(t)
	_, list := machine(t, "h100x8", true)
	c := New(10)
	group := make(chan error, 8)
	for i := range cap(group) {
		go func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			s := &state{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, slices: list}
			s.claims = []*resourceapi.ResourceClaim{of(1+r.Int64N(4), "gpu.berth.dev"), of(1, "mig")}
			got, err := k.predict(t, s, c)
			if err == nil && got.outcome != firstfit.Fits {
				err = fmt.Errorf("outcome %d", got.outcome)
			}
			group <- err
		}()
	}
	for range cap(group) {
		if err := <-group; err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkPredict is one prediction; BenchmarkClaims the conversion of a claim of which all expressions are known for the node's
// slices; BenchmarkAllocator the allocator for the same claim.
func BenchmarkPredict(b *testing.B) {
	benchmark(b, func(b *testing.B, k *kit, n *Node, s *state) {
		claims, err := n.Claims(b.Context(), s.claims, k.class)
		if err != nil {
			b.Fatal(err)
		}
		held := n.Held(func(id firstfit.ID) bool { return s.held[id.Driver+"/"+id.Pool+"/"+id.Device] })
		b.ReportAllocs()
		for b.Loop() {
			if result, err := n.Predict(claims, held, firstfit.DefaultSteps); err != nil || result.Outcome != firstfit.Fits {
				b.Fatal(result, err)
			}
		}
	})
}

func BenchmarkClaims(b *testing.B) {
	benchmark(b, func(b *testing.B, k *kit, n *Node, s *state) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := n.Claims(b.Context(), s.claims, k.class); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAllocator(b *testing.B) {
	benchmark(b, func(b *testing.B, k *kit, _ *Node, s *state) {
		cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
		b.ReportAllocs()
		for b.Loop() {
			if got := k.allocate(b, s, cache); got.outcome != firstfit.Fits {
				b.Fatal(got)
			}
		}
	})
}

// tooMany returns what is to be predicted when four of 8 dynamic GPUs are held, and a claim wants 32 MIG devices: the others can have 28.
func tooMany(t testing.TB) (*Node, []firstfit.Claim, []bool) {
	t.Helper()
	snapshot, list := machine(t, "h100x8", true)
	n, err := New(10).Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, NewSlices(list))
	if err != nil {
		t.Fatal(err)
	}
	claims, err := n.Claims(t.Context(), []*resourceapi.ResourceClaim{of(32, "mig")}, newKit(t).class)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 4 {
		names = append(names, strings.ToLower(string(snapshot.GPUs[i].UUID)))
	}
	return n, claims, n.Held(func(id firstfit.ID) bool { return slices.Contains(names, id.Device) })
}

// TestStepsBounded: a search of all that is possible would not end, and the outcome is unknown after the steps that are allowed.
func TestStepsBounded(t *testing.T) {
	n, claims, held := tooMany(t)
	result, err := n.Predict(claims, held, firstfit.DefaultSteps)
	if err != nil || result.Outcome != firstfit.Unknown || result.Steps != firstfit.DefaultSteps {
		t.Errorf("outcome %d after %d steps, %v", result.Outcome, result.Steps, err)
	}
	if want := (firstfit.Counts{Matching: 200, Short: 100, Free: 100}); result.Counts[0] != want {
		t.Errorf("counts %+v, want %+v", result.Counts[0], want)
	}
}

// BenchmarkUnknown uses all steps.
func BenchmarkUnknown(b *testing.B) {
	n, claims, held := tooMany(b)
	for b.Loop() {
		if result, err := n.Predict(claims, held, firstfit.DefaultSteps); err != nil || result.Outcome != firstfit.Unknown {
			b.Fatal(result, err)
		}
	}
}

// benchmark runs a function on 8 GPUs of which the first is held.
func benchmark(b *testing.B, run func(*testing.B, *kit, *Node, *state)) {
	k := newKit(b)
	for _, one := range []struct {
		name    string
		dynamic bool
		claim   *resourceapi.ResourceClaim
	}{
		{"1of8", false, of(1, "gpu.berth.dev")},
		{"4of8", false, of(4, "gpu.berth.dev")},
		{"4of8match", false, of(4, "gpu.berth.dev", "resource.kubernetes.io/numaNode")},
		{"1of208", true, of(1, "gpu.berth.dev")},
		{"MIGof208", true, of(1, "mig-1g.10gb.gpu.berth.dev")},
		{"4of208match", true, of(4, "gpu.berth.dev", "resource.kubernetes.io/numaNode")},
	} {
		b.Run(one.name, func(b *testing.B) {
			_, list := machine(b, "h100x8", one.dynamic)
			s := &state{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, slices: list, claims: []*resourceapi.ResourceClaim{one.claim}}
			s.held = map[string]bool{"gpu.berth.dev/" + nodeName + "/" + list[0].Spec.Devices[0].Name: true}
			n, err := New(10).Node(s.node, NewSlices(list))
			if err != nil {
				b.Fatal(err)
			}
			if want := map[bool]int{false: 8, true: 208}[one.dynamic]; n.Len() != want {
				b.Fatalf("%d devices, want %d", n.Len(), want)
			}
			run(b, k, n, s)
		})
	}
}
