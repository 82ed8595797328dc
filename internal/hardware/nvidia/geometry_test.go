package nvidia_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// geometryA100 is the geometry of go-nvml's mock of an A100 40 GB. Its profiles have NVML's numbers for IDs.
func geometryA100() gpu.MIGGeometry {
	// has are multiprocessors, copy engines, decoders, JPEG decoders and optical flow engines.
	profile := func(name string, number, compute, size, most int, mib uint64, has [5]int, starts ...int) gpu.MIGProfile {
		return gpu.MIGProfile{
			Name: name, Number: number, ID: uint32(number), ComputeSlices: compute, Size: size, Starts: starts, Max: most, MemoryBytes: mib << 20,
			Attributes: gpu.MIGAttributes{Multiprocessors: has[0], CopyEngines: has[1], Decoders: has[2], JPEGs: has[3], OFAs: has[4]},
		}
	}
	return gpu.MIGGeometry{MemorySlices: 8, ComputeSlices: 7, Profiles: []gpu.MIGProfile{
		profile("1g.5gb", 0, 1, 1, 7, 4864, [5]int{14, 1, 0, 0, 0}, 0, 1, 2, 3, 4, 5, 6),
		profile("2g.10gb", 1, 2, 2, 3, 9856, [5]int{28, 2, 1, 0, 0}, 0, 2, 4),
		profile("3g.20gb", 2, 3, 4, 2, 19968, [5]int{42, 3, 2, 0, 0}, 0, 4),
		profile("4g.20gb", 3, 4, 4, 1, 19968, [5]int{56, 4, 2, 0, 0}, 0),
		profile("7g.40gb", 4, 7, 8, 1, 40192, [5]int{98, 7, 5, 1, 1}, 0),
		profile("1g.5gb+me", 7, 1, 1, 1, 4864, [5]int{14, 1, 1, 1, 1}, 0, 1, 2, 3, 4, 5, 6),
		profile("1g.10gb", 9, 1, 2, 4, 9856, [5]int{14, 1, 1, 0, 0}, 0, 2, 4, 6),
	}}
}

// kind is a profile as NVML reports it.
type kind struct {
	number int
	slices uint32
	count  uint32
	mib    uint64
	size   uint32
	starts []uint32
}

// partitionable gives a GPU those profiles.
func partitionable(c *fakeGPU, memoryMiB uint64, kinds ...kind) {
	c.Device.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: memoryMiB << 20}, nvml.SUCCESS }
	c.Device.GetGpuInstanceProfileInfoFunc = func(number int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
		for _, k := range kinds {
			if k.number == number {
				return nvml.GpuInstanceProfileInfo{Id: uint32(100 + number), SliceCount: k.slices, InstanceCount: k.count, MemorySizeMB: k.mib}, nvml.SUCCESS
			}
		}
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	c.Device.GetGpuInstancePossiblePlacementsFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
		for _, k := range kinds {
			if uint32(100+k.number) == info.Id {
				var placements []nvml.GpuInstancePlacement
				for _, start := range k.starts {
					placements = append(placements, nvml.GpuInstancePlacement{Start: start, Size: k.size})
				}
				return placements, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
}

// geometryText prints a geometry in one line.
func geometryText(g *gpu.MIGGeometry) string {
	parts := []string{fmt.Sprintf("%d/%d", g.MemorySlices, g.ComputeSlices)}
	for _, p := range g.Profiles {
		parts = append(parts, fmt.Sprintf("%s %dx%d%v", p.Name, p.Max, p.Size, p.Starts))
	}
	return strings.Join(parts, ", ")
}

// TestUnusualGeometries has GPUs that differ from the usual ones.
func TestUnusualGeometries(t *testing.T) {
	for name, test := range map[string]struct {
		deviceID uint32
		mib      uint64
		kinds    []kind
		want     string
	}{
		"A30, whose counts are wrong": {
			0x20b710de, 24576,
			[]kind{
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 2, 5952, 1, []uint32{3, 2, 1, 0}},
				{nvml.GPU_INSTANCE_PROFILE_2_SLICE, 2, 7, 11968, 2, []uint32{0, 2}},
				{nvml.GPU_INSTANCE_PROFILE_4_SLICE, 4, 0, 24000, 4, []uint32{0}},
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, 4, 5952, 1, []uint32{0, 1, 2, 3}},
				{nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1, 2, 2, 11968, 2, []uint32{0, 2}},
			},
			"4/4, 1g.6gb 4x1[0 1 2 3], 2g.12gb 2x2[0 2], 4g.24gb 1x4[0], 1g.6gb+me 1x1[0 1 2 3], 2g.12gb+me 1x2[0 2]",
		},
		"RTX PRO 6000, with twelve memory slices": {
			0x2bb510de, 97887,
			[]kind{
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 4, 24192, 3, []uint32{0, 3, 6, 9}},
				{nvml.GPU_INSTANCE_PROFILE_4_SLICE, 4, 1, 97280, 12, []uint32{0}},
				{nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX, 2, 2, 48512, 6, []uint32{0, 6}},
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 1, 4, 24192, 3, []uint32{0, 3, 6, 9}},
				{nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME, 2, 1, 48512, 6, []uint32{0, 6}},
			},
			"12/4, 1g.24gb 4x3[0 3 6 9], 4g.96gb 1x12[0], 2g.48gb+gfx 2x6[0 6], 1g.24gb-me 4x3[0 3 6 9], 2g.48gb+me.all 1x6[0 6]",
		},
		"no places for one profile": {
			0x233010de, 81559,
			[]kind{
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 7, 9984, 1, nil},
				{nvml.GPU_INSTANCE_PROFILE_7_SLICE, 7, 1, 81152, 8, []uint32{0}},
			},
			"8/7, 7g.80gb 1x8[0]",
		},
		"none": {0x233010de, 81559, nil, "0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.A100_SXM4_40GB)
			n.gpus[0].deviceID = test.deviceID
			partitionable(n.gpus[0], test.mib, test.kinds...)
			g := scan(t, n.adapter()).GPUs[0]
			if got := geometryText(&g.MIG.Geometry); got != test.want || len(g.Health.Causes) > 0 {
				t.Errorf("got  %s, causes %v\nwant %s", got, g.Health.Causes, test.want)
			}
		})
	}
}

// TestGeometryIsReadOnce counts the calls for the geometry over several scans.
func TestGeometryIsReadOnce(t *testing.T) {
	const profiles, placements = nvml.GPU_INSTANCE_PROFILE_COUNT, 7
	n := newNode(t, gpus.A100_SXM4_40GB)
	c := n.gpus[0]
	a := n.adapter()
	asked := func() (int, int) {
		calls := n.calls()
		return calls["GetGpuInstanceProfileInfo"], calls["GetGpuInstancePossiblePlacements"]
	}
	answers := c.Device.GetGpuInstancePossiblePlacementsFunc
	answer := func(ret nvml.Return) {
		c.Device.GetGpuInstancePossiblePlacementsFunc = func(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
			if ret != nvml.SUCCESS {
				return nil, ret
			}
			return answers(info)
		}
	}
	for _, step := range []struct {
		name  string
		do    func()
		reads int // the number of reads of the geometry
		want  bool
	}{
		{"busy for a moment", func() { answer(nvml.ERROR_UNKNOWN) }, 2, false},
		{"no right to ask", func() { answer(nvml.ERROR_NO_PERMISSION) }, 1, false},
		{"MIG on, and an answer", func() { answer(nvml.SUCCESS); c.MigMode = nvml.DEVICE_MIG_ENABLE }, 1, true},
		{"MIG off", func() { c.MigMode = nvml.DEVICE_MIG_DISABLE }, 0, true},
		{"the driver away and back", func() {
			n.initReturn, n.callReturn = nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_DRIVER_NOT_LOADED
			scan(t, a)
			n.initReturn, n.callReturn = nvml.SUCCESS, nvml.SUCCESS
		}, 0, true},
		{"another driver", func() {
			n.callReturn = nvml.ERROR_DRIVER_NOT_LOADED
			scan(t, a)
			n.callReturn, n.library.DriverVersion = nvml.SUCCESS, "590.1"
		}, 1, true},
	} {
		step.do()
		infos, places := asked()
		var got *gpu.Snapshot
		for range 2 {
			got = scan(t, a)
		}
		infosNow, placesNow := asked()
		if infosNow-infos != step.reads*profiles || placesNow-places != step.reads*placements {
			t.Errorf("%s: two scans asked %d profiles and %d placements; want the geometry asked %d times (%d, %d)",
				step.name, infosNow-infos, placesNow-places, step.reads, step.reads*profiles, step.reads*placements)
		}
		want := gpu.MIGGeometry{}
		if step.want {
			want = geometryA100()
		}
		if diff := cmp.Diff(want, got.GPUs[0].MIG.Geometry); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		busy := step.name == "busy for a moment"
		if causes := got.GPUs[0].Health.Causes; busy != got.GPUs[0].MIG.Unsure || busy != (len(causes) == 1 && causes[0].Code == "GPU_READ_FAILED") {
			t.Errorf("%s: MIG unsure %v, causes %v", step.name, got.GPUs[0].MIG.Unsure, causes)
		}
	}
}

// TestOldLibraryHasNoGeometry: a function that the library lacks is not called.
func TestOldLibraryHasNoGeometry(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	n.missing["nvmlDeviceGetGpuInstancePossiblePlacements"] = true
	n.gpus[0].Device.GetGpuInstancePossiblePlacementsFunc = nil
	a := n.adapter()
	for range 2 {
		if mig := scan(t, a).GPUs[0].MIG; !mig.Capable || len(mig.Geometry.Profiles) > 0 {
			t.Errorf("got %+v; want a capable GPU without geometry", mig)
		}
	}
}

// TestModeNeedsReset: the architecture decides.
func TestModeNeedsReset(t *testing.T) {
	for name, test := range map[string]struct {
		architecture nvml.DeviceArchitecture
		want         bool
	}{
		"Ampere":    {nvml.DEVICE_ARCH_AMPERE, true},
		"Hopper":    {nvml.DEVICE_ARCH_HOPPER, false},
		"Blackwell": {nvml.DEVICE_ARCH_BLACKWELL, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpus.A100_SXM4_40GB)
			n.gpus[0].Device.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { return test.architecture, nvml.SUCCESS }
			if got := scan(t, n.adapter()).GPUs[0].MIG.ModeNeedsReset; got != test.want {
				t.Errorf("ModeNeedsReset = %v, want %v", got, test.want)
			}
		})
	}
}

// TestEmptyInstances finds GPU instances without a compute instance through the driver's files, and calls NVML for those only.
func TestEmptyInstances(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	c := n.gpus[0]
	c.MigMode = nvml.DEVICE_MIG_ENABLE
	c.mig = []*fakeMIG{
		{uuid: "MIG-a", name: "A100 MIG 1g.5gb", gi: 7, placement: nvml.GpuInstancePlacement{Start: 6, Size: 1}},
		{uuid: "MIG-b", gi: 2, empty: true, profileID: nvml.GPU_INSTANCE_PROFILE_3_SLICE, placement: nvml.GpuInstancePlacement{Start: 4, Size: 4}},
	}
	made := c.Device.GetMigDeviceHandleByIndexFunc
	c.Device.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i > 0 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return made(i)
	}
	folder := filepath.Join(n.roots.Proc, "driver/nvidia/capabilities/gpu0/mig")
	for _, name := range []string{"gi7/access", "gi7/ci0/access", "gi2/access", "gi11/access", "config", "gix/access"} {
		write(t, filepath.Join(folder, name), "DeviceFileMinor: 1\n")
	}
	a := n.adapter()
	want := []gpu.GPUInstance{{GI: 2, Profile: "3g.20gb", Start: 4, Size: 4}} // 11 was destroyed
	if diff := cmp.Diff(want, scan(t, a).GPUs[0].MIG.Empty); diff != "" {
		t.Errorf("empty instances (-want +got):\n%s", diff)
	}
	write(t, filepath.Join(folder, "gi2/ci0/access"), "DeviceFileMinor: 1\n")
	write(t, filepath.Join(folder, "gi11/ci3/access"), "DeviceFileMinor: 1\n")
	before := n.calls()["GetGpuInstanceById"]
	if got := scan(t, a).GPUs[0].MIG.Empty; got != nil {
		t.Errorf("got %v; want none", got)
	}
	if made := n.calls()["GetGpuInstanceById"] - before; made != 1 {
		t.Errorf("%d calls for instances; want 1, for the device", made)
	}
}
