package whatif

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/replay"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Kind is the kind of Report; its version is replay.APIVersion.
const Kind = "WhatIf"

// Report is the answer to a question. Percentages are of the GPU capacity, unless they say otherwise. GPUs are counted in whole ones:
// a MIG device or replica is its part of a GPU.
type Report struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Seed       uint64   `json:"seed"`
	Scale      float64  `json:"scale"`
	Changes    []string `json:"changes"`
	// Pods counts the pods of the cluster.
	Pods PodCounts `json:"pods"`
	// Now is the cluster as it is, WhatIf what each policy makes of the changed one.
	Now    State   `json:"now"`
	WhatIf []State `json:"whatIf"`
	// Notes say in one sentence each what could not be read, or is not considered.
	Notes []string `json:"notes"`
}

// PodCounts counts pods that have not ended.
type PodCounts struct {
	// Running are those that are bound to a node and can go elsewhere, Waiting those without a node. Both are placed again; Added are
	// further ones like them.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	Added   int `json:"added"`
	// Staying are those that stay on their node, Gated those with scheduling gates, Claims those that wait with ResourceClaims, Ending
	// those that are being deleted. They are not placed again.
	Staying int `json:"staying"`
	Gated   int `json:"gated"`
	Claims  int `json:"claims"`
	Ending  int `json:"ending"`
}

// State is a state of a cluster.
type State struct {
	// Policy is empty for the cluster as it is.
	Policy string `json:"policy,omitempty"`
	Nodes  int    `json:"nodes"`
	// GPUs is the capacity, whatever the health of the GPUs; Held what pods, claims and maintenance have of it.
	GPUs float64 `json:"gpus"`
	Held float64 `json:"held"`
	// AllocatedPercent is Held of GPUs.
	AllocatedPercent float64 `json:"allocatedPercent"`
	// Usable is what is idle and could be allocated. FragmentationOfIdlePercent is what of it a pod of the mix cannot use, in the mean, and
	// StrandedOfIdlePercent what the CPU and memory of its node cannot serve.
	Usable                     float64 `json:"usable"`
	FragmentationPercent       float64 `json:"fragmentationPercent"`
	FragmentationOfIdlePercent float64 `json:"fragmentationOfIdlePercent"`
	StrandedOfIdlePercent      float64 `json:"strandedOfIdlePercent"`
	// Unplaced counts pods without a node; Displaced those of them that run now, StillWaiting those that wait now.
	Unplaced     int `json:"unplaced"`
	Displaced    int `json:"displaced"`
	StillWaiting int `json:"stillWaiting"`
	// UnplacedShapes are the requests of these pods, most frequent first.
	UnplacedShapes []UnplacedShape `json:"unplacedShapes"`
	Devices        []Devices       `json:"devices"`
	Idle           []Idle          `json:"idle"`
}

// UnplacedShape counts the pods with equal requests that have no node.
type UnplacedShape struct {
	Pods int    `json:"pods"`
	Text string `json:"text"`
}

// Devices counts the devices of one resource on GPUs of one model.
type Devices struct {
	Model    string  `json:"model"`
	Resource string  `json:"resource"`
	GPUs     float64 `json:"gpus"`
	Held     float64 `json:"held"`
	// Percent is Held of GPUs.
	Percent float64 `json:"allocatedPercent"`
}

// Options are those of a question.
type Options struct {
	Changes  Changes
	Policies []string
	Seed     uint64
	// Scale is how much the pods request in all, by what those of the cluster request; 1 adds none.
	Scale float64
	// Progress is called with a number of pods that were decided on; nil is not called.
	Progress func(pods int)
}

// Ask answers a question about a cluster.
func Ask(ctx context.Context, objects *Objects, o Options) (*Report, error) {
	objects = sorted(objects)
	is, err := newCluster(objects)
	if err != nil {
		return nil, err
	}
	changed := is
	if !o.Changes.empty() {
		other, err := o.Changes.apply(objects)
		if err != nil {
			return nil, err
		}
		if changed, err = newCluster(sorted(other)); err != nil {
			return nil, err
		}
	}
	report := &Report{APIVersion: replay.APIVersion, Kind: Kind, Seed: o.Seed, Scale: o.Scale, Changes: o.Changes.texts(), WhatIf: []State{}}
	report.Now = is.stateNow()
	pods := changed.scaled(o.Scale, o.Seed)
	report.Pods = is.counts(len(pods) - len(changed.pods))
	for _, name := range o.Policies {
		state, err := changed.replay(ctx, name, pods, &o)
		if err != nil {
			return nil, fmt.Errorf("place the pods by %s: %w", name, err)
		}
		report.WhatIf = append(report.WhatIf, state)
	}
	report.Notes = append(is.notesNow(), changed.notesChanged(is)...)
	return report, nil
}

// sorted returns objects in an order that does not depend on that of the lists.
func sorted(o *Objects) *Objects {
	made := *o
	made.Nodes, made.GPUNodes, made.Pods, made.Notes = slices.Clone(o.Nodes), slices.Clone(o.GPUNodes), slices.Clone(o.Pods), slices.Clone(o.Notes)
	slices.SortStableFunc(made.Nodes, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(made.GPUNodes, func(a, b v1alpha1.GPUNode) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(made.Pods, func(a, b corev1.Pod) int { return byCreation(&a, &b) })
	slices.Sort(made.Notes)
	return &made
}

func (c *cluster) counts(added int) PodCounts {
	counts := PodCounts{Added: added, Staying: c.skipped.fixed, Gated: c.skipped.gated, Claims: c.skipped.claims, Ending: c.skipped.terminating}
	for i := range c.pods {
		if c.pods[i].waiting {
			counts.Waiting++
		} else {
			counts.Running++
		}
	}
	return counts
}

// scaled returns the pods, and then copies of random ones until the next one would make what they request of GPUs more than scale times
// what the pods request.
func (c *cluster) scaled(scale float64, seed uint64) []pod {
	pods := slices.Clone(c.pods)
	sum := int64(0)
	for i := range pods {
		sum += c.groups[pods[i].group].demand(c.resources)
	}
	if sum == 0 {
		return pods
	}
	random := rand.New(rand.NewSource(int64(seed)))
	for limit := int64(scale * float64(sum)); sum < limit; {
		one := c.pods[random.Intn(len(c.pods))]
		if sum += c.groups[one.group].demand(c.resources); sum <= limit {
			pods = append(pods, one)
		}
	}
	return pods
}

// replay places the pods by a policy and returns the state then.
func (c *cluster) replay(ctx context.Context, name string, pods []pod, o *Options) (State, error) {
	measure := fleet.NewMeasure(c.mix)
	p, err := newPlacer(c, c.empty(), name, measure, o.Seed)
	if err != nil {
		return State{}, err
	}
	unplaced, err := p.placeAll(ctx, c, pods, o.Progress)
	if err != nil {
		return State{}, err
	}
	nodes := make([]*fleet.Node, len(c.members))
	for i := range nodes {
		at, _ := p.fleet.Find(c.members[i].node.Name)
		nodes[i] = p.fleet.Node(at)
	}
	s := c.state(nodes, measure)
	s.Policy = p.policy
	shapes := map[int]int{}
	for _, i := range unplaced {
		shapes[pods[i].group]++
		switch {
		case i >= len(c.pods): // one of the further ones
		case pods[i].waiting:
			s.StillWaiting++
		default:
			s.Displaced++
		}
	}
	s.Unplaced, s.UnplacedShapes = len(unplaced), c.shapes(shapes)
	return s, nil
}

// stateNow returns the state of the cluster as it is.
func (c *cluster) stateNow() State {
	views := c.now()
	nodes := make([]*fleet.Node, len(views))
	for i := range views {
		nodes[i] = &views[i].Node
	}
	for i := range views {
		// What a GPUNode cannot be used for is noted when it is read.
		if m := &c.members[i]; m.hardware != nil && views[i].Note != "" && views[i].Note != m.hardware.Note {
			c.notes = append(c.notes, fmt.Sprintf("node %s: %s", m.node.Name, views[i].Note))
		}
	}
	s := c.state(nodes, fleet.NewMeasure(c.mix))
	waiting := map[int]int{}
	for i := range c.pods {
		if c.pods[i].waiting {
			waiting[c.pods[i].group]++
			s.Unplaced++
		}
	}
	s.StillWaiting, s.UnplacedShapes = s.Unplaced, c.shapes(waiting)
	return s
}

// shapes returns the requests of groups with a number of pods each. Groups that differ in their constraints alone count as one.
func (c *cluster) shapes(groups map[int]int) []UnplacedShape {
	counts := map[string]int{}
	for number, pods := range groups {
		counts[c.groups[number].text()] += pods
	}
	list := []UnplacedShape{}
	for text, pods := range counts {
		list = append(list, UnplacedShape{pods, text})
	}
	slices.SortFunc(list, func(a, b UnplacedShape) int { return cmp.Or(-cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Text, b.Text)) })
	return list
}

// text is the requests of a group in words: the sum of each resource.
func (g *group) text() string {
	sums := map[string]int32{}
	for i := range g.requests {
		sums[g.requests[i].Resource] += g.requests[i].GPUs
	}
	first := g.requests[0]
	first.GPUs = sums[first.Resource]
	text := first.String()
	delete(sums, first.Resource)
	for _, resource := range slices.Sorted(maps.Keys(sums)) {
		text += fmt.Sprintf(", %d %s", sums[resource], resource)
	}
	return text
}

// notesNow are the notes about the cluster as it is.
func (c *cluster) notesNow() []string {
	notes := slices.Clone(c.notes)
	if extra := len(notes) - maxNotes; extra > 0 {
		notes = append(notes[:maxNotes:maxNotes], fmt.Sprintf("further notes of this kind: %d", extra))
	}
	add := func(what string, count int) {
		if count > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d", what, count))
		}
	}
	add("pods that wait with ResourceClaims, which are not placed here", c.skipped.claims)
	add("pods with scheduling gates, which are not placed here", c.skipped.gated)
	add("pods with affinity to pods, spread constraints, volumes of a claim or host ports, which are not considered", c.skipped.ignored)
	return notes
}

// notesChanged are the notes about the changed cluster that are not about the one that is.
func (c *cluster) notesChanged(is *cluster) []string {
	var notes []string
	closed := 0
	for i := range c.members {
		if node := c.members[i].node; closedTo(node) {
			closed++
		}
	}
	if closed > 0 {
		notes = append(notes, fmt.Sprintf("nodes that are cordoned, not ready or not validated, and get only pods that tolerate it: %d", closed))
	}
	if c == is {
		return notes
	}
	for _, note := range c.notes {
		if !slices.Contains(is.notes, note) && len(notes) < maxNotes {
			notes = append(notes, note)
		}
	}
	return notes
}
