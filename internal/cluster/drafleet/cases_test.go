package drafleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	drapool "github.com/berth-gpu/berth/internal/node/dra/pool"
)

const nodeName = "node-1"

// machines are those of the random cases.
var machines = []string{"h100x8", "a100x16", "mixed", "a30x4", "l40sx8", "v100x8-hybrid-mesh", "rtxpro6000x8"}

// kit has what the cases are made of.
type kit struct {
	snapshots []*gpu.Snapshot
	classes   map[string]*resourceapi.DeviceClass
	// names of the classes, in order.
	names []string
}

func newKit(t testing.TB) *kit {
	t.Helper()
	k := &kit{classes: map[string]*resourceapi.DeviceClass{}}
	for _, name := range machines {
		k.snapshots = append(k.snapshots, nvidiatest.New(t, name).Scan())
	}
	made, err := class.Classes(class.Settings{Profiles: class.DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range made {
		k.add(&made[i])
	}
	for name, expression := range map[string]string{
		"any": "", "mig": `device.attributes["gpu.berth.dev"].type == "mig"`, "nic": `device.driver == "nic.example.com"`,
		"plain": `!("binding" in device.attributes["gpu.berth.dev"])`, "fails": `device.attributes["gpu.berth.dev"].profile != "1g.5gb"`, "invalid": `device.nothing`,
	} {
		one := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if expression != "" {
			one.Spec.Selectors = selectors(expression)
		}
		k.add(one)
	}
	slices.Sort(k.names)
	return k
}

func (k *kit) add(one *resourceapi.DeviceClass) {
	k.classes[one.Name] = one
	k.names = append(k.names, one.Name)
}

func selectors(expressions ...string) (list []resourceapi.DeviceSelector) {
	for _, expression := range expressions {
		list = append(list, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return list
}

// publish returns what the agent of a machine with some of the GPUs of a snapshot publishes; dynamic is the share of dynamic GPUs
// in per cent.
func publish(t testing.TB, r *rand.Rand, from *gpu.Snapshot, dynamic int) []resourceapi.ResourceSlice {
	t.Helper()
	s := *from
	s.GPUs = slices.Clone(from.GPUs)
	with := drapool.Settings{Node: nodeName, Generation: 3, GPUs: map[gpu.UUID]drapool.Use{}, EvictFrom: gpu.NeedsReset}
	want := len(s.GPUs) - r.IntN(len(s.GPUs))*r.IntN(2)
	for _, i := range r.Perm(len(s.GPUs))[:want] {
		with.GPUs[s.GPUs[i].UUID] = drapool.Use{DynamicMIG: r.IntN(100) < dynamic}
		if r.IntN(8) == 0 {
			s.GPUs[i].Health.State = []gpu.State{gpu.Degraded, gpu.Draining, gpu.Unhealthy, gpu.NeedsReset}[r.IntN(4)]
		}
	}
	result := drapool.Build(&s, with, nil)
	if err := drapool.Validate(result.Slices); err != nil {
		t.Fatal(err)
	}
	return result.Slices
}

// state is a random cluster, as far as one node sees it.
type state struct {
	node   *corev1.Node
	slices []*resourceapi.ResourceSlice
	held   map[string]bool // by DRIVER/POOL/DEVICE
	claims []*resourceapi.ResourceClaim
}

// random returns a random case.
func (k *kit) random(t testing.TB, r *rand.Rand) *state {
	made := &state{
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"zone": "a"}}}, held: map[string]bool{},
	}
	list := publish(t, r, k.snapshots[r.IntN(len(k.snapshots))], []int{0, 30, 60, 100}[r.IntN(4)])
	if r.IntN(2) == 0 {
		list = split(r, list)
	}
	others := r.IntN(3) == 0
	if others {
		list = append(list, otherPool(r)...)
	}
	for range 2 {
		if r.IntN(3) == 0 {
			changes[r.IntN(len(changes))](r, &list)
		}
	}
	often := []int{1, 8}[r.IntN(2)]
	for i := range list {
		for d := range list[i].Spec.Devices {
			vary(r, &list[i].Spec.Devices[d], often)
		}
		list[i].UID, list[i].ResourceVersion = types.UID(list[i].Name), "1"
		made.slices = append(made.slices, &list[i])
	}
	r.Shuffle(len(made.slices), func(a, b int) { made.slices[a], made.slices[b] = made.slices[b], made.slices[a] })
	made.hold(r)
	for range 1 + r.IntN(8)/7 {
		claim := k.claim(r, len(made.claims), countersOf(list) != nil)
		if others && r.IntN(2) == 0 {
			claim.Spec.Devices.Requests[0].Exactly.DeviceClassName = []string{"nic", "plain"}[r.IntN(2)]
		}
		made.claims = append(made.claims, claim)
	}
	return made
}

// vary changes attributes and taints of a device. The attribute x is there the more often, the larger often is.
func vary(r *rand.Rand, d *resourceapi.Device, often int) {
	text := fmt.Sprint("island-", r.IntN(3))
	switch r.IntN(6) {
	case 0:
		if r.IntN(4) == 0 {
			delete(d.Attributes, drapool.AttributeIsland)
		}
	case 1, 2:
		d.Attributes[drapool.AttributeIsland] = resourceapi.DeviceAttribute{StringValue: &text}
	}
	number, flag, version := int64(r.IntN(2)), r.IntN(2) == 0, fmt.Sprintf("1.0.%d", r.IntN(2))
	values := []resourceapi.DeviceAttribute{
		{IntValue: &number}, {BoolValue: &flag}, {VersionValue: &version}, {StringValue: &version}, {}, {StringValues: []string{"a"}},
	}
	if r.IntN(4+often) < often {
		d.Attributes["x"] = values[r.IntN(4)]
	}
	if r.IntN(4+often) < often {
		d.Attributes["gpu.berth.dev/x"] = values[r.IntN(4)]
	}
	if r.IntN(100) == 0 {
		d.Attributes["list"] = values[5]
	}
	if r.IntN(12) == 0 {
		effects := []resourceapi.DeviceTaintEffect{
			resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone,
		}
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: fmt.Sprint("example.com/taint-", r.IntN(2)), Value: "v", Effect: effects[r.IntN(3)]})
	}
}

// split divides the devices of each slice at random, and shuffles the names of slices.
func split(r *rand.Rand, list []resourceapi.ResourceSlice) (made []resourceapi.ResourceSlice) {
	for _, one := range list {
		for devices := one.Spec.Devices; len(devices) > 0 && one.Spec.SharedCounters == nil; {
			part := *one.DeepCopy()
			n := 1 + r.IntN(len(devices))
			part.Spec.Devices, devices = devices[:n:n], devices[n:]
			made = append(made, part)
		}
		if len(one.Spec.Devices) == 0 {
			made = append(made, one)
		}
	}
	order := r.Perm(len(made))
	for i := range made {
		made[i].Name = fmt.Sprintf("%05x-berth", order[i])
		made[i].Spec.Pool.ResourceSliceCount = int64(len(made))
	}
	return made
}

// otherPool returns a pool of another driver, for all nodes, for some by their labels, or with devices for one node each.
func otherPool(r *rand.Rand) []resourceapi.ResourceSlice {
	made := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic"}}
	made.Spec.Driver = []string{"nic.example.com", "a.example.com"}[r.IntN(2)]
	made.Spec.Pool = resourceapi.ResourcePool{Name: "nics", ResourceSliceCount: 1}
	yes := true
	kind := r.IntN(3)
	switch kind {
	case 0:
		made.Spec.AllNodes = &yes
	case 1:
		made.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{[]string{"a", "b"}[r.IntN(2)]}},
		}}}}
	case 2:
		made.Spec.PerDeviceNodeSelection = &yes
	}
	for i := range 1 + r.IntN(4) {
		device := resourceapi.Device{Name: fmt.Sprint("nic-", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		if kind == 2 {
			name := []string{nodeName, "node-2"}[r.IntN(2)]
			device.NodeName = &name
		}
		made.Spec.Devices = append(made.Spec.Devices, device)
	}
	return []resourceapi.ResourceSlice{made}
}

// devicesOf returns the first slice with devices; one that is not in the list when there is none.
func devicesOf(list []resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	at := slices.IndexFunc(list, func(s resourceapi.ResourceSlice) bool { return len(s.Spec.Devices) > 0 })
	if at < 0 {
		device := resourceapi.Device{Name: "none", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device}}}
	}
	return &list[at]
}

// countersOf returns the first slice with counter sets; nil when there is none.
func countersOf(list []resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	at := slices.IndexFunc(list, func(s resourceapi.ResourceSlice) bool { return len(s.Spec.SharedCounters) > 0 })
	if at < 0 {
		return nil
	}
	return &list[at]
}

// moved makes a slice that is for the node one for another; nil when the node has not two.
func moved(r *rand.Rand, list []resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	var own []int
	for i := range list {
		if list[i].Spec.NodeName != nil {
			own = append(own, i)
		}
	}
	if len(own) < 2 {
		return nil
	}
	name, s := "node-2", &list[own[r.IntN(len(own))]]
	s.Spec.NodeName = &name
	return s
}

// changes are what is unusual about slices.
var changes = []func(*rand.Rand, *[]resourceapi.ResourceSlice){
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // A former generation.
		former := *devicesOf(*list).DeepCopy()
		former.Name, former.Spec.Pool.Generation = "00000-former", 1
		*list = append(*list, former)
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // The next one, for another node or for this one.
		next := *devicesOf(*list).DeepCopy()
		next.Name, next.Spec.Pool.Generation = "next", 9
		name := []string{nodeName, "node-2"}[r.IntN(2)]
		next.Spec.NodeName, next.Spec.AllNodes, next.Spec.NodeSelector, next.Spec.PerDeviceNodeSelection = &name, nil, nil, nil
		*list = append(*list, next)
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // A slice is missing.
		at := r.IntN(len(*list))
		*list = slices.Delete(*list, at, at+1)
		if len(*list) == 0 {
			*list = otherPool(r)
		}
	},
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // Two devices of one name.
		if s := devicesOf(*list); len(s.Spec.Devices) > 1 {
			s.Spec.Devices[1].Name = s.Spec.Devices[0].Name
		}
	},
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // A counter that does not exist.
		s := devicesOf(*list)
		s.Spec.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{
			{CounterSet: "none", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("1")}}},
		}
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // A part of the pool is for another node.
		moved(r, *list)
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // A part of the pool is for another node, which has a newer generation.
		if s := moved(r, *list); s != nil {
			next := *s.DeepCopy()
			next.Name, next.Spec.Pool.Generation = "next", 9
			*list = append(*list, next)
		}
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // Fewer or more of each counter.
		if s := countersOf(*list); s != nil {
			for _, set := range s.Spec.SharedCounters {
				for name := range set.Counters {
					set.Counters[name] = resourceapi.Counter{Value: *resource.NewQuantity(int64(r.IntN(4)), resource.DecimalSI)}
				}
			}
		}
	},
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // A device that can be allocated several times.
		yes := true
		devicesOf(*list).Spec.Devices[0].AllowMultipleAllocations = &yes
	},
	func(r *rand.Rand, list *[]resourceapi.ResourceSlice) { // Binding conditions, which move the pool behind the others.
		s := devicesOf(*list)
		device := *s.Spec.Devices[0].DeepCopy()
		device.Name, device.BindingConditions, device.ConsumesCounters = "binding", []string{"example.com/ready"}, nil
		yes := true
		device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"gpu.berth.dev/binding": {BoolValue: &yes}}
		s.Spec.Devices = append(s.Spec.Devices, device)
		if r.IntN(4) == 0 {
			s.Spec.Devices[0].BindingConditions = device.BindingConditions
		}
	},
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // Half a counter.
		if s := countersOf(*list); s != nil {
			for name := range s.Spec.SharedCounters[0].Counters {
				s.Spec.SharedCounters[0].Counters[name] = resourceapi.Counter{Value: resource.MustParse("500m")}
			}
		}
	},
	func(_ *rand.Rand, list *[]resourceapi.ResourceSlice) { // A compatibility group.
		if consumes := devicesOf(*list).Spec.Devices[0].ConsumesCounters; len(consumes) > 0 {
			consumes[0].CompatibilityGroups = []string{"g"}
		}
	},
}

// hold makes a random part of the devices held.
func (s *state) hold(r *rand.Rand) {
	share := []int{0, 10, 30, 60}[r.IntN(4)]
	for _, one := range s.slices {
		for _, d := range one.Spec.Devices {
			of := share
			if len(d.ConsumesCounters) > 0 {
				of = (share + 9) / 20 // Most parts of a GPU exclude one another.
			}
			if r.IntN(100) < of {
				s.held[strings.Join([]string{one.Spec.Driver, one.Spec.Pool.Name, d.Name}, "/")] = true
			}
		}
	}
}

// claim returns a random claim of the simple form. parts: there are MIG devices, and some of the claims request them.
func (k *kit) claim(r *rand.Rand, number int, parts bool) *resourceapi.ResourceClaim {
	made := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("claim-", number)}}
	made.UID = types.UID(made.Name)
	expressions := []string{
		`true`, `device.driver == "gpu.berth.dev"`, `device.attributes["gpu.berth.dev"].architecture == "Hopper"`,
		`device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 1`, `"nvlinkIsland" in device.attributes["gpu.berth.dev"]`,
		`device.attributes["gpu.berth.dev"].?health.orValue("Healthy") == "Healthy"`,
		`device.capacity["gpu.berth.dev"].memory.compareTo(quantity("20Gi")) >= 0`,
	}
	for i := range 1 + r.IntN(3)*r.IntN(2)*r.IntN(2) {
		exact := &resourceapi.ExactDeviceRequest{AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(1 + r.IntN(4)*r.IntN(2))}
		switch r.IntN(16) {
		case 0, 1:
			exact.DeviceClassName = k.names[r.IntN(len(k.names))]
		case 2, 3, 4:
			exact.DeviceClassName = drapool.DefaultDriver
			if parts {
				exact.DeviceClassName = "mig"
			}
		default:
			exact.DeviceClassName = drapool.DefaultDriver
		}
		if r.IntN(8) == 0 {
			exact.Count = int64(1 + r.IntN(16))
		}
		for range r.IntN(3) * r.IntN(2) * r.IntN(2) {
			exact.Selectors = append(exact.Selectors, selectors(expressions[r.IntN(len(expressions))])...)
		}
		if r.IntN(4) == 0 {
			exact.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/taint-0", Operator: resourceapi.DeviceTolerationOpExists}}
		}
		if r.IntN(8) == 0 {
			exact.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
		}
		made.Spec.Devices.Requests = append(made.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprint("r", i), Exactly: exact})
	}
	attributes := []resourceapi.FullyQualifiedName{
		"gpu.berth.dev/nvlinkIsland", "resource.kubernetes.io/numaNode", "gpu.berth.dev/x", "gpu.berth.dev/parentUUID",
		"resource.kubernetes.io/pcieRoot", "gpu.berth.dev/list", "example.com/none",
	}
	for range []int{0, 0, 0, 1, 1, 2}[r.IntN(6)] {
		attribute := attributes[r.IntN(3+r.IntN(5))]
		on := [][]string{nil, {"r0"}, {"r1"}, {"r0", "r1"}, {"r0", "r2"}}[r.IntN(5)]
		made.Spec.Devices.Constraints = append(made.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &attribute, Requests: on})
	}
	return made
}
