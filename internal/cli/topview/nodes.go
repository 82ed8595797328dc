package topview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// nodeFacts are the sums of a node's GPUs. What no GPU reports is absent.
type nodeFacts struct {
	name       string
	gpus       int
	held       int
	ill        int
	worst      string
	namespaces map[string]int
	busy       *float64
	temp       *float64
	watts      *float64
	limit      *float64
	processes  *float64
	use        v1alpha1.GPUSampleUse
	products   []string
	measured   int // GPUs whose utilization is known
}

// nodes returns a row for each node.
func (v *View) nodes(all []*v1alpha1.GPUSamples) *term.Layout {
	layout := &term.Layout{Columns: v.columns(3, term.Column{Head: "NODE", Least: leastName}, term.Column{Head: "GPUS", Right: true})}
	for _, n := range v.sortedNodes(all) {
		power := number(n.watts, "W")
		if n.watts != nil && n.limit != nil {
			power = fmt.Sprintf("%.0f/%.0f W", *n.watts, *n.limit)
		}
		f := &facts{
			health: n.health(), holders: n.holders(), processes: number(n.processes, ""), key: n.name, busy: n.busy, held: n.held > 0, memory: memoryUse(n.use),
			temp: number(n.temp, "C"), power: power, product: strings.Join(n.products, ", "),
		}
		layout.Rows = append(layout.Rows, v.row(f, n.name, fmt.Sprint(n.gpus)))
	}
	return layout
}

// health returns the worst health of the GPUs, with how many are not healthy.
func (n *nodeFacts) health() string {
	if n.ill == 0 {
		return string(gpu.Healthy)
	}
	return fmt.Sprintf("%s, %d of %d", n.worst, n.ill, n.gpus)
}

// holders returns how many GPUs are held, and by which namespaces, that with most first.
func (n *nodeFacts) holders() string {
	if n.held == 0 {
		return "-"
	}
	names := make([]string, 0, len(n.namespaces))
	for name := range n.namespaces {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(n.namespaces[b]-n.namespaces[a], strings.Compare(a, b)) })
	text := fmt.Sprintf("%d of %d", n.held, n.gpus)
	if len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}

// factsOf sums up a node.
func factsOf(node *v1alpha1.GPUSamples) *nodeFacts {
	n := &nodeFacts{name: node.Node, gpus: len(node.Items), namespaces: map[string]int{}}
	var busy float64
	for i := range node.Items {
		s := &node.Items[i]
		n.addHealth(s.Health)
		n.addHolders(s)
		if !slices.Contains(n.products, s.Product) {
			n.products = append(n.products, s.Product)
		}
		add(&n.use.MemoryBytes, s.MemoryBytes)
		add(&n.use.MemoryUsedBytes, usedOf(s))
		add(&n.watts, s.PowerWatts)
		add(&n.limit, s.PowerLimitWatts)
		for _, pod := range allPods(s) {
			if pod.Processes != nil {
				add(&n.processes, new(float64(*pod.Processes)))
			}
		}
		if one := busyShare(s); one != nil {
			busy += *one
			n.measured++
		}
		if s.TemperatureCelsius != nil && (n.temp == nil || *s.TemperatureCelsius > *n.temp) {
			n.temp = s.TemperatureCelsius
		}
	}
	if n.measured > 0 {
		n.busy = new(busy / float64(n.measured))
	}
	return n
}

func (n *nodeFacts) addHealth(text string) {
	state := stateOf(text)
	if !state.Worse(gpu.Healthy) {
		return
	}
	n.ill++
	if n.worst == "" || state.Worse(stateOf(n.worst)) {
		n.worst = text
	}
}

// addHolders counts a GPU as held when any part of it is, once for each namespace.
func (n *nodeFacts) addHolders(s *v1alpha1.GPUSample) {
	pods := allPods(s)
	if !holds(pods) {
		return
	}
	n.held++
	seen := map[string]bool{}
	for i := range pods {
		if name := pods[i].Namespace; pods[i].Held && name != "" && !seen[name] {
			seen[name] = true
			n.namespaces[name]++
		}
	}
}

// usedOf returns the memory that is used of a GPU, or of its MIG devices where the GPU does not report it.
func usedOf(s *v1alpha1.GPUSample) *float64 {
	if s.MemoryUsedBytes != nil {
		return s.MemoryUsedBytes
	}
	var used *float64
	for i := range s.Devices {
		add(&used, s.Devices[i].MemoryUsedBytes)
	}
	return used
}

// add adds a value that may be unknown.
func add(sum **float64, value *float64) {
	if value == nil {
		return
	}
	if *sum == nil {
		*sum = new(float64)
	}
	**sum += *value
}
