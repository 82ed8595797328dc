package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The geometries of the GPUs that support MIG, as nvidia-smi mig -lgip and -lgipp print them.

// upTo returns the starts from 0 to n-1.
func upTo(n int) []int {
	starts := make([]int, n)
	for i := range starts {
		starts[i] = i
	}
	return starts
}

// sevenSlices is the geometry of the data center GPUs, by the memory in the names of 1g, the 1g with double memory (the
// same as that of 2g), 3g (and 4g) and 7g.
func sevenSlices(one, two, four, eight int) gpu.MIGGeometry {
	return gpu.MIGGeometry{MemorySlices: 8, ComputeSlices: 7, Profiles: []gpu.MIGProfile{
		{Name: fmt.Sprintf("1g.%dgb", one), Number: 0, ID: 19, ComputeSlices: 1, Size: 1, Starts: upTo(7), Max: 7},
		{Name: fmt.Sprintf("2g.%dgb", two), Number: 1, ID: 14, ComputeSlices: 2, Size: 2, Starts: []int{0, 2, 4}, Max: 3},
		{Name: fmt.Sprintf("3g.%dgb", four), Number: 2, ID: 9, ComputeSlices: 3, Size: 4, Starts: []int{0, 4}, Max: 2},
		{Name: fmt.Sprintf("4g.%dgb", four), Number: 3, ID: 5, ComputeSlices: 4, Size: 4, Starts: []int{0}, Max: 1},
		{Name: fmt.Sprintf("7g.%dgb", eight), Number: 4, ID: 0, ComputeSlices: 7, Size: 8, Starts: []int{0}, Max: 1},
		{Name: fmt.Sprintf("1g.%dgb+me", one), Number: 7, ID: 20, ComputeSlices: 1, Size: 1, Starts: upTo(7), Max: 1},
		{Name: fmt.Sprintf("1g.%dgb", two), Number: 9, ID: 15, ComputeSlices: 1, Size: 2, Starts: []int{0, 2, 4, 6}, Max: 4},
	}}
}

func a30() gpu.MIGGeometry {
	return gpu.MIGGeometry{MemorySlices: 4, ComputeSlices: 4, Profiles: []gpu.MIGProfile{
		{Name: "1g.6gb", Number: 0, ID: 14, ComputeSlices: 1, Size: 1, Starts: upTo(4), Max: 4},
		{Name: "2g.12gb", Number: 1, ID: 5, ComputeSlices: 2, Size: 2, Starts: []int{0, 2}, Max: 2},
		{Name: "4g.24gb", Number: 3, ID: 0, ComputeSlices: 4, Size: 4, Starts: []int{0}, Max: 1},
		{Name: "1g.6gb+me", Number: 7, ID: 21, ComputeSlices: 1, Size: 1, Starts: upTo(4), Max: 1},
		{Name: "2g.12gb+me", Number: 8, ID: 6, ComputeSlices: 2, Size: 2, Starts: []int{0, 2}, Max: 1},
	}}
}

func rtxPro6000() gpu.MIGGeometry {
	g := gpu.MIGGeometry{MemorySlices: 12, ComputeSlices: 4}
	add := func(name string, number int, id uint32, compute, limit int) {
		starts := map[int][]int{1: {0, 3, 6, 9}, 2: {0, 6}, 4: {0}}[compute]
		g.Profiles = append(g.Profiles, gpu.MIGProfile{
			Name: name, Number: number, ID: id, ComputeSlices: compute, Size: 3 * compute, Starts: starts, Max: limit,
		})
	}
	add("1g.24gb", 0, 14, 1, 4)
	add("2g.48gb", 1, 5, 2, 2)
	add("4g.96gb", 3, 0, 4, 1)
	add("1g.24gb+me", 7, 21, 1, 1)
	add("1g.24gb+gfx", 10, 47, 1, 4)
	add("2g.48gb+gfx", 11, 35, 2, 2)
	add("4g.96gb+gfx", 12, 32, 4, 1)
	add("1g.24gb-me", 13, 67, 1, 4)
	add("2g.48gb-me", 14, 66, 2, 2)
	add("1g.24gb+me.all", 15, 65, 1, 1)
	add("2g.48gb+me.all", 16, 64, 2, 1)
	return g
}

// gpuKind is a kind of GPU.
type gpuKind struct {
	name     string
	product  string
	deviceID uint32
	// reset is set if a change of the mode needs a reset.
	reset    bool
	geometry gpu.MIGGeometry
}

func gpuKinds() []gpuKind {
	return []gpuKind{
		{"a30", "NVIDIA A30", 0x20B710DE, true, a30()},
		{"a100-40", "NVIDIA A100-SXM4-40GB", 0x20B010DE, true, sevenSlices(5, 10, 20, 40)},
		{"a100-80", "NVIDIA A100-SXM4-80GB", 0x20B210DE, true, sevenSlices(10, 20, 40, 80)},
		{"h100", "NVIDIA H100 80GB HBM3", 0x233010DE, false, sevenSlices(10, 20, 40, 80)},
		{"h100-nvl", "NVIDIA H100 NVL", 0x232110DE, false, sevenSlices(12, 24, 47, 94)},
		{"h100-96", "NVIDIA GH200 96GB", 0x234210DE, false, sevenSlices(12, 24, 48, 96)},
		{"h200", "NVIDIA H200", 0x233510DE, false, sevenSlices(18, 35, 71, 141)},
		{"gh200-144", "NVIDIA GH200 144G", 0x234810DE, false, sevenSlices(18, 36, 72, 144)},
		{"b200", "NVIDIA B200", 0x290110DE, false, sevenSlices(23, 45, 90, 180)},
		{"gb200", "NVIDIA GB200", 0x294110DE, false, sevenSlices(24, 47, 95, 189)},
		{"b300", "NVIDIA B300", 0x318210DE, false, sevenSlices(34, 67, 135, 269)},
		{"gb300", "NVIDIA GB300", 0x31C210DE, false, sevenSlices(35, 70, 139, 278)},
		{"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell", 0x2BB510DE, false, rtxPro6000()},
	}
}

func kindOf(t testing.TB, name string) gpuKind {
	t.Helper()
	kinds := gpuKinds()
	i := slices.IndexFunc(kinds, func(k gpuKind) bool { return k.name == name })
	if i < 0 {
		t.Fatalf("no kind of GPU is called %s", name)
	}
	return kinds[i]
}

func (k gpuKind) gpu(index int) GPU {
	return GPU{
		UUID: gpu.UUID(fmt.Sprintf("GPU-%d", index)), Index: index, Product: k.product, DeviceID: k.deviceID,
		Capable: true, Enabled: true, ModeNeedsReset: k.reset, Geometry: k.geometry,
	}
}

// oddGeometry draws a GPU that does not exist, on which the number of slices can suffice although no placement is
// possible.
func oddGeometry(choose chooser) gpu.MIGGeometry {
	g := gpu.MIGGeometry{MemorySlices: 1 + choose(8), ComputeSlices: 1 + choose(8)}
	names := []string{"1g.1gb", "2g.2gb", "1g.1gb+me", "2g.2gb+me.all"}
	for i := range 1 + choose(len(names)) {
		p := gpu.MIGProfile{Name: names[i], Number: i, Size: 1 + choose(3), ComputeSlices: 1 + choose(2), Max: 1 + choose(4)}
		for start := 0; start+p.Size <= g.MemorySlices; start++ {
			if choose(3) > 0 {
				p.Starts = append(p.Starts, start)
			}
		}
		g.Profiles = append(g.Profiles, p)
	}
	return g
}

// checker is a GPU that accepts and refuses instances as a driver does, one call at a time.
type checker struct {
	geometry  gpu.MIGGeometry
	enabled   bool
	instances []Instance
	made      int
}

func checkerOf(g GPU) *checker {
	return &checker{geometry: g.Geometry, enabled: g.Enabled, instances: slices.Clone(g.Instances)}
}

func (c *checker) destroy(gi int) error {
	i := slices.IndexFunc(c.instances, func(one Instance) bool { return one.GI == gi })
	if i < 0 {
		return fmt.Errorf("destroy GPU instance %d: there is none", gi)
	}
	if holders := c.instances[i].Holders; len(holders) > 0 {
		return fmt.Errorf("destroy GPU instance %d: held by %v", gi, holders)
	}
	c.instances = slices.Delete(c.instances, i, i+1)
	return nil
}

func (c *checker) create(profile string, start int) error {
	p := c.geometry.Profile(profile)
	switch {
	case !c.enabled:
		return fmt.Errorf("create %s: MIG is off", profile)
	case p == nil:
		return fmt.Errorf("create %s: no such profile", profile)
	case !slices.Contains(p.Starts, start):
		return fmt.Errorf("create %s at %d: it may begin at %v", profile, start, p.Starts)
	}
	same, compute, engines := 1, p.ComputeSlices, 0
	for _, one := range c.instances {
		if start < one.Start+one.Size && one.Start < start+p.Size {
			return fmt.Errorf("create %s at %d: overlaps %s at %d", profile, start, one.Profile, one.Start)
		}
		if one.Profile == profile {
			same++
		}
		if other := c.geometry.Profile(one.Profile); other != nil {
			compute += other.ComputeSlices
		}
		if isMedia(one.Profile) {
			engines++
		}
	}
	for _, one := range c.instances {
		for _, pair := range [][2]string{{one.Profile, profile}, {profile, one.Profile}} {
			if strings.HasSuffix(pair[0], "+me.all") && !strings.HasSuffix(pair[1], "-me") {
				return fmt.Errorf("create %s at %d: %s has all media engines, and %s wants some", profile, start, pair[0], pair[1])
			}
		}
	}
	if same > p.Max || compute > c.geometry.ComputeSlices || isMedia(profile) && engines > 0 {
		return fmt.Errorf("create %s at %d: %d of them, %d compute slices, %d others with media engines", profile,
			start, same, compute, engines)
	}
	c.made++
	// As with a driver, the IDs of destroyed instances are reused; their UUIDs are not.
	gi := 1
	for slices.ContainsFunc(c.instances, func(one Instance) bool { return one.GI == gi }) {
		gi++
	}
	c.instances = append(c.instances, Instance{
		UUID: gpu.UUID(fmt.Sprintf("MIG-made-%d", c.made)), GI: gi, Profile: profile, Start: start, Size: p.Size,
	})
	return nil
}

func isMedia(profile string) bool {
	return strings.HasSuffix(profile, "+me") || strings.HasSuffix(profile, "+me.all")
}

// carryOut executes a plan in its order.
func (c *checker) carryOut(plan GPUPlan) error {
	for _, one := range plan.Destroy {
		if err := c.destroy(one.GI); err != nil {
			return err
		}
	}
	if plan.SetMode != nil {
		if len(c.instances) > 0 {
			return fmt.Errorf("turn MIG %v: %d instances are there", *plan.SetMode, len(c.instances))
		}
		c.enabled = *plan.SetMode
	}
	for _, one := range plan.Create {
		if err := c.create(one.Profile, one.Start); err != nil {
			return err
		}
	}
	slices.SortFunc(c.instances, func(a, b Instance) int { return cmp.Compare(a.Start, b.Start) })
	return nil
}

// devices counts the complete instances by profile.
func (c *checker) devices() map[string]int {
	counts := map[string]int{}
	for _, one := range c.instances {
		if one.UUID != "" {
			counts[one.Profile]++
		}
	}
	return counts
}
