package preemption

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
)

const driver, class = "gpu.berth.dev", "gpu.berth.dev"

// fakeDRA has the claims and devices of a cluster: perNode GPUs on each node, named gpu-0 and so on, of which 0 and 1, 2 and 3, ...
// have the same attribute pair.
type fakeDRA struct {
	fwk.ResourceClaimTracker
	perNode int
	nodes   []string
	all     []*resourceapi.ResourceClaim
}

func (d *fakeDRA) ResourceClaims() fwk.ResourceClaimTracker     { return d }
func (d *fakeDRA) ResourceSlices() fwk.ResourceSliceLister      { return d }
func (d *fakeDRA) DeviceClasses() fwk.DeviceClassLister         { return classes{} }
func (d *fakeDRA) DeviceClassResolver() fwk.DeviceClassResolver { return classes{} }

type classes struct{}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != class {
		return nil, fmt.Errorf("no class %s", name)
	}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}, nil
}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	one, err := c.Get(class)
	return []*resourceapi.DeviceClass{one}, err
}

func (classes) GetDeviceClass(v1.ResourceName) *resourceapi.DeviceClass { return nil }

func (d *fakeDRA) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	var list []*resourceapi.ResourceSlice
	for _, name := range d.nodes {
		slice := st.MakeResourceSlice(name, driver)
		for i := range d.perNode {
			pair := int64(i / 2)
			slice.Device(fmt.Sprint("gpu-", i), map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"pair": {IntValue: &pair}})
		}
		list = append(list, slice.Obj())
	}
	return list, nil
}

func (d *fakeDRA) List() ([]*resourceapi.ResourceClaim, error) { return d.all, nil }

func (d *fakeDRA) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	for _, c := range d.all {
		if c.Namespace == namespace && c.Name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no claim %s/%s", namespace, name)
}

func (d *fakeDRA) GetPendingAllocation(types.UID) *resourceapi.AllocationResult { return nil }

func (d *fakeDRA) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	devices := sets.New[structured.DeviceID]()
	for _, c := range d.all {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			devices.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
	}
	return devices, nil
}

func (d *fakeDRA) GatherAllocatedState() (*structured.AllocatedState, error) {
	devices, err := d.ListAllAllocatedDevices()
	return &structured.AllocatedState{
		AllocatedDevices: devices, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}, err
}

// holdings adds what the claims hold to the nodes.
func (d *fakeDRA) holdings(f *fakeNodes) {
	for _, c := range d.all {
		if c.Status.Allocation == nil {
			continue
		}
		h := fleetview.Held{}
		for _, r := range c.Status.Allocation.Devices.Results {
			i, err := strconv.Atoi(r.Device[len("gpu-"):])
			if err == nil {
				h.GPUs = h.GPUs.With(i)
			}
		}
		for _, consumer := range c.Status.ReservedFor {
			h.Pods = append(h.Pods, string(consumer.UID))
		}
		if n := f.nodes[c.Status.Allocation.Devices.Results[0].Pool]; n != nil {
			f.hold(n, h)
		}
	}
}

// claim is a claim with GPUs of a node, reserved for pods.
func claim(name, node string, reserved []string, has ...int) *resourceapi.ResourceClaim {
	c := wanted(name, len(has), false)
	c.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: st.MakeNodeSelector().In("metadata.name", []string{node}, st.NodeSelectorTypeMatchFields).Obj()}
	for _, i := range has {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpus", Driver: driver, Pool: node, Device: fmt.Sprint("gpu-", i),
		})
	}
	for _, p := range reserved {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

// wanted is a claim for GPUs, of one pair if linked.
func wanted(name string, count int, linked bool) *resourceapi.ResourceClaim {
	c := st.MakeResourceClaim().Namespace("ns").Name(name).UID("uid-"+name).RequestWithNameCount("gpus", class, int64(count)).Obj()
	if linked {
		pair := resourceapi.FullyQualifiedName(driver + "/pair")
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &pair}}
	}
	return c
}

// using is a pod that uses a claim.
func using(p *st.PodWrapper, claim string) *v1.Pod {
	return p.PodResourceClaims(v1.PodResourceClaim{Name: "gpus", ResourceClaimName: &claim}).Obj()
}

// runs is a pod without GPUs of its own.
func runs(name, node string, priority int32, age int) *st.PodWrapper {
	return pod(name, node, priority, age)
}

// claiming is the pod that is to be scheduled, with a claim.
func claiming() *v1.Pod {
	return using(st.MakePod().Namespace("ns").Name("waiting").UID("uid-waiting").Priority(100).Req(map[v1.ResourceName]string{"cpu": "1"}), "want")
}

func TestClaims(t *testing.T) {
	tests := map[string]struct {
		claims  []*resourceapi.ResourceClaim
		pods    []*v1.Pod
		nodes   []string
		node    string
		victims []string
	}{
		"a claim of one pod": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 2, false), claim("a", "n", []string{"a"}, 0, 1), claim("b", "n", []string{"b"}, 2, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 900), "a"), using(runs("b", "n", 9, 1), "b")},
			node:   "n", victims: []string{"a"},
		},
		"a claim that several pods share": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 1, false), claim("a", "n", []string{"a", "a2"}, 0, 1, 2, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 900), "a"), using(runs("a2", "n", 5, 1), "a"), runs("other", "n", 5, 2).Obj()},
			node:   "n", victims: []string{"a", "a2"},
		},
		"a shared claim of which one pod must not end": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 1, false), claim("a", "n", []string{"a", "high"}, 0, 1, 2, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 900), "a"), using(runs("high", "n", 100, 1), "a")},
		},
		"one pod of one claim rather than two that share": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 2, false), claim("a", "n", []string{"a", "a2"}, 0, 1), claim("b", "n", []string{"b"}, 2, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 1), "a"), using(runs("a2", "n", 5, 2), "a"), using(runs("b", "n", 5, 900), "b")},
			node:   "n", victims: []string{"b"},
		},
		"the pair that the claim wants": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 2, true), claim("a", "n", []string{"a"}, 0), claim("b", "n", []string{"b"}, 2), claim("c", "n", []string{"c"}, 1), claim("d", "n", []string{"d"}, 3)},
			pods: []*v1.Pod{
				using(runs("a", "n", 5, 900), "a"), using(runs("b", "n", 5, 1), "b"), using(runs("c", "n", 5, 901), "c"), using(runs("d", "n", 9, 1), "d"),
			},
			node: "n", victims: []string{"a", "c"},
		},
		"the claim cannot be met with what would be free": {
			claims: []*resourceapi.ResourceClaim{wanted("want", 2, true), claim("a", "n", []string{"a"}, 0), claim("b", "n", []string{"b"}, 2), claim("d", "n", []string{"d"}, 1, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 900), "a"), using(runs("b", "n", 5, 1), "b"), using(runs("d", "n", 100, 1), "d")},
		},
		"the node with one victim": {
			nodes: []string{"m", "n"},
			claims: []*resourceapi.ResourceClaim{
				wanted("want", 2, false), claim("a", "m", []string{"a"}, 0, 2), claim("b", "m", []string{"b"}, 1, 3), claim("c", "n", []string{"c"}, 0, 1), claim("d", "n", []string{"d"}, 2, 3),
			},
			pods: []*v1.Pod{using(runs("a", "m", 5, 1), "a"), using(runs("b", "m", 9, 1), "b"), using(runs("c", "n", 5, 900), "c"), using(runs("d", "n", 9, 1), "d")},
			node: "n", victims: []string{"c"}, // GPUs 0 and 1 of n are linked, 0 and 2 of m are not
		},
		"a claim of the pod is allocated elsewhere": {
			nodes:  []string{"m", "n"},
			claims: []*resourceapi.ResourceClaim{claim("want", "m", nil, 0), claim("a", "n", []string{"a"}, 0, 1, 2, 3), claim("b", "m", []string{"b"}, 1, 2, 3)},
			pods:   []*v1.Pod{using(runs("a", "n", 5, 900), "a"), using(runs("b", "m", 9, 1).Req(map[v1.ResourceName]string{"cpu": "14500m"}), "b")},
			node:   "m", victims: []string{"b"}, // for its CPU
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.nodes == nil {
				test.nodes = []string{"n"}
			}
			c := &cluster{pods: append(slices.Clone(test.pods), claiming()), dra: &fakeDRA{perNode: 4, nodes: test.nodes, all: test.claims}}
			for _, n := range test.nodes {
				c.nodes = append(c.nodes, node(n, 0))
			}
			s := c.scheduler(t)
			got := s.preempt(t, c, c.berth(t, s), claiming())
			if got.Node != test.node || !slices.Equal(got.Victims, test.victims) {
				t.Errorf("%v; want node %q, victims %v", got, test.node, test.victims)
			}
		})
	}
}

// TestReleasing: after its victims have ended, a pod waits until their claims are released, and ends no further pods.
func TestReleasing(t *testing.T) {
	tests := map[string]struct {
		claims  []*resourceapi.ResourceClaim
		victims []string
	}{
		"not released":         {[]*resourceapi.ResourceClaim{claim("a", "n", []string{"a"}, 0, 1), claim("b", "n", []string{"b"}, 2, 3)}, nil},
		"taken by another pod": {[]*resourceapi.ResourceClaim{claim("c", "n", []string{"c"}, 0, 1), claim("b", "n", []string{"b"}, 2, 3)}, []string{"b"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := claiming()
			p.Status.NominatedNodeName = "n" // pod a has ended there
			c := &cluster{
				nodes: []*v1.Node{node("n", 0)}, pods: []*v1.Pod{using(runs("b", "n", 5, 1), "b"), using(runs("c", "n", 100, 1), "c"), p},
				dra: &fakeDRA{perNode: 4, nodes: []string{"n"}, all: append(test.claims, wanted("want", 2, false))},
			}
			s := c.scheduler(t)
			if got := s.preempt(t, c, c.berth(t, s), p); !slices.Equal(got.Victims, test.victims) {
				t.Errorf("%v; want victims %v", got, test.victims)
			}
		})
	}
}

var _ Nodes = (*fakeNodes)(nil)
var _ fwk.SharedDRAManager = (*fakeDRA)(nil)

// TestEndsWith: a claim ends with pods only when it is reserved for these and nothing else.
func TestEndsWith(t *testing.T) {
	ended := sets.New[types.UID]("uid-a", "uid-b")
	other := claim("other", "n", []string{"a"}, 0)
	other.Status.ReservedFor[0].APIGroup, other.Status.ReservedFor[0].Resource = "scheduling.k8s.io", "podgroups"
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  bool
	}{
		"of one":                      {claim("c", "n", []string{"a"}, 0), true},
		"of both":                     {claim("c", "n", []string{"a", "b"}, 0), true},
		"of one that does not end":    {claim("c", "n", []string{"a", "high"}, 0), false},
		"of something that is no pod": {other, false},
		"of nothing":                  {claim("c", "n", nil, 0), false},
		"not allocated":               {wanted("c", 1, false), false},
	}
	for name, test := range tests {
		if got := endsWith(test.claim, ended); got != test.want {
			t.Errorf("%s: %v; want %v", name, got, test.want)
		}
	}
}
