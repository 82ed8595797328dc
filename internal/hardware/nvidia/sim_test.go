package nvidia_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// anyLife leaves GPU.Life out of a comparison, since it changes with each scan.
func anyLife() cmp.Option {
	return cmp.FilterValues(func(_, _ gpu.Life) bool { return true }, cmp.Ignore())
}

// machine returns a simulated machine and an adapter on it.
func machine(t testing.TB, profile string) (*sim.Machine, *nvidia.Adapter) {
	t.Helper()
	m, err := sim.Create(filepath.Join(t.TempDir(), "machine"), profile)
	if err != nil {
		t.Fatal(err)
	}
	return m, adapterOn(t, m)
}

// adapterOn returns the adapter of a new process.
func adapterOn(t testing.TB, m *sim.Machine) *nvidia.Adapter {
	a := nvidia.New(nvidia.Deps{Library: m.NVML(), Roots: rootsOf(m)})
	t.Cleanup(a.Close)
	return a
}

func rootsOf(m *sim.Machine) nvidia.Roots {
	root := m.Root()
	return nvidia.Roots{Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}
}

func inject(t *testing.T, m *sim.Machine, fault sim.Fault) {
	t.Helper()
	if err := m.Inject(fault); err != nil {
		t.Fatal(err)
	}
}

func clearFaults(t *testing.T, m *sim.Machine, ref string) {
	t.Helper()
	if err := m.Clear(ref); err != nil {
		t.Fatal(err)
	}
}

// TestProfiles prints the scan of each simulated machine. Regenerate with go test ./internal/hardware/nvidia -run TestProfiles
// -rewrite.
func TestProfiles(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			path := filepath.Join("testdata", "profiles", profile)
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				write(t, path, "scan\n----\n")
			}
			_, a := machine(t, profile)
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				return describe(scan(t, a))
			})
		})
	}
}

// describe prints a snapshot without what differs between machines: UUIDs, and device nodes, which only root can create.
func describe(s *gpu.Snapshot) string {
	var out strings.Builder
	fmt.Fprintf(&out, "driver %s, CUDA %s\n", s.Vendor(gpu.NVIDIA).Driver.Version, s.Vendor(gpu.NVIDIA).Driver.CUDA)
	for _, g := range s.GPUs {
		fmt.Fprintf(&out, "%d minor %d, %s, %s, %s %s, %d MiB, NUMA %d", g.Index, g.Minor, g.PCI, g.Product,
			g.Architecture, g.ComputeCapability, g.MemoryBytes>>20, g.NUMANode)
		if g.Clique != (gpu.Clique{}) {
			fmt.Fprintf(&out, ", clique %s.%d", g.Clique.ClusterUUID, g.Clique.ID)
		}
		if g.MIG.Capable {
			fmt.Fprintf(&out, ", MIG %s", map[bool]string{true: "on", false: "off"}[g.MIG.Enabled])
		}
		if !g.Health.OK() {
			fmt.Fprintf(&out, ", %s", g.Health.State)
		}
		for _, cause := range g.Health.Causes {
			fmt.Fprintf(&out, " [%s: %s]", cause.Code, cause.Message)
		}
		fmt.Fprintf(&out, ", recovery %q\n", g.Health.Recovery)
		if g.MIG.Capable && (g.Index == 0 || g.Product != s.GPUs[g.Index-1].Product) {
			out.WriteString(shape(&g))
		}
		for _, one := range g.MIG.Devices {
			fmt.Fprintf(&out, "  MIG %d:%d %s, GI %d, CI %d, at %d+%d, %d MiB\n",
				g.Index, one.Index, one.Profile, one.GI, one.CI, one.Start, one.Size, one.MemoryBytes>>20)
		}
	}
	out.WriteString(matrix(s.Topology))
	for _, fault := range s.Faults {
		fmt.Fprintf(&out, "fault %s: %s\n", fault.Code, fault.Message)
	}
	return out.String()
}

// shape prints what a GPU can be partitioned into.
func shape(g *gpu.GPU) string {
	var out strings.Builder
	fmt.Fprintf(&out, "  %#08x, %d memory and %d compute slices, mode needs reset %v\n",
		g.DeviceID, g.MIG.Geometry.MemorySlices, g.MIG.Geometry.ComputeSlices, g.MIG.ModeNeedsReset)
	for _, p := range g.MIG.Geometry.Profiles {
		fmt.Fprintf(&out, "  %-10s number %d, id %d, %d compute, %d memory at %v, %d at most, %d MiB\n",
			p.Name, p.Number, p.ID, p.ComputeSlices, p.Size, p.Starts, p.Max, p.MemoryBytes>>20)
	}
	return out.String()
}

// TestSimulatedFaults injects each fault into the second of eight GPUs, scans it in a process that has scanned it before and in
// a new one, and repairs it.
func TestSimulatedFaults(t *testing.T) {
	for name, test := range map[string]struct {
		fault    sim.Fault
		want     string // state and causes
		recovery gpu.Recovery
	}{
		"lost":              {sim.Fault{Lost: true}, "Gone GPU_LOST", ""},
		"lost silently":     {sim.Fault{LostSilently: true}, "Gone GPU_LOST", ""},
		"off the bus":       {sim.Fault{OffBus: true}, "Gone OFF_BUS", ""},
		"ecc":               {sim.Fault{ECC: 2}, " ECC_DOUBLE_BIT RECOVERY_ACTION", gpu.RecoveryGPUReset},
		"row remap pending": {sim.Fault{RowRemap: sim.RowRemapPending}, " ROW_REMAP_PENDING RECOVERY_ACTION", gpu.RecoveryDrainAndReset},
		"row remap failed":  {sim.Fault{RowRemap: sim.RowRemapFailed}, " ROW_REMAP_FAILURE RECOVERY_ACTION", gpu.RecoveryGPUReset},
		"xid 79":            {sim.Fault{XID: 79, Recovery: "node-reboot"}, " RECOVERY_ACTION", gpu.RecoveryNodeReboot},
		"xid 79, silent":    {sim.Fault{XID: 79}, "", gpu.RecoveryNone},
		"xid 94":            {sim.Fault{XID: 94}, " ECC_DOUBLE_BIT", gpu.RecoveryNone},
		"ECC in SRAM":       {sim.Fault{ECCSRAM: 2}, " ECC_SRAM_UNCORRECTABLE RECOVERY_ACTION", gpu.RecoveryGPUReset},
		"ECC in both":       {sim.Fault{ECCSRAM: 2, ECC: 1}, " ECC_DOUBLE_BIT ECC_SRAM_UNCORRECTABLE RECOVERY_ACTION", gpu.RecoveryGPUReset},
		"no field 230":      {sim.Fault{Recovery: sim.RecoveryUnsupported}, "", ""},
		"field 230 lags":    {sim.Fault{Recovery: "gpu-reset", RecoveryAfter: time.Hour}, "", gpu.RecoveryNone},
		"taken out":         {sim.Fault{Remove: true}, "removed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, a := machine(t, "h100x8")
			before := scan(t, a)
			victim := before.GPUs[1].UUID
			fault := test.fault
			fault.GPU = string(victim)
			inject(t, m, fault)
			for target, adapter := range map[string]*nvidia.Adapter{"known": a, "new process": adapterOn(t, m)} {
				if fault.Recovery == sim.RecoveryUnsupported { // That a value is gone is believed at the third scan.
					scan(t, adapter)
					scan(t, adapter)
				}
				after := scan(t, adapter)
				if got := verdict(after, victim); got != test.want {
					t.Errorf("%s: got %q; want %q", target, got, test.want)
				}
				if g := after.GPU(victim); g != nil && g.Health.Recovery != test.recovery {
					t.Errorf("%s: recovery %q; want %q", target, g.Health.Recovery, test.recovery)
				}
				others(t, target, before, after, victim)
			}
			clearFaults(t, m, string(victim))
			if diff := cmp.Diff(before, scan(t, a), anyLife()); diff != "" {
				t.Errorf("after the repair (-before +after):\n%s", diff)
			}
		})
	}
}

func verdict(s *gpu.Snapshot, id gpu.UUID) string {
	g := s.GPU(id)
	if g == nil {
		return "removed"
	}
	text := string(g.Health.State)
	for _, cause := range g.Health.Causes {
		text += " " + cause.Code
	}
	return text
}

// others checks that the other GPUs have not changed, but for their index, nor the links between them.
func others(t *testing.T, target string, before, after *gpu.Snapshot, victim gpu.UUID) {
	t.Helper()
	if len(after.Faults) > 0 {
		t.Errorf("%s: faults %v; want none", target, after.Faults)
	}
	at := map[gpu.UUID]int{}
	for i, g := range after.GPUs {
		at[g.UUID] = i
	}
	for i, g := range before.GPUs {
		if g.UUID == victim {
			continue
		}
		now := *after.GPU(g.UUID)
		now.Index = g.Index
		if diff := cmp.Diff(g, now, anyLife()); diff != "" {
			t.Errorf("%s: another GPU changed (-before +after):\n%s", target, diff)
		}
		for j, peer := range before.GPUs {
			if peer.UUID != victim && before.Topology[i][j] != after.Topology[at[g.UUID]][at[peer.UUID]] {
				t.Errorf("%s: the link %d-%d changed to %v", target, i, j, after.Topology[at[g.UUID]][at[peer.UUID]])
			}
		}
	}
}

func TestSimulatedNVLinkDown(t *testing.T) {
	m, a := machine(t, "v100x8-hybrid-mesh")
	before := scan(t, a).Topology
	inject(t, m, sim.Fault{GPU: "0", AllNVLinksDown: true})
	after := scan(t, a).Topology
	for i := range after {
		for j := range after {
			want := before[i][j]
			if i == 0 || j == 0 {
				want.Kind, want.Count = "", 0
			}
			if after[i][j] != want {
				t.Errorf("link %d-%d is %v; want %v", i, j, after[i][j], want)
			}
		}
	}
}

func TestSimulatedDriverGoneAndBack(t *testing.T) {
	m, a := machine(t, "a30x4")
	before := scan(t, a)
	inject(t, m, sim.Fault{DriverGone: true})
	for range 2 {
		gone := scan(t, a)
		if len(gone.GPUs) != 4 || gone.DriverPresent() || len(gone.Faults) != 1 || gone.Faults[0].Code != "DRIVER_MISSING" {
			t.Errorf("driver gone: %d GPUs, driver %q, faults %v; want 4 Gone, none, DRIVER_MISSING", len(gone.GPUs), gone.Vendor(gpu.NVIDIA).Driver.Version, gone.Faults)
		}
	}
	if fresh := scan(t, adapterOn(t, m)); len(fresh.GPUs) != 0 || len(fresh.Faults) != 1 {
		t.Errorf("a new process without driver: %d GPUs, faults %v; want 0, DRIVER_MISSING", len(fresh.GPUs), fresh.Faults)
	}
	clearFaults(t, m, sim.ClearDriver)
	if diff := cmp.Diff(before, scan(t, a), anyLife()); diff != "" {
		t.Errorf("driver back (-before +after):\n%s", diff)
	}
}

// TestSimulatedEvents follows XIDs through the watch, of two processes at once.
func TestSimulatedEvents(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	b := adapterOn(t, m)
	ids := scan(t, a)
	scan(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var watches []chan gpu.Event
	for _, adapter := range []*nvidia.Adapter{a, b} {
		events := make(chan gpu.Event, 16)
		watches = append(watches, events)
		go adapter.Watch(ctx, func(e gpu.Event) {
			select {
			case events <- e:
			default:
			}
		})
	}
	// The test cannot see when the watches have registered: repeat until both reported one.
	victim := ids.GPUs[5].UUID
	for _, events := range watches {
		for seen := false; !seen; {
			inject(t, m, sim.Fault{GPU: string(victim), XID: 79})
			select {
			case e := <-events:
				if e.GPU != victim || e.Code != gpu.XID(79) || e.GI != gpu.NoInstance {
					t.Errorf("got %+v; want XID 79 of %s", e, victim)
				}
				seen = true
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("no event within a minute")
			}
		}
	}
}

// TestSimulatedHang hangs one call on one GPU; Doing names both while it hangs.
func TestSimulatedHang(t *testing.T) {
	m, a := machine(t, "t4x4")
	victim := scan(t, a).GPUs[2].UUID
	inject(t, m, sim.Fault{GPU: string(victim), Hang: "GetTotalEccErrors"})
	done := make(chan *gpu.Snapshot, 1)
	go func() {
		snapshot, err := a.Scan(context.Background())
		if err != nil {
			t.Error(err)
		}
		done <- &snapshot
	}()
	give := time.After(time.Minute)
	for call := ""; call != "nvmlDeviceGetTotalEccErrors"; {
		var g gpu.UUID
		g, call = a.Doing()
		if call == "nvmlDeviceGetTotalEccErrors" && g != victim {
			call = "" // it is reading the others
		}
		select {
		case <-give:
			t.Fatalf("Doing() = %q, %q after a minute; want the hung call", g, call)
		case <-done:
			t.Fatal("the scan did not hang")
		default:
		}
	}
	clearFaults(t, m, string(victim))
	if got := <-done; len(got.GPUs) != 4 || len(got.GPUs[2].Health.Causes) != 0 {
		t.Errorf("after the hang: %+v; want four healthy GPUs", got.GPUs)
	}
}

// TestSimulatedMIG partitions a GPU without the adapter and removes all instances again; the scans of a running adapter show
// it.
func TestSimulatedMIG(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	before := scan(t, a)
	library := m.NVML()
	check := func(what string, ret nvml.Return) {
		t.Helper()
		if ret != nvml.SUCCESS {
			t.Fatalf("%s: %v", what, ret)
		}
	}
	check("Init", library.Init())
	d, ret := library.DeviceGetHandleByIndex(2)
	check("DeviceGetHandleByIndex", ret)
	_, ret = d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	check("SetMigMode", ret)
	if err := m.ResetGPUs("2"); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []int{nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1} {
		info, ret := d.GetGpuInstanceProfileInfo(kind)
		check("GetGpuInstanceProfileInfo", ret)
		gi, ret := d.CreateGpuInstance(&info)
		check("CreateGpuInstance", ret)
		ciKind := map[int]int{
			nvml.GPU_INSTANCE_PROFILE_3_SLICE:      nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
			nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
		}[kind]
		ci, ret := gi.GetComputeInstanceProfileInfo(ciKind, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		check("GetComputeInstanceProfileInfo", ret)
		_, ret = gi.CreateComputeInstance(&ci)
		check("CreateComputeInstance", ret)
	}
	after := scan(t, a)
	mig := after.GPUs[2].MIG
	var profiles []string
	for _, device := range mig.Devices {
		profiles = append(profiles, device.Profile)
		if len(device.Nodes) != 2 || device.Size == 0 || device.MemoryBytes == 0 || !device.UUID.IsMIG() {
			t.Errorf("got %+v; want a MIG UUID, two nodes, a placement and memory", device)
		}
	}
	slices.Sort(profiles)
	if diff := cmp.Diff([]string{"1g.5gb+me", "3g.20gb"}, profiles); diff != "" || !mig.Enabled {
		t.Errorf("MIG enabled %v, profiles (-want +got):\n%s", mig.Enabled, diff)
	}
	after.GPUs[2].MIG = before.GPUs[2].MIG
	if diff := cmp.Diff(before, after, anyLife()); diff != "" {
		t.Errorf("more than MIG changed (-before +after):\n%s", diff)
	}
}

// TestSimulatedNodes compares the nodes found with the machine's numbers; only root can create nodes.
func TestSimulatedNodes(t *testing.T) {
	m, a := machine(t, "a100x8-40g")
	show, err := m.Show()
	if err != nil {
		t.Fatal(err)
	}
	if !show.DeviceNodes {
		t.Skip(show.NoDeviceNodes)
	}
	s := scan(t, a)
	for _, g := range s.GPUs {
		want := fmt.Sprintf("/dev/nvidia%d", g.Minor)
		if len(g.Nodes) != 3 || g.Nodes[0].Path != want || g.Nodes[0].Major != show.Majors.NVIDIA || g.Nodes[0].HostPath != filepath.Join(m.Root(), want) {
			t.Errorf("GPU %d has %+v; want %s with major %d and two DRM nodes", g.Index, g.Nodes, want, show.Majors.NVIDIA)
		}
	}
	if len(s.Vendor(gpu.NVIDIA).Shared) != 4 {
		t.Errorf("control nodes %+v; want four", s.Vendor(gpu.NVIDIA).Shared)
	}
}
