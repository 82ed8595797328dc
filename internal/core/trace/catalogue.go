package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// catalogue resolves devices by every name that a source may use.
type catalogue struct {
	vendors Vendors
	facts   map[gpu.UUID][]DeviceFact
	uuids   []gpu.UUID // sorted
	byIndex map[string]gpu.UUID
	byMinor map[int64]gpu.UUID
	byNode  map[[2]int64]gpu.UUID // nodes of MIG devices and further nodes of a GPU, by numbers
	cdi     map[string][]CDIFact
}

// newCatalogue builds the catalogue. For an index or a minor it prefers the hardware's value over the GPUNode's, which
// may be older.
func newCatalogue(vendors Vendors, devices []DeviceFact, specs []CDIFact) *catalogue {
	c := &catalogue{
		vendors: vendors,
		facts:   map[gpu.UUID][]DeviceFact{}, byIndex: map[string]gpu.UUID{}, byMinor: map[int64]gpu.UUID{},
		byNode: map[[2]int64]gpu.UUID{}, cdi: map[string][]CDIFact{},
	}
	sorted := slices.Clone(devices)
	slices.SortStableFunc(sorted, func(a, b DeviceFact) int { return b.Source.Kind.rank() - a.Source.Kind.rank() })
	for _, fact := range sorted {
		c.facts[fact.UUID] = append(c.facts[fact.UUID], fact)
		addOnce(c.byIndex, fact.Index, fact.UUID)
		if fact.Parent == "" && fact.Minor >= 0 {
			addOnce(c.byMinor, int64(fact.Minor), fact.UUID)
		}
		for _, node := range fact.Nodes {
			if node.Major >= 0 {
				addOnce(c.byNode, [2]int64{node.Major, node.Minor}, fact.UUID)
			}
		}
	}
	c.addSpecs(specs)
	for id := range c.facts {
		c.uuids = append(c.uuids, id)
	}
	slices.SortFunc(c.uuids, c.compare)
	for _, spec := range specs {
		c.cdi[spec.Name] = append(c.cdi[spec.Name], spec)
	}
	return c
}

// addSpecs derives the GPU of a device node from the CDI specs if no inventory was read: from a name that is a GPU's
// UUID and has exactly one node that opens a GPU.
func (c *catalogue) addSpecs(specs []CDIFact) {
	if len(c.byMinor) > 0 {
		return
	}
	for _, spec := range specs {
		id := cdiDevice(spec.Name)
		var minors []int64
		for _, node := range spec.Nodes {
			if minor, is := c.vendors.minor(node); is {
				minors = append(minors, minor)
			}
		}
		if strings.HasPrefix(id, "GPU-") && len(minors) == 1 {
			addOnce(c.byMinor, minors[0], gpu.UUID(id))
		}
	}
}

func addOnce[K comparable](m map[K]gpu.UUID, key K, id gpu.UUID) {
	if _, ok := m[key]; !ok {
		m[key] = id
	}
}

// compare orders devices by index, those without an index last, then by UUID.
func (c *catalogue) compare(a, b gpu.UUID) int {
	return cmp.Or(compareIndex(c.index(a), c.index(b)), strings.Compare(string(a), string(b)))
}

func (c *catalogue) index(id gpu.UUID) string {
	for _, fact := range c.facts[id] {
		if fact.Index != "" {
			return fact.Index
		}
	}
	return ""
}

func compareIndex(a, b string) int {
	number := func(text string) (int, int) {
		device, mig, _ := strings.Cut(text, ":")
		n, err := strconv.Atoi(device)
		if err != nil {
			return 1 << 30, -1
		}
		m, err := strconv.Atoi(mig)
		if err != nil {
			m = -1
		}
		return n, m
	}
	an, am := number(a)
	bn, bm := number(b)
	return cmp.Or(an-bn, am-bm)
}

func (c *catalogue) parent(id gpu.UUID) gpu.UUID {
	for _, fact := range c.facts[id] {
		if fact.Parent != "" {
			return fact.Parent
		}
	}
	return ""
}

// isUUID reports whether an ID identifies a device by itself.
func isUUID(id string) bool { return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") }

// resolve converts a kubelet device ID, an index or "all" to devices. known is false when an index cannot be resolved
// because no inventory was read.
func (c *catalogue) resolve(id string) (devices []gpu.UUID, known bool) {
	id, _, _ = strings.Cut(id, replicaMark)
	if isUUID(id) {
		return []gpu.UUID{gpu.UUID(id)}, true
	}
	if found, ok := c.byIndex[id]; ok {
		return []gpu.UUID{found}, true
	}
	return nil, false
}

// cdiDevice returns the part of a qualified CDI name that names the device.
func cdiDevice(name string) string {
	if i := strings.LastIndexByte(name, '='); i >= 0 {
		return name[i+1:]
	}
	return name
}

// ofNode returns the device that a node opens. primary is true for /dev/nvidiaN, which the container of a MIG device
// has too.
func (c *catalogue) ofNode(node Node) (id gpu.UUID, primary, ok bool) {
	if minor, is := c.vendors.minor(node); is {
		id, ok = c.byMinor[minor]
		return id, true, ok
	}
	if node.Major < 0 {
		return "", false, false
	}
	id, ok = c.byNode[[2]int64{node.Major, node.Minor}]
	return id, false, ok
}

// nodeSet is what a list of device nodes shows.
type nodeSet struct {
	// devices are those that the nodes open; a node that the inventory does not have is represented by its path and
	// numbers.
	devices []gpu.UUID
	// any is true when at least one node opens a GPU.
	any bool
	// vague is true when no source can resolve a node.
	vague bool
}

// ofNodes returns the set of devices that nodes open. A GPU is not in the set if one of its MIG devices is: each MIG
// device comes with the node of its GPU.
func (c *catalogue) ofNodes(nodes []Node) nodeSet {
	var gpus, set []gpu.UUID
	any := false
	partitioned := map[gpu.UUID]bool{}
	for _, node := range nodes {
		id, primary, ok := c.ofNode(node)
		switch {
		case primary && ok:
			gpus = append(gpus, id)
		case primary:
			gpus = append(gpus, gpu.UUID(fmt.Sprintf("%s of no known GPU", NodeText(node))))
		case ok && c.parent(id) != "":
			set = append(set, id)
			partitioned[c.parent(id)] = true
		}
		any = any || primary
	}
	for _, device := range gpus {
		if !partitioned[device] {
			set = append(set, device)
		}
	}
	return nodeSet{devices: c.sorted(set), any: any, vague: any && len(c.byMinor) == 0}
}

func (c *catalogue) sorted(set []gpu.UUID) []gpu.UUID {
	set = slices.Clone(set)
	slices.SortFunc(set, c.compare)
	return slices.Compact(set)
}

// NodeText formats a node: path (major:minor), or the path alone.
func NodeText(node Node) string {
	if node.Major < 0 {
		return node.Path
	}
	return fmt.Sprintf("%s (%d:%d)", node.Path, node.Major, node.Minor)
}
