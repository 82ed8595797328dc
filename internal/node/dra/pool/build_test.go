package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// linked returns a node of GPUs on the PCI buses 1, 2, …; those of an island are fully linked, and 0 is none.
func linked(islands ...int) *gpu.Snapshot {
	s := &gpu.Snapshot{Topology: gpu.NewTopology(len(islands))}
	for i := range islands {
		s.GPUs = append(s.GPUs, gpu.GPU{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, PCI: gpu.PCIAddress{Bus: uint8(i + 1)}, NUMANode: gpu.NoNUMANode,
			MIG: gpu.MIG{Capable: true, Geometry: gpu.MIGGeometry{MemorySlices: 1, ComputeSlices: 1, Profiles: []gpu.MIGProfile{
				{Name: "1g.1gb", ComputeSlices: 1, Size: 1, Starts: []int{0}, Max: 1},
			}}},
		})
		for k := range i {
			if islands[k] == islands[i] && islands[i] != 0 {
				s.Topology.Set(i, k, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
			}
		}
	}
	return s
}

// TestOrder lists the whole GPUs in the order in which the allocator tries them.
func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		islands  []int
		dynamic  []int
		degraded []int
		want     string
	}{
		"one island":                         {islands: []int{1, 1, 1, 1}, want: "0 1 2 3"},
		"two islands":                        {islands: []int{1, 2, 1, 2}, want: "0 2 1 3"},
		"GPUs without links first":           {islands: []int{1, 1, 0, 0}, want: "2 3 0 1"},
		"dynamic GPUs last":                  {islands: []int{0, 0, 0}, dynamic: []int{0}, want: "1 2 0"},
		"dynamic GPUs last in their island":  {islands: []int{1, 1, 1}, dynamic: []int{0, 1}, want: "2 0 1"},
		"islands with a dynamic GPU last":    {islands: []int{1, 1, 2, 2}, dynamic: []int{1}, want: "2 3 0 1"},
		"an unlinked dynamic before islands": {islands: []int{1, 1, 0}, dynamic: []int{2}, want: "2 0 1"},
		"a degraded GPU last":                {islands: []int{1, 1, 1, 1}, degraded: []int{1}, want: "0 2 3 1"},
		"also one without links":             {islands: []int{0, 0, 1, 1}, degraded: []int{0}, want: "1 2 3 0"},
		"healthy islands before the others":  {islands: []int{1, 1, 2, 2, 3, 3}, degraded: []int{0, 3}, want: "4 5 1 2 0 3"},
		"healthy islands, also dynamic ones": {islands: []int{1, 1, 2, 2}, dynamic: []int{2}, degraded: []int{0}, want: "3 2 1 0"},
		"all degraded":                       {islands: []int{1, 1, 0}, degraded: []int{0, 1, 2}, want: "2 0 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := linked(test.islands...)
			for _, i := range test.degraded {
				s.GPUs[i].Health.State = gpu.Degraded
			}
			var got []string
			for _, device := range deviceNames(build(t, s, settings(s, test.dynamic...), nil)) {
				if id, ok := strings.CutPrefix(device, "gpu-"); ok && !strings.Contains(id, "-") {
					got = append(got, id)
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// islandNames returns the value of the attribute by GPU.
func islandNames(r Result) map[string]string {
	names := map[string]string{}
	for _, slice := range r.Slices {
		for i := range slice.Spec.Devices {
			names[slice.Spec.Devices[i].Name] = text(&slice.Spec.Devices[i], AttributeIsland)
		}
	}
	return names
}

// TestIslandNames follows the names of islands over the loss of GPUs and links.
func TestIslandNames(t *testing.T) {
	s := linked(1, 1, 1, 1, 1, 0)
	with := settings(s)
	first := build(t, s, with, nil)
	want := map[string]string{"gpu-0": "GPU-0", "gpu-1": "GPU-0", "gpu-2": "GPU-0", "gpu-3": "GPU-0", "gpu-4": "GPU-0", "gpu-5": ""}
	if diff := cmp.Diff(want, islandNames(first)); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	// The island is cut between 0, 1 and the others: the larger part keeps the name, and the other may not have it.
	cut := linked(1, 1, 2, 2, 2, 0)
	second := build(t, cut, with, first.Slices)
	want = map[string]string{"gpu-0": "GPU-1", "gpu-1": "GPU-1", "gpu-2": "GPU-0", "gpu-3": "GPU-0", "gpu-4": "GPU-0", "gpu-5": ""}
	if diff := cmp.Diff(want, islandNames(second)); diff != "" {
		t.Errorf("cut (-want +got):\n%s", diff)
	}
	// A GPU that does not respond keeps its island; so do all while no links are known.
	lose(cut, 2)
	if diff := cmp.Diff(want, islandNames(build(t, cut, with, second.Slices))); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	cut.Topology = nil
	if diff := cmp.Diff(want, islandNames(build(t, cut, with, second.Slices))); diff != "" {
		t.Errorf("without topology (-want +got):\n%s", diff)
	}
}

// TestRefusals has GPUs that cannot be published as the settings want it.
func TestRefusals(t *testing.T) {
	part := func(id, profile string, gi int) gpu.MIGDevice {
		return gpu.MIGDevice{Partition: gpu.Partition{UUID: gpu.UUID(id), Profile: profile}, GI: gi, Size: 1}
	}
	for name, test := range map[string]struct {
		change  func(g *gpu.GPU, with *Settings)
		want    string
		devices string
	}{
		"no UUID":           {change: func(g *gpu.GPU, _ *Settings) { g.UUID = "" }, want: "no UUID"},
		"an odd UUID":       {change: func(g *gpu.GPU, _ *Settings) { g.UUID = "GPU 0" }, want: "cannot be the name"},
		"the mode unknown":  {change: func(g *gpu.GPU, _ *Settings) { g.MIG.Unknown = true }, want: "did not report"},
		"no MIG":            {change: func(g *gpu.GPU, _ *Settings) { g.MIG = gpu.MIG{} }, want: "cannot be partitioned", devices: "gpu-0"},
		"no profiles":       {change: func(g *gpu.GPU, _ *Settings) { g.MIG.Geometry = gpu.MIGGeometry{} }, want: "lists no MIG profiles", devices: "gpu-0"},
		"counters dropped":  {change: func(_ *gpu.GPU, s *Settings) { s.WholeOnly = true }, want: "published whole; switch the feature gate DRAPartitionableDevices on", devices: "gpu-0"},
		"and MIG is on":     {change: func(g *gpu.GPU, s *Settings) { s.WholeOnly, g.MIG.Enabled, g.MIG.ModeNeedsReset = true, true, true }, want: "cannot be used whole while MIG is on"},
		"nothing refused":   {change: func(*gpu.GPU, *Settings) {}, devices: "gpu-0 gpu-0-1g1gb-0"},
		"MIG on, no reset":  {change: func(g *gpu.GPU, _ *Settings) { g.MIG.Enabled = true }, devices: "gpu-0 gpu-0-1g1gb-0"},
		"MIG off, a reset":  {change: func(g *gpu.GPU, _ *Settings) { g.MIG.ModeNeedsReset = true }, devices: "gpu-0"},
		"MIG on by a reset": {change: func(g *gpu.GPU, _ *Settings) { g.MIG.ModeNeedsReset, g.MIG.Enabled = true, true }, devices: "gpu-0-1g1gb-0"},
		"an empty layout": {change: func(g *gpu.GPU, s *Settings) {
			g.MIG.Enabled, s.GPUs[g.UUID] = true, Use{}
		}, want: "has no MIG devices"},
		"a layout": {change: func(g *gpu.GPU, s *Settings) {
			g.MIG.Enabled, s.GPUs[g.UUID] = true, Use{}
			g.MIG.Devices = []gpu.MIGDevice{part("MIG-a", "1g.1gb", 1)}
		}, devices: "gpu-0-1g1gb-0"},
		"shared instances": {change: func(g *gpu.GPU, s *Settings) {
			g.MIG.Enabled, s.GPUs[g.UUID] = true, Use{}
			g.MIG.Devices = []gpu.MIGDevice{part("MIG-a", "1c.2g.1gb", 1), part("MIG-b", "1c.2g.1gb", 1)}
		}, want: "shares its GPU instance"},
		"no profile": {change: func(g *gpu.GPU, s *Settings) {
			g.MIG.Enabled, s.GPUs[g.UUID] = true, Use{}
			g.MIG.Devices = []gpu.MIGDevice{part("MIG-a", "", 1)}
		}, want: "does not report the profile"},
	} {
		t.Run(name, func(t *testing.T) {
			s := linked(0)
			with := settings(s, 0)
			test.change(&s.GPUs[0], &with)
			if _, served := with.GPUs[s.GPUs[0].UUID]; !served {
				with.GPUs[s.GPUs[0].UUID] = Use{}
			}
			result := build(t, s, with, nil)
			refused := ""
			for _, one := range result.Refused {
				refused += one.Reason
			}
			if test.want == "" && refused != "" || !strings.Contains(refused, test.want) {
				t.Errorf("refused: %q, want %q", refused, test.want)
			}
			if got := strings.Join(deviceNames(result), " "); got != test.devices {
				t.Errorf("devices %q, want %q", got, test.devices)
			}
		})
	}
}

// TestOneUUID has two GPUs with one UUID: the second one is refused, and the first is published.
func TestOneUUID(t *testing.T) {
	s := linked(0, 0)
	s.GPUs[1].UUID = s.GPUs[0].UUID
	result := build(t, s, settings(s), nil)
	if len(result.Refused) != 1 || !slices.Equal(deviceNames(result), []string{"gpu-0"}) {
		t.Errorf("refused %v, published %v", result.Refused, deviceNames(result))
	}
}

// TestMIGDeviceHealth has a fault of one MIG device: its placement alone is tainted, and after its removal none is.
func TestMIGDeviceHealth(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	s.GPUs[0].MIG.Enabled = true
	s.GPUs[0].MIG.Devices = []gpu.MIGDevice{
		{Partition: gpu.Partition{UUID: "MIG-a", Profile: "1g.10gb", Health: gpu.Health{State: gpu.NeedsReset}}, GI: 9, Start: 6, Size: 1},
		{Partition: gpu.Partition{UUID: "MIG-b", Profile: "1g.10gb", Health: gpu.Health{State: gpu.Healthy}}, GI: 8, Start: 5, Size: 1},
	}
	tainted := func() (names []string) {
		result := build(t, s, settings(s, 0), nil)
		for _, slice := range result.Slices {
			for i := range slice.Spec.Devices {
				if d := &slice.Spec.Devices[i]; len(d.Taints) > 0 {
					names = append(names, d.Name)
					if text(d, AttributeHealth) != "Unhealthy" || result.Devices[d.Name].Placed != (mig.Placed{Profile: "1g.10gb", Start: 6, Size: 1}) {
						t.Errorf("%s: %+v", d.Name, d)
					}
				}
			}
		}
		return names
	}
	if got := tainted(); len(got) != 1 {
		t.Errorf("tainted: %v", got)
	}
	s.GPUs[0].MIG.Devices = nil
	if got := tainted(); len(got) != 0 {
		t.Errorf("tainted after the removal: %v", got)
	}
}

// TestDegradedMIGDevice: of a partitioned GPU the degraded MIG device is last, and the GPU is behind a healthy one.
func TestDegradedMIGDevice(t *testing.T) {
	s := nvidiatest.New(t, "h100x8").Scan()
	for i := range 2 {
		s.GPUs[i].MIG.Enabled = true
		s.GPUs[i].MIG.Devices = nil
		for start := range 3 {
			s.GPUs[i].MIG.Devices = append(s.GPUs[i].MIG.Devices, gpu.MIGDevice{GI: start + 1, Start: start, Size: 1, Partition: gpu.Partition{
				UUID: gpu.UUID(fmt.Sprintf("MIG-%d%d", i, start)), Profile: "1g.10gb", Health: gpu.Health{State: gpu.Healthy}}})
		}
	}
	s.GPUs[0].MIG.Devices[0].Health.State = gpu.Degraded
	result := build(t, s, settings(s), nil)
	var got []string
	for _, name := range deviceNames(result) {
		if device := result.Devices[name]; device.MIG != "" {
			got = append(got, string(device.MIG))
		}
	}
	if want := "MIG-10 MIG-11 MIG-12 MIG-01 MIG-02 MIG-00"; strings.Join(got, " ") != want {
		t.Errorf("the order is %v, want %s", got, want)
	}
}

// TestSettings uses names other than the default ones.
func TestSettings(t *testing.T) {
	s := linked(0)
	s.GPUs[0].Health.State = gpu.Unhealthy
	with := settings(s)
	with.Driver, with.Pool, with.Generation = "gpu.example.com", "pool/a", 7
	slice := build(t, s, with, nil).Slices[0]
	if slice.Name != "00000-gpu.example.com-node-1" || slice.Spec.Driver != "gpu.example.com" || *slice.Spec.NodeName != "node-1" ||
		slice.Spec.Pool.Name != "pool/a" || slice.Spec.Pool.Generation != 7 || slice.Spec.Devices[0].Taints[0].Key != "gpu.example.com/health" {
		t.Errorf("slice %+v", slice)
	}
	with.GPUs = nil
	if empty := build(t, s, with, nil); len(empty.Slices) != 1 || len(empty.Slices[0].Spec.Devices) != 0 {
		t.Errorf("a node without devices publishes %+v", empty)
	}
}

// TestVersions converts the versions of drivers to semantic ones.
func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"580.95.05": "580.95.5", "9.0": "9.0.0", "13": "13.0.0", "": "", "1.2.3.4": "", "595.10-rc1": "", "1.-2": "", "99999999999.0": "",
	} {
		a := attributes{}
		setVersion(a, "v", version)
		got := ""
		if value := a["v"].VersionValue; value != nil {
			got = *value
		}
		if got != want {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
	a := attributes{}
	setText(a, "t", strings.Repeat("x", 63)+"é")
	if got := *a["t"].StringValue; got != strings.Repeat("x", 63) {
		t.Errorf("a text that is too long is %q", got)
	}
}

// TestManyDevices has a GPU with more devices than a slice: they fill slices of their own.
func TestManyDevices(t *testing.T) {
	s := linked(0, 0)
	geometry := gpu.MIGGeometry{MemorySlices: 30, ComputeSlices: 30}
	for _, name := range []string{"1g.1gb", "1g.2gb", "1g.3gb"} {
		geometry.Profiles = append(geometry.Profiles, gpu.MIGProfile{Name: name, ComputeSlices: 1, Size: 1, Starts: upTo(30), Max: 30})
	}
	s.GPUs[0].MIG.Geometry = geometry
	with := settings(s, 0)
	before := build(t, s, with, nil)
	var got []int
	for _, slice := range before.Slices {
		got = append(got, len(slice.Spec.Devices))
	}
	if want := []int{1, 64, 27, 0}; !slices.Equal(got, want) { // GPU 1, which is not dynamic, is the first
		t.Errorf("the slices have %v devices, want %v", got, want)
	}
	s.GPUs[0].Health.State = gpu.Unhealthy
	after := build(t, s, with, before.Slices)
	if got := Compare(before.Slices, after.Slices); len(got.Create)+len(got.Delete) > 0 {
		t.Errorf("a taint changes the number of slices: %+v", got)
	}
}
