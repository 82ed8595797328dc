package gangplan

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
)

// Input is what requirements are made from.
type Input struct {
	View   *Gang
	Levels Levels
	// Node returns the index of the node of a member, gang.Unbound for one that has none, and false for one whose node does not exist: it
	// is left out.
	Node func(*corev1.Pod) (int, bool)
	// Requests returns what a member requests of GPUs; the first request has its CPU and memory.
	Requests func(*corev1.Pod) []fleet.Shape
}

// Class are members of one signature.
type Class struct {
	// Signature is what Signature returns for them.
	Signature string
	// Pod is the first of them.
	Pod   *corev1.Pod
	Rules Rules
}

// Requirements are what a gang requires of nodes: what package gang plans. The Capacity of the classes of the gang and its Others are not
// set.
type Requirements struct {
	Gang gang.Gang
	// Required and Preferred are the levels that the gang asks for. Those of Gang are that of the node where members share a ResourceClaim.
	Required  int
	Preferred int
	// Keys are the label keys of its levels, the widest first, without that of the node.
	Keys []string
	// Members are the pods of the members of the gang, in their order.
	Members []*corev1.Pod
	// Classes are those of the gang, in their order.
	Classes []Class
	// Problem says in one sentence why the gang cannot be planned, whatever the nodes are; it is empty when it can.
	Problem string
}

// Least is how many members have to have a node together.
func Least(view *Gang) int { return int(view.Min - view.Done) }

// Require returns the requirements of a gang of at least one member without a Problem. The error is that of a pod that cannot be read.
//
// Where there are no segments, the members that have a node come first: they count for the least number, whatever their rank.
func Require(in Input) (Requirements, error) {
	var r Requirements
	members := slices.Clone(in.View.Members)
	if in.View.Topology.SegmentSize == 0 {
		slices.SortStableFunc(members, func(a, b *corev1.Pod) int { return waits(in.Node(a)) - waits(in.Node(b)) })
	}
	r.Gang.Min = max(1, min(Least(in.View), len(members)))
	if r.Problem = r.levels(in.Levels, in.View.Topology); r.Problem != "" {
		return r, nil
	}
	for _, pod := range members {
		node, exists := in.Node(pod)
		if !exists {
			continue
		}
		class, err := r.class(pod, in.Requests)
		if err != nil {
			return r, err
		}
		r.Gang.Members = append(r.Gang.Members, gang.Member{Class: class, Node: node})
		r.Members = append(r.Members, pod)
	}
	r.Gang.Min = min(r.Gang.Min, len(r.Gang.Members))
	r.Required, r.Preferred = r.Gang.Required, r.Gang.Preferred
	if SharedClaim(members) != "" {
		// Members that share a claim are on the node of its devices.
		r.Gang.Required, r.Gang.Preferred = len(r.Keys), len(r.Keys)
	}
	return r, nil
}

// Shared returns what members of several classes request, by the name of the resource: how much a member of each class does, in the unit
// of Amount.
func (r *Requirements) Shared() map[corev1.ResourceName][]int64 {
	shared := map[corev1.ResourceName][]int64{}
	for c := range r.Classes {
		for name, amount := range r.Classes[c].Rules.amounts {
			if shared[name] == nil {
				shared[name] = make([]int64, len(r.Classes))
			}
			shared[name][c] = Amount(name, amount)
		}
	}
	maps.DeleteFunc(shared, func(_ corev1.ResourceName, wants []int64) bool {
		classes := 0
		for _, want := range wants {
			if want > 0 {
				classes++
			}
		}
		return classes < 2
	})
	return shared
}

// SharedPorts returns, for ports of the host that members of several classes use, by which classes each is used.
func (r *Requirements) SharedPorts() (list [][]int64) {
	seen := map[hostPort]bool{}
	for c := range r.Classes {
		for _, port := range r.Classes[c].Rules.ports {
			if seen[port] {
				continue
			}
			seen[port] = true
			users, count := make([]int64, len(r.Classes)), 0
			for k := range r.Classes {
				if r.Classes[k].Rules.sharesPort([]hostPort{port}) {
					users[k] = 1
					count++
				}
			}
			if count > 1 {
				list = append(list, users)
			}
		}
	}
	return list
}

// Amount returns a quantity of a resource as a number: CPU in thousandths of a core, others in their own unit. One that is too large for a
// number is the largest one.
func Amount(name corev1.ResourceName, quantity resource.Quantity) int64 {
	switch {
	case name == corev1.ResourceCPU && quantity.CmpInt64(math.MaxInt64/1000) < 0:
		return quantity.MilliValue()
	case name == corev1.ResourceCPU || quantity.CmpInt64(math.MaxInt64) >= 0:
		return math.MaxInt64
	}
	return quantity.Value()
}

// waits is 1 for a member without a node.
func waits(node int, exists bool) int {
	if exists && node == gang.Unbound {
		return 1
	}
	return 0
}

// class returns the class of a member, which is a new one for the first of its signature.
func (r *Requirements) class(pod *corev1.Pod, requests func(*corev1.Pod) []fleet.Shape) (int, error) {
	text, err := Signature(pod)
	if err != nil {
		return 0, fmt.Errorf("read pod %s: %w", pod.Name, err)
	}
	if i := slices.IndexFunc(r.Classes, func(c Class) bool { return c.Signature == text }); i >= 0 {
		return i, nil
	}
	r.Classes = append(r.Classes, Class{Signature: text, Pod: pod, Rules: NewRules(pod)})
	r.Gang.Classes = append(r.Gang.Classes, gang.Class{Requests: requests(pod)})
	return len(r.Classes) - 1, nil
}

// levels sets the levels of the gang, and returns what is wrong with them.
func (r *Requirements) levels(levels Levels, t Topology) string {
	for _, l := range levels {
		if l.Key != corev1.LabelHostname {
			r.Keys = append(r.Keys, l.Key)
		}
	}
	for _, key := range []string{t.Required, t.Preferred, t.SegmentLevel} {
		if key != "" && key != corev1.LabelHostname && !slices.Contains(r.Keys, key) {
			// A level that the configuration does not have stands alone: it is neither wider nor narrower than the others.
			r.Keys = []string{key}
		}
	}
	problem := ""
	position := func(key string) int {
		if key == corev1.LabelHostname {
			return len(r.Keys)
		}
		i := slices.Index(r.Keys, key)
		if i < 0 && problem == "" {
			problem = fmt.Sprintf("the topology level %q cannot be combined with one that the configuration of the scheduler does not have: use levels of topologyLevels", key)
		}
		return i
	}
	g := &r.Gang
	g.Required, g.Preferred = gang.Anywhere, len(r.Keys)
	if t.Required != "" {
		g.Required = position(t.Required)
	}
	if t.Preferred != "" {
		g.Preferred = max(position(t.Preferred), g.Required)
	}
	if t.Unconstrained {
		g.Preferred = g.Required
	}
	if t.SegmentSize > 0 {
		g.Segment = gang.Segment{Level: position(t.SegmentLevel), Size: int(t.SegmentSize)}
	}
	return problem
}

// SharedClaim returns a ResourceClaim that several members use, or an empty text. Its devices are those of one node, most often.
func SharedClaim(members []*corev1.Pod) string {
	seen := map[string]bool{}
	for _, pod := range members {
		for i := range pod.Spec.ResourceClaims {
			name := pod.Spec.ResourceClaims[i].ResourceClaimName
			if name == nil {
				continue
			}
			if seen[*name] {
				return *name
			}
			seen[*name] = true
		}
	}
	return ""
}

// WasWhole tells whether a gang with too few members on nodes had enough of them earlier, and has lost members: those that existed when the
// last one was bound, at the time that it returns, are fewer than the least number. The others take the place of members that were lost.
func WasWhole(view *Gang) (whole bool, bound metav1.Time) {
	for _, pod := range view.Members {
		for i := range pod.Status.Conditions {
			if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && bound.Before(&c.LastTransitionTime) {
				bound = c.LastTransitionTime
			}
		}
	}
	existed := 0
	for _, pod := range view.Members {
		if pod.Spec.NodeName != "" || !bound.Before(&pod.CreationTimestamp) {
			existed++
		}
	}
	return existed < Least(view), bound
}
