package topview

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Keys are the columns by which rows can be sorted.
func Keys() []string {
	return slices.Sorted(maps.Keys(gpuOrders()))
}

// gpuOrders compare GPUs by a column: what is worst, or most, comes first; what is not known comes last.
func gpuOrders() map[string]func(a, b *v1alpha1.GPUSample) int {
	value := func(of func(*v1alpha1.GPUSample) *float64) func(a, b *v1alpha1.GPUSample) int {
		return func(a, b *v1alpha1.GPUSample) int { return higher(of(a), of(b)) }
	}
	return map[string]func(a, b *v1alpha1.GPUSample) int{
		"index":   func(_, _ *v1alpha1.GPUSample) int { return 0 },
		"health":  func(a, b *v1alpha1.GPUSample) int { return worse(stateOf(a.Health), stateOf(b.Health)) },
		"held-by": func(a, b *v1alpha1.GPUSample) int { return named(podUse(allPods(a), false), podUse(allPods(b), false)) },
		"util":    value(busyShare),
		"memory":  value(usedOf),
		"temp":    value(func(s *v1alpha1.GPUSample) *float64 { return s.TemperatureCelsius }),
		"power":   value(func(s *v1alpha1.GPUSample) *float64 { return s.PowerWatts }),
		"model":   func(a, b *v1alpha1.GPUSample) int { return strings.Compare(a.Product, b.Product) },
	}
}

// nodeOrders compare nodes by a column.
func nodeOrders() map[string]func(a, b *nodeFacts) int {
	value := func(of func(*nodeFacts) *float64) func(a, b *nodeFacts) int {
		return func(a, b *nodeFacts) int { return higher(of(a), of(b)) }
	}
	return map[string]func(a, b *nodeFacts) int{
		"index": func(_, _ *nodeFacts) int { return 0 },
		"health": func(a, b *nodeFacts) int {
			return cmp.Or(worse(stateOf(a.worst), stateOf(b.worst)), b.ill-a.ill)
		},
		"held-by": func(a, b *nodeFacts) int { return b.held - a.held },
		"util":    value(func(n *nodeFacts) *float64 { return n.busy }),
		"memory":  value(func(n *nodeFacts) *float64 { return n.use.MemoryUsedBytes }),
		"temp":    value(func(n *nodeFacts) *float64 { return n.temp }),
		"power":   value(func(n *nodeFacts) *float64 { return n.watts }),
		"model":   func(a, b *nodeFacts) int { return slices.Compare(a.products, b.products) },
	}
}

// Sort puts nodes and their GPUs into the order of the view.
func (v *View) Sort(nodes []*v1alpha1.GPUSamples) {
	for _, node := range nodes {
		if order := gpuOrders()[v.SortBy]; order != nil {
			slices.SortStableFunc(node.Items, func(a, b v1alpha1.GPUSample) int { return order(&a, &b) })
		}
	}
	place := map[string]int{}
	for i, facts := range v.sortedNodes(nodes) {
		place[facts.name] = i
	}
	slices.SortStableFunc(nodes, func(a, b *v1alpha1.GPUSamples) int { return place[a.Node] - place[b.Node] })
}

// sortedGPUs returns the GPUs of a node in the order of the view.
func (v *View) sortedGPUs(node *v1alpha1.GPUSamples) []*v1alpha1.GPUSample {
	all := make([]*v1alpha1.GPUSample, len(node.Items))
	for i := range node.Items {
		all[i] = &node.Items[i]
	}
	if order := gpuOrders()[v.SortBy]; order != nil {
		slices.SortStableFunc(all, order)
	}
	return all
}

// sortedNodes returns the nodes in the order of the view, and of their names where that makes no difference.
func (v *View) sortedNodes(nodes []*v1alpha1.GPUSamples) []*nodeFacts {
	all := make([]*nodeFacts, len(nodes))
	for i := range nodes {
		all[i] = factsOf(nodes[i])
	}
	slices.SortFunc(all, func(a, b *nodeFacts) int {
		first := 0
		if order := nodeOrders()[v.SortBy]; order != nil {
			first = order(a, b)
		}
		return cmp.Or(first, strings.Compare(a.name, b.name))
	})
	return all
}

// allPods returns the pods of a GPU and of its MIG devices.
func allPods(s *v1alpha1.GPUSample) []v1alpha1.PodSample {
	pods := slices.Clone(s.Pods)
	for i := range s.Devices {
		pods = append(pods, s.Devices[i].Pods...)
	}
	return pods
}

// higher compares values, the higher one first and an unknown one last.
func higher(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

func worse(a, b gpu.State) int {
	switch {
	case a.Worse(b):
		return -1
	case b.Worse(a):
		return 1
	}
	return 0
}

// named compares names, "-" last.
func named(a, b string) int {
	if (a == "-") != (b == "-") {
		if a == "-" {
			return 1
		}
		return -1
	}
	return strings.Compare(a, b)
}
