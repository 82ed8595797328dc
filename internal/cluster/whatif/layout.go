package whatif

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// Layout is another MIG layout for some GPUs: a number of MIG devices on each of them, or a layout that follows from the hardware, such as
// all-1g.10gb, all-balanced or all-disabled.
type Layout struct {
	// Text is what the user gave.
	Text string
	// Devices are numbers of devices by resource or profile; nil where Name is set.
	Devices map[string]int
	Name    string
	// Target is a node or a model; empty for all GPUs that have MIG.
	Target string
}

// maxDevices bounds the devices of a layout.
const maxDevices = 64

// ParseLayout reads RESOURCE=COUNT,...@TARGET, PROFILE=COUNT,...@TARGET or LAYOUT@TARGET; without @TARGET it is about all GPUs that have
// MIG.
func ParseLayout(text string) (Layout, error) {
	l := Layout{Text: text}
	spec := text
	if at := strings.LastIndex(text, "@"); at >= 0 {
		spec, l.Target = text[:at], text[at+1:]
		if l.Target == "" {
			return l, fmt.Errorf("%q; want a node or a GPU model after @, or no @ for all GPUs that have MIG", text)
		}
	}
	if spec == "" {
		return l, fmt.Errorf("%q; want RESOURCE=COUNT,...@NODE, as in nvidia.com/mig-1g.10gb=7@gpu-node-1, or the name of a layout", text)
	}
	if !strings.Contains(spec, "=") {
		l.Name = spec
		return l, nil
	}
	l.Devices = map[string]int{}
	for part := range strings.SplitSeq(spec, ",") {
		name, number, _ := strings.Cut(part, "=")
		count, err := strconv.Atoi(number)
		if _, double := l.Devices[name]; double || name == "" || err != nil || count < 0 || count > maxDevices {
			return l, fmt.Errorf("%q in %q; want each resource or profile once with 0 to %d devices, as in 1g.10gb=7", part, text, maxDevices)
		}
		l.Devices[name] = count
	}
	return l, nil
}

// modelName is a model as labels have it: without spaces.
func modelName(product string) string { return strings.ReplaceAll(product, " ", "-") }

// layout gives another layout to the GPUs that it is for.
func (c *changer) layout(l *Layout) error {
	planned := map[string][]mig.Placed{}
	found := 0
	positions := map[string]int{}
	for i := range c.objects.Nodes {
		positions[c.objects.Nodes[i].Name] = i
	}
	for i := range c.objects.GPUNodes {
		node := &c.objects.GPUNodes[i]
		at, known := positions[node.Name]
		if !known {
			continue
		}
		made := withHolders(node, func(*v1alpha1.Holder) bool { return true })
		changed := 0
		for k := range made.Status.Devices {
			d := &made.Status.Devices[k]
			if !l.selects(&c.objects.Nodes[at], node, d) {
				continue
			}
			found++
			if c.stays(d) {
				c.held++
				continue
			}
			if err := c.partition(l, d, planned); err != nil {
				return fmt.Errorf("%s on the node %s: %w", l.Text, node.Name, err)
			}
			changed++
		}
		if changed == 0 {
			continue
		}
		if alive(&c.objects.Nodes[at], node) {
			offer(&c.objects.Nodes[at], node, made)
		}
		*node = *made
	}
	if found == 0 {
		return fmt.Errorf("%s: %s", l.Text, c.noTarget(l))
	}
	return nil
}

// selects tells whether a layout is for a GPU.
func (l *Layout) selects(node *corev1.Node, of *v1alpha1.GPUNode, d *v1alpha1.GPUDevice) bool {
	if d.Excluded {
		return false
	}
	switch {
	case l.Target == "":
		return capable(d)
	case node.Name == l.Target:
		// On a node that has GPUs with MIG and others, it is for those with MIG.
		return capable(d) || !slices.ContainsFunc(of.Status.Devices, func(other v1alpha1.GPUDevice) bool { return capable(&other) })
	}
	same := func(model string) bool { return strings.EqualFold(modelName(model), modelName(l.Target)) }
	return same(d.Product) || same(node.Labels[fleetview.ProductLabel])
}

// capable tells whether a GPU has MIG.
func capable(d *v1alpha1.GPUDevice) bool { return len(d.MIGProfiles) > 0 || d.MIGEnabled }

// noTarget says that a layout is for no GPU.
func (c *changer) noTarget(l *Layout) string {
	var models []string
	for i := range c.objects.GPUNodes {
		for _, d := range c.objects.GPUNodes[i].Status.Devices {
			if len(d.MIGProfiles) > 0 {
				models = append(models, modelName(d.Product))
			}
		}
	}
	slices.Sort(models)
	models = slices.Compact(models)
	if len(models) == 0 {
		return "no GPUNode lists a GPU with MIG profiles"
	}
	return fmt.Sprintf("no GPUNode is named %q, and no GPU is of that model; the models with MIG are %s", l.Target, strings.Join(models, ", "))
}

// stays tells whether a GPU has a holder that stays.
func (c *changer) stays(d *v1alpha1.GPUDevice) bool {
	stays := func(h v1alpha1.Holder) bool { return gpu.HolderKind(h.Kind) != gpu.HolderPod || c.staying[h.PodUID] }
	return slices.ContainsFunc(d.Holders, stays) ||
		slices.ContainsFunc(d.MIGDevices, func(m v1alpha1.MIGDevice) bool { return slices.ContainsFunc(m.Holders, stays) })
}

// partition gives a GPU another layout. Layouts are planned once for equal GPUs.
func (c *changer) partition(l *Layout, d *v1alpha1.GPUDevice, planned map[string][]mig.Placed) error {
	if o := offerOf(d); o != nil && o.API == string(v1alpha1.AllocationDRA) {
		return fmt.Errorf("GPU %d is allocated through ResourceClaims; a what-if is about resources that pods request", d.Index)
	}
	key := fmt.Sprint(d.Product, d.MIGProfiles)
	placed, known := planned[key]
	if !known {
		g := mig.GPU{
			Index: d.Index, Product: d.Product, Capable: capable(d), Enabled: true, Geometry: fleetview.Geometry(d.MIGProfiles),
		}
		wanted, err := c.wanted(l, &g, d)
		if err != nil {
			return err
		}
		plan := mig.PlanGPU(g, wanted)
		if plan.Refused != "" {
			return fmt.Errorf("GPU %d: %s", d.Index, plan.Refused)
		}
		placed = plan.Create
		if !wanted.Enabled {
			placed = nil
		} else if placed == nil {
			placed = []mig.Placed{}
		}
		planned[key] = placed
	}
	c.set(d, placed)
	return nil
}

// set replaces the MIG devices of a GPU; nil turns MIG off.
func (c *changer) set(d *v1alpha1.GPUDevice, placed []mig.Placed) {
	d.Holders, d.MIGDevices, d.MIGEnabled, d.Offered = nil, nil, placed != nil, nil
	if placed == nil {
		d.Offered = c.offers.whole(d.Product)
		return
	}
	for i, p := range placed {
		d.MIGDevices = append(d.MIGDevices, v1alpha1.MIGDevice{
			UUID: fmt.Sprintf("%s/%s@%d", d.UUID, p.Profile, p.Start), Profile: p.Profile, Index: i, GI: i, Start: p.Start, Size: p.Size,
			Offered: c.offers.mig(p.Profile),
		})
	}
}

// wanted returns the state that a layout wants of a GPU.
func (c *changer) wanted(l *Layout, g *mig.GPU, d *v1alpha1.GPUDevice) (mig.Wanted, error) {
	if l.Name != "" {
		layout, err := mig.FindLayout(mig.HardwareLayouts([]mig.GPU{*g}), l.Name)
		if err != nil {
			return mig.Wanted{}, err
		}
		wanted, ok := layout.Wanted(*g)
		if !ok {
			return wanted, fmt.Errorf("the layout %s is not for GPU %d, %s", l.Name, d.Index, d.Product)
		}
		return wanted, nil
	}
	wanted := mig.Wanted{Enabled: true, Devices: map[string]int{}}
	for _, name := range slices.Sorted(maps.Keys(l.Devices)) {
		profile := name
		if strings.Contains(name, "/") {
			at := slices.IndexFunc(d.MIGProfiles, func(p v1alpha1.MIGProfile) bool { return c.offers.mig(p.Name).Resource == name })
			if at < 0 {
				return wanted, fmt.Errorf("GPU %d, %s, has no MIG profile that is offered as %s", d.Index, d.Product, name)
			}
			profile = d.MIGProfiles[at].Name
		}
		wanted.Devices[profile] += l.Devices[name]
	}
	return wanted, nil
}

// offerOf returns how the devices of a GPU are offered.
func offerOf(d *v1alpha1.GPUDevice) *v1alpha1.DeviceOffer {
	for i := range d.MIGDevices {
		if d.MIGDevices[i].Offered != nil {
			return d.MIGDevices[i].Offered
		}
	}
	return d.Offered
}

// offers are how a cluster offers its devices.
type offers struct {
	// profiles are those of MIG devices, by profile, products those of whole GPUs, by model; any is the first of these.
	profiles map[string]v1alpha1.DeviceOffer
	products map[string]v1alpha1.DeviceOffer
	any      string
}

func offersOf(nodes []v1alpha1.GPUNode) offers {
	o := offers{profiles: map[string]v1alpha1.DeviceOffer{}, products: map[string]v1alpha1.DeviceOffer{}}
	add := func(to map[string]v1alpha1.DeviceOffer, key string, of *v1alpha1.DeviceOffer) {
		if of == nil || of.Resource == "" || of.API == string(v1alpha1.AllocationDRA) {
			return
		}
		made := v1alpha1.DeviceOffer{Resource: of.Resource, Replicas: of.Replicas, RefusesMany: of.RefusesMany}
		// Where nodes differ, the choice must not depend on the order of the list.
		if known, has := to[key]; !has || cmp.Or(cmp.Compare(made.Resource, known.Resource), cmp.Compare(made.Replicas, known.Replicas)) < 0 {
			to[key] = made
		}
	}
	for i := range nodes {
		for k := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[k]
			if len(d.MIGDevices) == 0 {
				add(o.products, d.Product, d.Offered)
			}
			for _, m := range d.MIGDevices {
				add(o.profiles, m.Profile, m.Offered)
			}
		}
	}
	for _, offer := range o.products {
		if o.any == "" || offer.Resource < o.any {
			o.any = offer.Resource
		}
	}
	return o
}

// mig returns how the cluster offers MIG devices of a profile; where it has none, as the agent does by default: a plus before an attribute
// is a dot in the name.
func (o *offers) mig(profile string) *v1alpha1.DeviceOffer {
	if known, has := o.profiles[profile]; has {
		return &known
	}
	return &v1alpha1.DeviceOffer{Resource: "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")}
}

// whole returns how the cluster offers whole GPUs: those of the model, or else of any.
func (o *offers) whole(product string) *v1alpha1.DeviceOffer {
	if known, has := o.products[product]; has {
		return &known
	}
	return &v1alpha1.DeviceOffer{Resource: cmp.Or(o.any, "nvidia.com/gpu")}
}
