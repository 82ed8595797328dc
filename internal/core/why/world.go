package why

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// pods is the resource of which each pod takes one.
const pods = "pods"

// world is the state that questions are asked of. Changes make copies of what they change.
type world struct {
	requests []fleet.Shape
	others   map[string]int64
	names    []string // of others, sorted
	nodes    []Node   // sorted by name
	holders  map[string][]Holder
	gone     []string
	claims   Claims
	relaxed  []string
	// most is the largest number of devices that one container requests.
	most int64
}

func newWorld(in *Input) *world {
	w := &world{requests: slices.Clone(in.Pod.Requests), others: in.Pod.Others, claims: in.Claims, most: in.Pod.Most, holders: map[string][]Holder{}, nodes: slices.Clone(in.Nodes)}
	w.names = slices.Sorted(maps.Keys(in.Pod.Others))
	slices.SortFunc(w.nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range in.Holders {
		h := &in.Holders[i]
		w.holders[h.Node] = append(w.holders[h.Node], *h)
	}
	for _, list := range w.holders {
		slices.SortFunc(list, compareHolders)
	}
	return w
}

// compareHolders orders holders by whose end costs least: those that end anyway, low priority, the oldest.
func compareHolders(a, b Holder) int {
	switch {
	case a.Ending != b.Ending && a.Ending:
		return -1
	case a.Ending != b.Ending:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Since, b.Since), cmp.Compare(a.Name, b.Name))
}

// Obstacle is something in the way on a node.
type Obstacle struct {
	Code Code
	// Key tells obstacles of one code apart: a taint, a label, a resource.
	Key  string
	Text string
	// Want is what the pod requests, Have what the node has free, All what it has in all: devices, thousandths of a core, MiB, or units.
	Want int64
	Have int64
	All  int64
	// Draining and Gone are GPUs of the node that cannot be used.
	Draining int
	Gone     int
}

// fits tells whether the pod fits on a node.
func (w *world) fits(n *Node) bool {
	if len(n.Blocks) > 0 || !w.fitsOthers(n) || !w.fitsDevices(n) {
		return false
	}
	return w.claims == nil || len(w.claims.Lacks(n.Name, w.gone, w.relaxed)) == 0
}

func (w *world) fitsOthers(n *Node) bool {
	for _, name := range w.names {
		if w.others[name] > n.Others[name].Free {
			return false
		}
	}
	return true
}

func (w *world) fitsDevices(n *Node) bool {
	if w.most > 1 && w.refused(n) {
		return false
	}
	if len(w.requests) == 1 {
		return fleet.Fit(&n.Node, w.requests[0]).Lack == fleet.None
	}
	_, ok := w.firstUnserved(n)
	return ok
}

// refused tells whether the node refuses requests for several devices, and a container of the pod has one.
func (w *world) refused(n *Node) bool {
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Single && w.requestsOf(g.Resource) {
			return true
		}
	}
	return false
}

// firstUnserved places the requests on a copy of a node one after another, and returns the first that does not fit. Nothing is
// returned of one that lacks CPU or memory alone.
func (w *world) firstUnserved(n *Node) (fleet.Shape, bool) {
	scratch := n.Node
	scratch.GPUs = slices.Clone(n.GPUs)
	for _, s := range w.requests {
		if fleet.Fit(&scratch, s).Lack != fleet.None {
			return s, false
		}
		scratch.FreeCPU -= s.CPU
		scratch.FreeMemory -= s.Memory
		take(&scratch, &s)
	}
	return fleet.Shape{}, true
}

// take takes the devices of a request that fits.
func take(n *fleet.Node, s *fleet.Shape) {
	for _, piece := range n.Pieces(*s) {
		for i := range fleet.Choose(n, &piece).GPUs.All() {
			g := &n.GPUs[i]
			g.Free -= g.Unit
			if g.Unit == 0 {
				g.Free -= s.Share
			}
			if s.Traffic != 0 {
				n.AddTraffic(i, s.Traffic)
			}
		}
	}
}

// obstacles returns all that is in the way on a node, the worst first.
func (w *world) obstacles(n *Node) []Obstacle {
	var list []Obstacle
	for _, block := range n.Blocks {
		list = append(list, Obstacle{Code: block.Code, Key: block.Key, Text: block.Text})
	}
	list = append(list, w.deviceObstacles(n)...)
	list = w.plainObstacles(list, n)
	if w.claims != nil {
		for _, block := range w.claims.Lacks(n.Name, w.gone, w.relaxed) {
			list = append(list, Obstacle{Code: block.Code, Key: block.Key, Text: block.Text})
		}
	}
	slices.SortStableFunc(list, func(a, b Obstacle) int {
		rankA, atA := place(a.Code)
		rankB, atB := place(b.Code)
		return cmp.Or(-cmp.Compare(rankA, rankB), cmp.Compare(atA, atB), cmp.Compare(a.Key, b.Key))
	})
	return list
}

// plainObstacles appends what lacks of CPU, memory and other resources.
func (w *world) plainObstacles(list []Obstacle, n *Node) []Obstacle {
	cpu, memory := w.plain()
	add := func(inUse, little Code, key string, want, have, all int64) {
		switch {
		case want > all:
			list = append(list, Obstacle{Code: little, Key: key, Want: want, Have: have, All: all})
		case want > have:
			list = append(list, Obstacle{Code: inUse, Key: key, Want: want, Have: have, All: all})
		}
	}
	add(CPUInUse, LittleCPU, "cpu", cpu, n.FreeCPU, n.CPU)
	add(MemoryInUse, LittleRAM, "memory", memory, n.FreeMemory, n.Memory)
	for _, name := range w.names {
		other, inUse, little := n.Others[name], OtherInUse, LittleOther
		switch {
		case name == pods:
			inUse, little = PodLimit, PodLimit
		case other.All == 0:
			little = NoOther
		}
		add(inUse, little, name, w.others[name], other.Free, other.All)
	}
	return list
}

// plain returns what the pod requests of CPU and memory.
func (w *world) plain() (cpu, memory int64) {
	for i := range w.requests {
		cpu += w.requests[i].CPU
		memory += w.requests[i].Memory
	}
	return cpu, memory
}

// demand is what a pod requests of a resource in all, and at once of different GPUs.
type demand struct {
	resource string
	want     int64
	once     int64
	shape    fleet.Shape
}

// demands returns what the pod requests of GPUs, by resource, in the order of its requests.
func (w *world) demands() []demand {
	var list []demand
	for _, s := range w.requests {
		if s.GPUs == 0 {
			continue
		}
		at := slices.IndexFunc(list, func(d demand) bool { return d.resource == s.Resource })
		if at < 0 {
			at = len(list)
			list = append(list, demand{resource: s.Resource, shape: s})
		}
		d := &list[at]
		d.want += int64(s.GPUs)
		d.once = max(d.once, int64(s.GPUs))
	}
	return list
}

// deviceObstacles says which devices lack, one obstacle for each resource.
func (w *world) deviceObstacles(n *Node) []Obstacle {
	var list []Obstacle
	ample := *n
	ample.CPU, ample.FreeCPU, ample.Memory, ample.FreeMemory = fleet.MaxAmount, fleet.MaxAmount, fleet.MaxAmount, fleet.MaxAmount
	unserved, all := w.firstUnserved(&ample)
	for _, d := range w.demands() {
		if o := w.lacking(n, &d); o.Code != "" {
			list = append(list, o)
		}
	}
	if !all && len(list) == 0 {
		list = append(list, together(n, unserved))
	}
	return list
}

// together is the obstacle of a request that fits alone by its numbers.
func together(n *Node, s fleet.Shape) Obstacle {
	reason := fleet.Fit(&n.Node, s)
	o := Obstacle{Code: InUse, Key: s.Resource, Want: int64(s.GPUs), Have: reason.Have}
	if reason.Lack == fleet.Contention || s.Traffic&fleet.Bandwidth != 0 {
		o.Code = Contended
	}
	return o
}

// stock counts the devices of a resource on a node: all, those of GPUs that can be allocated, and those that are free.
type stock struct {
	all      int64
	usable   int64
	free     int64
	draining int
	gone     int
	single   bool
	silent   int64
}

func (n *Node) stock(d *demand) (s stock) {
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Resource != d.resource {
			continue
		}
		all, free := devicesOf(g, d)
		s.all += all
		s.single = s.single || g.Single
		switch {
		case g.State == fleet.Draining:
			s.draining += int(all)
		case g.State == fleet.Gone:
			s.gone += int(all)
		default:
			s.usable += all
			s.free += free
		}
		if slices.Contains(n.Silent, i) {
			s.silent += all
		}
	}
	return s
}

// devicesOf returns how many devices of an entry a pod could have, and how many it could have now.
func devicesOf(g *fleet.GPU, d *demand) (all, free int64) {
	unit, size := g.Unit, g.Size
	if size == 0 {
		size = fleet.Whole
	}
	if unit == 0 {
		unit = d.shape.Share
	}
	if g.Unit == 0 {
		if g.Free >= unit {
			free = 1
		}
		return 1, free
	}
	return int64(size / unit), int64(g.Free / unit)
}

// lacking returns what a node lacks of a resource; the zero value when the numbers suffice.
func (w *world) lacking(n *Node, d *demand) Obstacle {
	s := n.stock(d)
	o := Obstacle{Key: d.resource, Want: d.want, Have: s.free, All: s.all, Draining: s.draining, Gone: s.gone}
	switch {
	case s.all == 0:
		o.Code = NoResource
	case !d.shape.Models.Allows(n.Model):
		o.Code, o.Text = WrongModel, n.Model
	case s.single && max(d.once, w.most) > 1:
		o.Code = Many
	case s.all < d.want:
		o.Code = FewGPUs
	case s.usable < d.want && s.silent > 0:
		o.Code, o.Have = AgentDown, s.usable
	case s.usable < d.want:
		o.Code, o.Have = Health, s.usable
	case s.free < d.want:
		o.Code = InUse
	default:
		return Obstacle{}
	}
	return o
}
