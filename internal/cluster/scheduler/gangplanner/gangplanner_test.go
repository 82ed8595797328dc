package gangplanner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/budgets"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// node is a node of the scheduler's snapshot.
type node struct {
	fwk.NodeInfo
	object *v1.Node
	pods   []*v1.Pod
}

type podInfo struct {
	fwk.PodInfo
	pod *v1.Pod
}

type amounts struct {
	fwk.Resource
	cpu, gpus int64
}

const gpuName = "nvidia.com/gpu"

func (n *node) Node() *v1.Node               { return n.object }
func (n *node) GetGeneration() int64         { return int64(len(n.pods)) }
func (n *node) GetAllocatable() fwk.Resource { return amounts{cpu: 64_000, gpus: gpusPerNode} }
func (n *node) GetRequested() fwk.Resource   { return sumOf(n.pods) }
func (n *node) GetPods() (list []fwk.PodInfo) {
	for _, pod := range n.pods {
		list = append(list, podInfo{pod: pod})
	}
	return list
}

func (p podInfo) GetPod() *v1.Pod { return p.pod }
func (p podInfo) CalculateResource() fwk.PodResource {
	return fwk.PodResource{Resource: sumOf([]*v1.Pod{p.pod})}
}

func (a amounts) GetMilliCPU() int64         { return a.cpu }
func (a amounts) GetMemory() int64           { return 1 << 40 }
func (a amounts) GetEphemeralStorage() int64 { return 0 }
func (a amounts) GetAllowedPodNumber() int   { return 10 }
func (a amounts) GetScalarResources() map[v1.ResourceName]int64 {
	return map[v1.ResourceName]int64{gpuName: a.gpus}
}

func sumOf(pods []*v1.Pod) (sum amounts) {
	for _, pod := range pods {
		gpus := pod.Spec.Containers[0].Resources.Requests[gpuName]
		sum.cpu, sum.gpus = sum.cpu+1000, sum.gpus+gpus.Value()
	}
	return sum
}

const gpusPerNode = 4

// member returns a pod of the gang train that requests GPUs.
func member(name string, gpus int64, options ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "train"}}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("1"), gpuName: *resource.NewQuantity(gpus, resource.DecimalSI),
	}}}}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// cluster is nodes n0 to n2 of 4 GPUs in the racks r0, r0 and r1.
type cluster struct {
	planner *Planner
	nodes   []*node
}

func newCluster() *cluster {
	c := &cluster{planner: &Planner{Model: model.New(model.Deps{})}}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		c.nodes = append(c.nodes, &node{object: &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"topology.kubernetes.io/rack": fmt.Sprintf("r%d", i/2), v1.LabelHostname: name}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("1Ti"), gpuName: *resource.NewQuantity(gpusPerNode, resource.DecimalSI),
			}},
		}})
		object := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for g := range gpusPerNode {
			object.Status.Devices = append(object.Status.Devices, v1alpha1.GPUDevice{
				UUID: fmt.Sprintf("GPU-%s-%d", name, g), Index: g, Minor: g, PCIBusID: fmt.Sprintf("0000:%02x:00.0", g), Product: "H100",
				Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: gpuName},
			})
		}
		c.planner.Model.SetHardware(fleetview.NewReader().Read(object))
	}
	return c
}

// run starts a pod on a node.
func (c *cluster) run(at int, pod *v1.Pod) {
	pod.Spec.NodeName = c.nodes[at].object.Name
	c.nodes[at].pods = append(c.nodes[at].pods, pod)
}

// question returns the question for some members, of which all are needed.
func (c *cluster) question(members ...*v1.Pod) *Question {
	q := &Question{
		Policy: fleet.PolicyPack, Levels: gangplan.DefaultLevels(), Bound: map[types.UID]string{}, Plans: 1,
		View: &gangplan.Gang{Key: gangplan.Key{Namespace: "ml", Name: "train"}, Members: members, Min: int32(len(members))},
	}
	for _, n := range c.nodes {
		q.Nodes = append(q.Nodes, n)
	}
	c.planner.Model.Sync(q.Nodes)
	return q
}

// show writes places: "a=n0 b=n1".
func show(places map[types.UID]Place) string {
	var list []string
	for _, uid := range slices.Sorted(maps.Keys(places)) {
		list = append(list, string(uid)+"="+places[uid].Node)
	}
	return strings.Join(list, " ")
}

func pair() []*v1.Pod { return []*v1.Pod{member("a", 4), member("b", 4)} }

// TestPlan: the members get nodes that the rules of Kubernetes, other plugins, and what is held leave to them, or the answer says why none
// gets one.
func TestPlan(t *testing.T) {
	selects := func(rack string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"topology.kubernetes.io/rack": rack} }
	}
	tests := map[string]struct {
		members []*v1.Pod
		change  func(c *cluster, q *Question)
		want    string // places, or what the refusal has
	}{
		"a rack":          {members: pair(), want: "a=n0 b=n1"},
		"a node selector": {members: []*v1.Pod{member("a", 4, selects("r1"))}, want: "a=n2"},
		"a taint": {members: pair(), change: func(c *cluster, _ *Question) {
			c.nodes[0].object.Spec.Taints = []v1.Taint{{Key: "gone", Effect: v1.TaintEffectNoSchedule}}
		}, want: "a=n1 b=n2"},
		"other plugins refuse a node": {members: pair(), change: func(_ *cluster, q *Question) {
			signature, _ := gangplan.Signature(q.View.Members[0])
			q.Allowed = map[string]map[string]bool{signature: {"n1": true, "n2": true}}
		}, want: "a=n1 b=n2"},
		"some nodes only": {members: pair(), change: func(_ *cluster, q *Question) { q.Within = map[string]bool{"n0": true, "n2": true} }, want: "a=n0 b=n2"},
		"GPUs are held": {members: pair(), change: func(c *cluster, q *Question) {
			q.Held = []model.Held{{Node: 0, Requests: c.planner.Model.Requests(member("x", 2))}}
		}, want: "a=n1 b=n2"},
		"pods are held": {members: []*v1.Pod{member("a", 1)}, change: func(_ *cluster, q *Question) {
			ten := v1.ResourceList{v1.ResourcePods: resource.MustParse("10")}
			q.Taken = map[string]v1.ResourceList{"n0": ten, "n1": ten}
		}, want: "a=n2"},
		"places are reserved": {members: []*v1.Pod{member("a", 1)}, change: func(_ *cluster, q *Question) {
			none := v1.ResourceList{gpuName: resource.MustParse("0")}
			q.Left = map[string]v1.ResourceList{"n0": none, "n2": none}
		}, want: "a=n1"},
		"a member has a node": {members: pair(), change: func(c *cluster, q *Question) {
			c.run(2, q.View.Members[0])
			q.Bound["a"] = "n2"
		}, want: "b=n0"},
		"its node does not exist":  {members: pair(), change: func(_ *cluster, q *Question) { q.Bound["a"] = "away" }, want: "1 on nodes that do not exist"},
		"too large":                {members: []*v1.Pod{member("a", 4), member("b", 4), member("c", 4), member("d", 4)}, want: "at most 3 do"},
		"levels that do not agree": {members: pair(), change: func(_ *cluster, q *Question) { q.View.Topology = gangplan.Topology{Required: "a", Preferred: "b"} }, want: `level "a" cannot be combined`},
		"no steps":                 {members: pair(), change: func(_ *cluster, q *Question) { q.Budget = gang.Budget{Steps: 1} }, want: gang.ErrSteps.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			q := c.question(test.members...)
			if test.change != nil {
				test.change(c, q)
			}
			if got := planned(c, q); got != test.want && !(strings.Contains(test.want, " ") && !strings.Contains(test.want, "=") && strings.Contains(got, test.want)) {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// planned returns the places of the first plan, or why there is none.
func planned(c *cluster, q *Question) string {
	c.planner.Model.Sync(q.Nodes)
	answer, err := c.planner.Plan(q)
	switch {
	case err != nil:
		return err.Error()
	case answer.Gone > 0:
		return fmt.Sprintf("%d on nodes that do not exist", answer.Gone)
	case answer.Refusal != nil:
		return Sentence(q.View.Key, answer.Refusal, q.Levels)
	case answer.Problem != "":
		return answer.Problem
	}
	return show(answer.Plans[0].Places)
}

// TestRenew: the members keep those places of an earlier plan that are still free, and the others get new ones, if there are any.
func TestRenew(t *testing.T) {
	tests := map[string]struct {
		change func(c *cluster)
		want   string // the new plan, or what is kept of the old one
	}{
		"nothing has changed":   {func(*cluster) {}, "a=n0 b=n1"},
		"a place is taken":      {func(c *cluster) { c.run(0, member("x", 1)) }, "a=n2 b=n1"},
		"two places are taken":  {func(c *cluster) { c.run(0, member("x", 1)); c.run(2, member("y", 1)) }, "kept b=n1"},
		"a node of it is gone":  {func(c *cluster) { c.nodes = c.nodes[1:] }, "a=n2 b=n1"},
		"all places are taken":  {func(c *cluster) { c.run(0, member("x", 1)); c.run(1, member("y", 1)); c.run(2, member("z", 1)) }, "kept "},
		"a member got its node": {func(c *cluster) { c.run(0, member("a", 4)) }, errOther.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			q := c.question(pair()...)
			answer, err := c.planner.Plan(q)
			if err != nil {
				t.Fatal(err)
			}
			test.change(c)
			q = c.question(q.View.Members...)
			if name == "a member got its node" {
				q.Bound["a"] = "n0"
			}
			renewed, kept, err := c.planner.Renew(q, &answer.Plans[0])
			got := "kept " + show(kept)
			if renewed != nil {
				got = show(renewed.Places)
			}
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// TestEnd: the pods that have to end for a gang are the least important ones that leave it enough, and none that need not end.
func TestEnd(t *testing.T) {
	holder := func(rank int32, pods ...*v1.Pod) Holder { return Holder{Pods: pods, Rank: rank} }
	tests := map[string]struct {
		members []*v1.Pod
		ranks   map[string]int32 // of the pods x0 to x2, each on all GPUs of a node
		budget  string           // the pod that a budget protects
		want    string           // the pods that end
	}{
		"the least important ones":     {members: pair(), ranks: map[string]int32{"x0": 3, "x1": 2, "x2": 1}, want: "x1 x2"},
		"not one with a budget":        {members: pair(), ranks: map[string]int32{"x0": 3, "x1": 2, "x2": 1}, budget: "x2", want: "x0 x1"},
		"a gang that is too large":     {members: []*v1.Pod{member("a", 4), member("b", 4), member("c", 4), member("d", 4)}, ranks: map[string]int32{"x0": 1, "x1": 1, "x2": 1}},
		"one that fits":                {members: pair(), ranks: map[string]int32{"x0": 1}},
		"members with ResourceClaims":  {members: []*v1.Pod{member("a", 4, func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c"}} })}, ranks: map[string]int32{"x0": 1, "x1": 1, "x2": 1}},
		"nothing that can end":         {members: pair()},
		"the one that another rule is": {members: []*v1.Pod{member("a", 4, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "n0"} })}, ranks: map[string]int32{"x0": 9, "x1": 1, "x2": 1}, want: "x0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			var holders []Holder
			var list []*policy.PodDisruptionBudget
			for i := range 3 {
				name := fmt.Sprintf("x%d", i)
				if rank, runs := test.ranks[name]; runs {
					pod := member(name, 4, func(p *v1.Pod) { p.Labels = map[string]string{"name": name} })
					c.run(i, pod)
					holders = append(holders, holder(rank, pod))
				}
			}
			if test.budget != "" {
				list = append(list, &policy.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ml"},
					Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": test.budget}}},
				})
			}
			slices.SortStableFunc(holders, func(a, b Holder) int { return int(b.Rank - a.Rank) })
			ending, err := c.planner.End(c.question(test.members...), holders, budgets.New(list))
			if err != nil && !errors.Is(err, gang.ErrSteps) {
				t.Fatal(err)
			}
			var ended []string
			if ending != nil {
				for _, pod := range ending.Pods {
					ended = append(ended, pod.Name)
				}
			}
			slices.Sort(ended)
			if got := strings.Join(ended, " "); got != test.want || err != nil {
				t.Errorf("%q end, %v; want %q", got, err, test.want)
			}
		})
	}
}
