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
	byIndex map[indexOf]gpu.UUID
	byPool  map[string]gpu.UUID
	byMinor map[ownNode]gpu.UUID
	byNode  map[[2]int64]opened // nodes of MIG devices and further nodes of a GPU, by numbers
	byPath  map[string]gpu.UUID // GPUs' own nodes that have no fixed major number
	cdi     map[string][]CDIFact
	several bool // the facts are about GPUs of more than one vendor
}

// indexOf is an index, which counts the GPUs of one vendor.
type indexOf struct {
	vendor string
	index  string
}

// opened is what a device node opens. own is true for the node of a GPU that is not shared with another subsystem.
type opened struct {
	id  gpu.UUID
	own bool
}

// newCatalogue builds the catalogue. For an index or a minor it prefers the hardware's value over the GPUNode's, which
// may be older.
func newCatalogue(vendors Vendors, devices []DeviceFact, specs []CDIFact) *catalogue {
	c := &catalogue{
		vendors: vendors,
		facts:   map[gpu.UUID][]DeviceFact{}, byIndex: map[indexOf]gpu.UUID{}, byPool: map[string]gpu.UUID{}, byMinor: map[ownNode]gpu.UUID{},
		byNode: map[[2]int64]opened{}, byPath: map[string]gpu.UUID{}, cdi: map[string][]CDIFact{},
	}
	sorted := slices.Clone(devices)
	slices.SortStableFunc(sorted, func(a, b DeviceFact) int { return b.Source.Kind.rank() - a.Source.Kind.rank() })
	for _, fact := range sorted {
		c.facts[fact.UUID] = append(c.facts[fact.UUID], fact)
	}
	names := map[string]bool{}
	for _, fact := range sorted {
		vendor := c.vendor(fact.UUID)
		names[vendor] = true
		addOnce(c.byIndex, indexOf{vendor, fact.Index}, fact.UUID)
		if fact.PoolName != "" {
			addOnce(c.byPool, fact.PoolName, fact.UUID)
		}
		if fact.Parent == "" && fact.Minor >= 0 {
			addOnce(c.byMinor, ownNode{vendor, int64(fact.Minor)}, fact.UUID)
		}
		for _, node := range fact.Nodes {
			own := fact.Parent == "" && vendors.ownByPath(node)
			if own {
				addOnce(c.byPath, node.Path, fact.UUID)
			}
			if node.Major >= 0 {
				addOnce(c.byNode, [2]int64{node.Major, node.Minor}, opened{fact.UUID, own})
			}
		}
	}
	c.several = len(names) > 1
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
		var minors []ownNode
		for _, node := range spec.Nodes {
			if own, is := c.vendors.own(node); is {
				minors = append(minors, own)
			}
		}
		if c.vendors.isGPU(id) && len(minors) == 1 {
			addOnce(c.byMinor, minors[0], gpu.UUID(id))
		}
	}
}

func addOnce[K comparable, V any](m map[K]V, key K, value V) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}

// vendor returns the vendor of a device: as the sources name it, otherwise by its UUID; "" if it is unknown.
func (c *catalogue) vendor(id gpu.UUID) string {
	for _, fact := range c.facts[id] {
		if fact.Vendor != "" {
			return fact.Vendor
		}
	}
	return c.vendors.ofDevice(id)
}

// compare orders devices by the name of the vendor where there are several, those without one last, then by index, those
// without an index last, then by UUID.
func (c *catalogue) compare(a, b gpu.UUID) int {
	if c.several {
		x, y := c.vendor(a), c.vendor(b)
		if x != y && (x == "" || y == "") {
			return strings.Compare(y, x)
		}
		if x != y {
			return strings.Compare(x, y)
		}
	}
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

// isDevice reports whether an ID identifies a device by itself: a source lists it, or it begins like a UUID.
func (c *catalogue) isDevice(id string) bool {
	return len(c.facts[gpu.UUID(id)]) > 0 || c.vendors.isUUID(id)
}

// isGPU reports whether a resource consists of GPUs, by its domain or by the IDs of its devices.
func (c *catalogue) isGPU(resource string, ids []string) bool {
	return c.vendors.ofResource(resource) != "" || slices.ContainsFunc(ids, func(id string) bool {
		id, _, _ = strings.Cut(id, replicaMark)
		return c.isDevice(id)
	})
}

// resolve converts a kubelet device ID or an index to a device. The vendor is that of the index; "" if it is unknown. known is
// false when an index cannot be resolved because no inventory was read, or means GPUs of several vendors.
func (c *catalogue) resolve(vendor, id string) (devices []gpu.UUID, known bool) {
	id, _, _ = strings.Cut(id, replicaMark)
	if found, ok := c.byPool[id]; ok {
		return []gpu.UUID{found}, true
	}
	if c.isDevice(id) {
		return []gpu.UUID{gpu.UUID(id)}, true
	}
	if found, ok := c.byIndex[indexOf{vendor, id}]; ok {
		return []gpu.UUID{found}, true
	}
	var found []gpu.UUID
	for _, candidate := range c.uuids {
		of := c.vendor(candidate)
		if (vendor == "" || of == "") && c.byIndex[indexOf{of, id}] == candidate {
			found = append(found, candidate)
		}
	}
	return found, len(found) == 1
}

// resolveCDI converts a qualified CDI name to the device that it names.
func (c *catalogue) resolveCDI(name string) (devices []gpu.UUID, known bool) {
	return c.resolve(c.vendors.ofResource(name), cdiDevice(name))
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
	if id, ok = c.byPath[node.Path]; ok && node.Major < 0 {
		return id, true, true
	}
	if own, is := c.vendors.own(node); is {
		if id, ok = c.byMinor[own]; !ok {
			id, ok = c.byMinor[ownNode{minor: own.minor}]
		}
		return id, true, ok
	}
	if node.Major < 0 {
		return "", false, false
	}
	if found, is := c.byNode[[2]int64{node.Major, node.Minor}]; is {
		return found.id, found.own, true
	}
	return "", c.vendors.ownByPath(node), false
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
	any, vague := false, false
	partitioned := map[gpu.UUID]bool{}
	for _, node := range nodes {
		id, primary, ok := c.ofNode(node)
		switch {
		case primary && ok:
			gpus = append(gpus, id)
		case primary:
			gpus = append(gpus, gpu.UUID(fmt.Sprintf("%s of no known GPU", NodeText(node))))
			vague = vague || !c.lists(node)
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
	return nodeSet{devices: c.sorted(set), any: any, vague: vague}
}

// lists reports whether a source lists GPUs of the vendor whose device node it is.
func (c *catalogue) lists(node Node) bool {
	vendor := c.vendors.ofDevice(gpu.UUID(node.Path))
	if own, ok := c.vendors.own(node); ok {
		vendor = own.vendor
	}
	for own := range c.byMinor {
		if own.vendor == vendor || own.vendor == "" {
			return true
		}
	}
	return false
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
