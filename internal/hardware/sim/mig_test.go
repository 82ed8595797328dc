package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// profileInfo returns the GPU instance profile with that name.
func profileInfo(t testing.TB, m *Machine, d nvml.Device, slot int, name string) *nvml.GpuInstanceProfileInfo {
	t.Helper()
	for _, p := range m.hw.GPUs[slot].Geometry.Profiles {
		if p.Name == name {
			info, ret := d.GetGpuInstanceProfileInfo(p.Enum)
			if ret != nvml.SUCCESS {
				t.Fatal(ret)
			}
			return &info
		}
	}
	t.Fatalf("no profile %s", name)
	return nil
}

// enableMIG turns MIG on and resets the GPU where that is needed.
func enableMIG(t testing.TB, d nvml.Device) {
	t.Helper()
	activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if activation == nvml.ERROR_RESET_REQUIRED {
		own := d.(*device)
		if err := own.lib.machine.ResetGPUs(fmt.Sprint(own.slot)); err != nil {
			t.Fatal(err)
		}
	}
}

// firstMIG turns MIG on and creates the smallest MIG device.
func firstMIG(t testing.TB, d nvml.Device) (nvml.Device, nvml.GpuInstance, nvml.ComputeInstance) {
	t.Helper()
	enableMIG(t, d)
	info, _ := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	gi, ret := d.CreateGpuInstance(&info)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	ciInfo, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	ci, ret := gi.CreateComputeInstance(&ciInfo)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	mig, ret := d.GetMigDeviceHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return mig, gi, ci
}

func TestMIGDevice(t *testing.T) {
	m := newMachine(t, "a100x8-40g")
	lib := open(t, m)
	d := gpu(t, lib, 1)
	mig, gi, ci := firstMIG(t, d)
	uuid, _ := mig.GetUUID()
	name, _ := mig.GetName()
	memory, _ := mig.GetMemoryInfo()
	parent, _ := mig.GetDeviceHandleFromMigDeviceHandle()
	giInfo, _ := gi.GetInfo()
	got := fmt.Sprintf("%s, %d MiB, GI %d at %d:%d, parent %v", name, memory.Total>>20, giInfo.Id,
		giInfo.Placement.Start, giInfo.Placement.Size, parent == d)
	if want := "NVIDIA A100-SXM4-40GB MIG 1g.5gb, 4864 MiB, GI 13 at 6:1, parent true"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if found, ret := lib.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS {
		t.Errorf("by MIG UUID: %v", ret)
	} else if again, _ := found.GetUUID(); again != uuid {
		t.Errorf("by MIG UUID: found %s", again)
	}
	// The driver numbers the instance's capability 3 + (GPU*15 + GI)*9.
	content, err := os.ReadFile(filepath.Join(m.Root(), "proc/driver/nvidia/capabilities/gpu1/mig/gi13/access"))
	if err != nil || !strings.HasPrefix(string(content), fmt.Sprintf("DeviceFileMinor: %d\n", 3+(15+13)*9)) {
		t.Errorf("access file: %q, %v", content, err)
	}
	if ret := gi.Destroy(); ret != nvml.ERROR_IN_USE {
		t.Errorf("destroy with a compute instance: %v", ret)
	}
	if ret, _ := d.SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.ERROR_IN_USE {
		t.Errorf("MIG off with instances: %v", ret)
	}
	if ret := ci.Destroy(); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if _, ret := mig.GetUUID(); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("UUID of a destroyed device: %v", ret)
	}
	if shown, err := m.Show(); err != nil || shown.GPUs[1].EmptyInstances != 1 || len(shown.GPUs[1].MIGDevices) != 0 {
		t.Errorf("with an instance that has no compute instance: %+v, %v", shown.GPUs[1], err)
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if _, err := os.Stat(filepath.Join(m.Root(), "proc/driver/nvidia/capabilities/gpu1")); !os.IsNotExist(err) {
		t.Errorf("capabilities are still there: %v", err)
	}
}

// TestMIGLayouts fills GPUs with the layouts of NVIDIA's guide.
func TestMIGLayouts(t *testing.T) {
	tests := map[string]struct {
		machine string
		create  []string
		want    string // GPU instance IDs with placements, then what no longer fits
	}{
		"mixed":        {"a100x8-40g", []string{"1g.5gb", "2g.10gb", "4g.20gb"}, "1@0:4 5@4:2 13@6:1"},
		"two threes":   {"h100x8", []string{"3g.40gb", "3g.40gb"}, "1@0:4 2@4:4"},
		"seven ones":   {"a100x8-80g", slices.Repeat([]string{"1g.10gb"}, 7), "7@0:1 8@1:1 9@2:1 10@3:1 11@4:1 12@5:1 13@6:1"},
		"whole":        {"b200x8", []string{"7g.180gb"}, "0@0:8"},
		"twelfths":     {"rtxpro6000x8", []string{"2g.48gb", "1g.24gb", "1g.24gb+gfx"}, "2@6:6 3@0:3 4@3:3"},
		"all engines":  {"rtxpro6000x8", []string{"1g.24gb+me.all", "2g.48gb-me", "1g.24gb-me"}, "1@0:6 5@6:3 6@9:3"},
		"A30 quarters": {"a30x4", slices.Repeat([]string{"1g.6gb"}, 4), "3@0:1 4@1:1 5@2:1 6@3:1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, test.machine)
			d := gpu(t, open(t, m), 0)
			enableMIG(t, d)
			for _, p := range test.create {
				if _, ret := d.CreateGpuInstance(profileInfo(t, m, d, 0, p)); ret != nvml.SUCCESS {
					t.Fatalf("create %s: %v", p, ret)
				}
			}
			last := profileInfo(t, m, d, 0, test.create[len(test.create)-1])
			if _, ret := d.CreateGpuInstance(last); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
				t.Errorf("one more: %v, want INSUFFICIENT_RESOURCES", ret)
			}
			var got []string
			v, _ := m.view()
			for _, gi := range v.st.GPUs[0].Instances {
				got = append(got, fmt.Sprintf("%d@%d:%d", gi.ID, gi.Start, gi.Size))
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("layout (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMediaEnginesAreNotShared checks that an instance with all media engines leaves only instances without any.
func TestMediaEnginesAreNotShared(t *testing.T) {
	m := newMachine(t, "rtxpro6000x8")
	d := gpu(t, open(t, m), 0)
	enableMIG(t, d)
	if _, ret := d.CreateGpuInstance(profileInfo(t, m, d, 0, "1g.24gb+me.all")); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	for _, p := range m.hw.GPUs[0].Geometry.Profiles {
		without := strings.HasSuffix(p.Name, "-me")
		if n, ret := d.GetGpuInstanceRemainingCapacity(profileInfo(t, m, d, 0, p.Name)); ret != nvml.SUCCESS || (n > 0) != without {
			t.Errorf("%d more of %s fit (%v), without media engines: %v", n, p.Name, ret, without)
		}
	}
}

func TestMIGComputeInstances(t *testing.T) {
	m := newMachine(t, "a100x8-40g")
	d := gpu(t, open(t, m), 0)
	enableMIG(t, d)
	gi, _ := d.CreateGpuInstance(profileInfo(t, m, d, 0, "3g.20gb"))
	one, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	two, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if _, ret := gi.CreateComputeInstance(&two); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := gi.CreateComputeInstance(&two); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("a second 2c in a 3g: %v", ret)
	}
	if _, ret := gi.CreateComputeInstance(&one); ret != nvml.SUCCESS {
		t.Error(ret)
	}
	if n, _ := gi.GetComputeInstanceRemainingCapacity(&one); n != 0 {
		t.Errorf("remaining = %d, want 0", n)
	}
	description, err := m.Show()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, device := range description.GPUs[0].MIGDevices {
		names = append(names, device.Profile)
	}
	if diff := cmp.Diff([]string{"2c.3g.20gb", "1c.3g.20gb"}, names); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// twin is an independent model of MIG: an array that names the owner of each memory slice.
type twin struct {
	slices  [12]int
	owned   map[int]*profile.GIProfile
	compute int
}

func (w *twin) fits(g *geometry, p *profile.GIProfile, start int) bool {
	for i := start; i < start+p.Size; i++ {
		if w.slices[i] != 0 {
			return false
		}
	}
	// The profile with all compute slices has all decoders and JPEG engines. A GPU has one optical flow accelerator.
	same, decoders, jpeg, ofa := 0, p.Decoder, p.JPEG, p.OFA
	for _, other := range w.owned {
		if other.ID == p.ID {
			same++
		}
		decoders, jpeg, ofa = decoders+other.Decoder, jpeg+other.JPEG, ofa+other.OFA
	}
	whole := g.Profiles[slices.IndexFunc(g.Profiles, func(p profile.GIProfile) bool { return p.ComputeSlices == g.ComputeSlices })]
	return same < p.Max && w.compute+p.ComputeSlices <= g.ComputeSlices && decoders <= whole.Decoder && jpeg <= whole.JPEG && ofa <= 1
}

// TestMIGNeverOverlaps creates and destroys instances at random and compares each step with the twin.
func TestMIGNeverOverlaps(t *testing.T) {
	for _, name := range []string{"a30-24gb", "a100-40gb", "h100-80gb", "gb200-186gb", "rtx-pro-6000-96gb"} {
		g, err := profile.LoadGeometry(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { checkLayouts(t, g) }) })
	}
}

func checkLayouts(t *rapid.T, g *geometry) {
	gpu := &gpuHardware{UUID: "GPU-x", Geometry: g}
	st := &gpuState{MIGEnabled: true}
	w := &twin{owned: map[int]*profile.GIProfile{}}
	for range rapid.IntRange(1, 30).Draw(t, "steps") {
		if len(st.Instances) > 0 && rapid.IntRange(0, 3).Draw(t, "destroy") == 0 {
			i := rapid.IntRange(0, len(st.Instances)-1).Draw(t, "which")
			gi := st.Instances[i]
			for s := gi.Start; s < gi.Start+gi.Size; s++ {
				w.slices[s] = 0
			}
			w.compute -= w.owned[gi.ID].ComputeSlices
			delete(w.owned, gi.ID)
			st.Instances = slices.Delete(st.Instances, i, i+1)
			continue
		}
		p := &g.Profiles[rapid.IntRange(0, len(g.Profiles)-1).Draw(t, "profile")]
		var placement *nvml.GpuInstancePlacement
		possible := slices.ContainsFunc(p.Starts, func(s int) bool { return w.fits(g, p, s) })
		if rapid.Bool().Draw(t, "placed") {
			start := rapid.SampledFrom(p.Starts).Draw(t, "start")
			placement = &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)}
			possible = w.fits(g, p, start)
		}
		remaining := giRemaining(gpu, st, p)
		gi, ret := createGI(gpu, st, p, placement)
		if (ret == nvml.SUCCESS) != possible || (remaining == 0) != !slices.ContainsFunc(p.Starts,
			func(s int) bool { return w.fits(g, p, s) }) {
			t.Fatalf("create %s %v: %v, remaining %d; the twin says possible = %v in %v", p.Name, placement, ret,
				remaining, possible, w.slices)
		}
		if ret != nvml.SUCCESS {
			continue
		}
		if w.owned[gi.ID] != nil {
			t.Fatalf("two instances have number %d", gi.ID)
		}
		for s := gi.Start; s < gi.Start+gi.Size; s++ {
			if w.slices[s] != 0 {
				t.Fatalf("%s at %d overlaps %v", p.Name, gi.Start, w.slices)
			}
			w.slices[s] = gi.ID + 1
		}
		w.owned[gi.ID] = p
		w.compute += p.ComputeSlices
	}
}
