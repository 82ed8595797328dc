package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// spare is what no pod of a node has.
type spare struct {
	name   string
	rack   string
	gpus   int
	cpus   int
	usable bool
	pods   []*corev1.Pod
}

// spares returns what the nodes have left.
func (w *gangWorld) spares(t *testing.T, pods []*corev1.Pod) []*spare {
	return spares(w.nodes(t), pods)
}

// nodes returns the nodes. The caller does not hold the lock.
func (w *gangWorld) nodes(t *testing.T) *corev1.NodeList {
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func spares(list *corev1.NodeList, pods []*corev1.Pod) []*spare {
	byName := map[string]*spare{}
	for i := range list.Items {
		n := &list.Items[i]
		byName[n.Name] = &spare{name: n.Name, rack: n.Labels["topology.kubernetes.io/rack"], gpus: 4, cpus: 16, usable: !n.Spec.Unschedulable && len(n.Spec.Taints) == 0}
	}
	for _, pod := range pods {
		if n := byName[pod.Spec.NodeName]; n != nil {
			n.gpus -= gpusOf(pod)
			n.cpus--
			n.pods = append(n.pods, pod)
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *spare) int { return int(a.name[1]) - int(b.name[1]) })
}

func gpusOf(pod *corev1.Pod) int {
	amount := pod.Spec.Containers[0].Resources.Limits[gpuResource]
	return int(amount.Value())
}

// capacity is how many members of the gang a node can have besides.
func (g *randomGang) capacity(n *spare) int {
	if !n.usable {
		return 0
	}
	capacity := n.cpus
	if g.gpus > 0 {
		capacity = min(capacity, n.gpus/g.gpus)
	}
	if g.apart {
		capacity = min(capacity, 1)
		for _, pod := range n.pods {
			if pod.Labels["berth.dev/pod-group"] == g.name {
				return 0 // Those that are being deleted count too.
			}
		}
	}
	return max(0, capacity)
}

// fit is how many more members of the gang fit, beside those that are on nodes; false where the racks of these are not one.
func (g *randomGang) fit(nodes []*spare, bound []*corev1.Pod) (int, bool) {
	byRack := map[string]int{}
	for _, n := range nodes {
		byRack[n.rack] += g.capacity(n)
	}
	racks := map[string]bool{}
	for _, pod := range bound {
		for _, n := range nodes {
			if n.name == pod.Spec.NodeName {
				racks[n.rack] = true
			}
		}
	}
	most, sum := 0, 0
	for rack, capacity := range byRack {
		if g.segment > 0 {
			capacity = capacity / g.segment * g.segment
		}
		sum += capacity
		if len(racks) == 0 || racks[rack] {
			most = max(most, capacity)
		}
	}
	if g.required {
		return most, len(racks) <= 1
	}
	return sum, g.segment == 0 || len(bound) == 0
}

// check returns what is wrong, or is not yet as it has to be.
func (w *gangWorld) check(t *testing.T) string {
	pods := w.pods()
	list := w.nodes(t)
	nodes := spares(list, pods)
	for _, n := range nodes {
		if n.gpus < 0 || n.cpus < 0 {
			return fmt.Sprintf("never: node %s has %d GPUs and %d CPUs left", n.name, n.gpus, n.cpus)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.gangs)) {
		g := w.gangs[name]
		if text := g.check(pods, nodes); text != "" {
			return text
		}
		if g.priority == nil || len(g.bound(pods)) >= g.least-g.done {
			continue // It ends no pods for its surplus.
		}
		if text := g.check(pods, spares(list, g.outlast(pods))); text != "" {
			return text + " without the pods that it can end"
		}
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || w.gangs[pod.Labels["berth.dev/pod-group"]] != nil || pod.DeletionTimestamp != nil {
			continue
		}
		for _, n := range nodes {
			if n.usable && n.gpus >= gpusOf(pod) && n.cpus > 0 {
				return fmt.Sprintf("%s has no node, and fits on %s", pod.Name, n.name)
			}
		}
	}
	return ""
}

// outlast returns the pods that the gang cannot end.
func (g *randomGang) outlast(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return pod.Labels["berth.dev/pod-group"] != g.name && (pod.Spec.Priority == nil || *pod.Spec.Priority < *g.priority)
	})
}

func (g *randomGang) check(pods []*corev1.Pod, nodes []*spare) string {
	members, bound := g.members(pods), g.bound(pods)
	least := g.least - g.done
	if len(members) == 0 || g.forgotten {
		return ""
	}
	if len(bound) > 0 && len(bound) < least && !g.whole && !g.edited && (!g.restarted || len(members) >= least) {
		return fmt.Sprintf("gang %s has %d of at least %d members on nodes", g.name, len(bound), least)
	}
	missing := max(1, least-len(bound))
	if len(members) < least || len(members)-len(bound) < missing {
		return ""
	}
	if fit, known := g.fit(nodes, bound); known && fit >= missing {
		if g.segment > 0 && (missing%g.segment != 0) {
			return ""
		}
		return fmt.Sprintf("gang %s has %d of %d members on nodes, at least %d, and %d more fit", g.name, len(bound), len(members), least, fit)
	}
	return ""
}
