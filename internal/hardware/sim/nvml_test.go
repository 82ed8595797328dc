package sim

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/google/go-cmp/cmp"
)

func TestShowGolden(t *testing.T) {
	for _, name := range Profiles() {
		t.Run(name, func(t *testing.T) {
			description, err := newMachine(t, name).Show()
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := description.WriteTable(&text); err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", "show", name+".txt"), text.String())
		})
	}
}

// matrix counts the NVLinks between GPUs by their remote PCI bus IDs, as a simple adapter does.
func matrix(t *testing.T, lib nvml.Interface) [][]int {
	t.Helper()
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	position := map[string]int{}
	for i := range count {
		info, _ := gpu(t, lib, i).GetPciInfo()
		position[text(info.BusId[:])] = i
	}
	rows := make([][]int, count)
	for i := range rows {
		rows[i] = make([]int, count)
		for number := range nvml.NVLINK_MAX_LINKS {
			remote, ret := gpu(t, lib, i).GetNvLinkRemotePciInfo(number)
			if j, ok := position[text(remote.BusId[:])]; ok && ret == nvml.SUCCESS {
				rows[i][j]++
			}
		}
	}
	return rows
}

func text(chars []int8) string {
	var out []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}

// TestHybridMesh checks the links of a DGX-1 with V100 against NVIDIA's publication.
func TestHybridMesh(t *testing.T) {
	want := [][]int{
		{0, 1, 1, 2, 2, 0, 0, 0},
		{1, 0, 2, 1, 0, 2, 0, 0},
		{1, 2, 0, 2, 0, 0, 1, 0},
		{2, 1, 2, 0, 0, 0, 0, 1},
		{2, 0, 0, 0, 0, 1, 1, 2},
		{0, 2, 0, 0, 1, 0, 2, 1},
		{0, 0, 1, 0, 1, 2, 0, 2},
		{0, 0, 0, 1, 2, 1, 2, 0},
	}
	m := newMachine(t, "v100x8-hybrid-mesh")
	got := matrix(t, open(t, m))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	for slot := range m.hw.GPUs {
		if n := len(m.hw.GPUs[slot].Links); n != 6 {
			t.Errorf("GPU %d has %d links, want 6", slot, n)
		}
		for number, l := range m.hw.GPUs[slot].Links {
			back := m.hw.GPUs[l.Peer].Links[l.PeerLink]
			if back.Peer != slot || back.PeerLink != number {
				t.Errorf("GPU %d link %d goes to GPU %d link %d, which goes to GPU %d link %d", slot, number, l.Peer,
					l.PeerLink, back.Peer, back.PeerLink)
			}
		}
	}
}

// TestNVSwitch checks that the remote ends of a switched fabric are switches, never GPUs.
func TestNVSwitch(t *testing.T) {
	tests := map[string]struct{ links, switches int }{
		"a100x8-40g": {12, 6}, "a100x8-80g": {12, 6}, "a100x16": {12, 12}, "h100x8": {18, 4}, "h200x8": {18, 4},
		"b200x8": {18, 1}, "gb200x4": {18, 1}, // their switches are not on the host's PCI bus
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			lib := open(t, newMachine(t, name))
			for i, row := range matrix(t, lib) {
				for j, n := range row {
					if n != 0 {
						t.Errorf("GPU %d has %d links to GPU %d, want switches only", i, n, j)
					}
				}
				d, links, remotes := gpu(t, lib, i), 0, map[string]bool{}
				for number := range want.links {
					kind, ret := d.GetNvLinkRemoteDeviceType(number)
					state, _ := d.GetNvLinkState(number)
					if ret != nvml.SUCCESS || kind != nvml.NVLINK_DEVICE_TYPE_SWITCH || state != nvml.FEATURE_ENABLED {
						t.Errorf("GPU %d link %d: type %v, %v, state %v", i, number, kind, ret, state)
					}
					remote, _ := d.GetNvLinkRemotePciInfo(number)
					remotes[text(remote.BusId[:])] = true
					links++
				}
				if _, ret := d.GetNvLinkState(want.links); ret != nvml.ERROR_INVALID_ARGUMENT {
					t.Errorf("GPU %d has a link %d: %v", i, want.links, ret)
				}
				if len(remotes) != want.switches {
					t.Errorf("GPU %d: %d switches, want %d", i, len(remotes), want.switches)
				}
			}
		})
	}
}

func TestClique(t *testing.T) {
	tests := map[string]struct {
		want nvml.Return
		uuid string
		id   uint32
	}{
		"gb200x4":    {nvml.SUCCESS, "7f3c1ab25d6e4c919a443b0e6f2d8c57", 32766},
		"h100x8":     {nvml.SUCCESS, strings.Repeat("0", 32), 0},
		"a100x8-80g": {nvml.ERROR_NOT_SUPPORTED, strings.Repeat("0", 32), 0},
		"l40sx8":     {nvml.ERROR_NOT_SUPPORTED, strings.Repeat("0", 32), 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			info, ret := gpu(t, open(t, newMachine(t, name)), 0).GetGpuFabricInfo()
			if ret != test.want || fmt.Sprintf("%x", info.ClusterUuid) != test.uuid || info.CliqueId != test.id {
				t.Errorf("GetGpuFabricInfo = %x.%d, %v", info.ClusterUuid, info.CliqueId, ret)
			}
		})
	}
}

// TestJoinsClique: an option replaces the clique of the profile.
func TestJoinsClique(t *testing.T) {
	const cluster = "01020304-0506-4708-890a-0b0c0d0e0f10"
	tests := map[string]struct{ profile, clique, fails string }{
		"h100x8":       {"h100x8", cluster + ".7", ""},
		"gb200x4":      {"gb200x4", cluster + ".7", ""},
		"no fabric":    {"l40sx8", cluster + ".7", "joins no NVLink fabric"},
		"no number":    {"h100x8", cluster, "CLUSTER-UUID.CLIQUE-ID"},
		"short UUID":   {"h100x8", "0102.7", "CLUSTER-UUID.CLIQUE-ID"},
		"large number": {"h100x8", cluster + ".4294967296", "CLUSTER-UUID.CLIQUE-ID"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := CreateWith(temporary(t), test.profile, Options{Seed: "test", NoDeviceNodes: true, Clique: test.clique})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%v; want an error with %q", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			info, ret := gpu(t, open(t, m), 3).GetGpuFabricInfo()
			if ret != nvml.SUCCESS || fmt.Sprintf("%x", info.ClusterUuid) != strings.ReplaceAll(cluster, "-", "") || info.CliqueId != 7 {
				t.Errorf("GetGpuFabricInfo = %x.%d, %v", info.ClusterUuid, info.CliqueId, ret)
			}
		})
	}
}

func TestNoNVLink(t *testing.T) {
	d := gpu(t, open(t, newMachine(t, "l40sx8")), 0)
	if _, ret := d.GetNvLinkState(0); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("GetNvLinkState = %v", ret)
	}
	// The bridged GPUs of "mixed" have 12 connected links; the links of the others are not connected.
	lib := open(t, newMachine(t, "mixed"))
	if state, ret := gpu(t, lib, 6).GetNvLinkState(0); ret != nvml.SUCCESS || state != nvml.FEATURE_DISABLED {
		t.Errorf("unbridged A100: state %v, %v", state, ret)
	}
}

// wrapped is a caller's own type around a handle, as in go-nvlib.
type wrapped struct{ nvml.Device }

func TestTopology(t *testing.T) {
	tests := map[string]struct {
		profile string
		a       int
		b       int
		want    nvml.GpuTopologyLevel
	}{
		"one switch":        {"l40sx8", 0, 1, nvml.TOPOLOGY_SINGLE},
		"one socket":        {"l40sx8", 0, 2, nvml.TOPOLOGY_NODE},
		"two sockets":       {"l40sx8", 0, 4, nvml.TOPOLOGY_SYSTEM},
		"cascaded switches": {"a100x8-80g", 0, 1, nvml.TOPOLOGY_MULTIPLE},
		"one host bridge":   {"v100x8-hybrid-mesh", 0, 2, nvml.TOPOLOGY_HOSTBRIDGE},
		"itself":            {"h100x8", 5, 5, nvml.TOPOLOGY_INTERNAL},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			lib := open(t, newMachine(t, test.profile))
			a, b := gpu(t, lib, test.a), gpu(t, lib, test.b)
			there, ret1 := a.GetTopologyCommonAncestor(b)
			back, ret2 := b.GetTopologyCommonAncestor(wrapped{a})
			if there != test.want || back != test.want || ret1 != nvml.SUCCESS || ret2 != nvml.SUCCESS {
				t.Errorf("ancestor = %v (%v) and %v (%v), want %v", there, ret1, back, ret2, test.want)
			}
		})
	}
}

// field returns one field value.
func field(t *testing.T, d nvml.Device, id, scope uint32) (uint64, nvml.Return) {
	t.Helper()
	values := []nvml.FieldValue{{FieldId: id, ScopeId: scope}}
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, ret
	}
	if values[0].ValueType == uint32(nvml.VALUE_TYPE_UNSIGNED_INT) {
		return uint64(binary.NativeEndian.Uint32(values[0].Value[:])), nvml.Return(values[0].NvmlReturn)
	}
	return binary.NativeEndian.Uint64(values[0].Value[:]), nvml.Return(values[0].NvmlReturn)
}

func TestIdentity(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	seen := map[string]bool{}
	for i := range 8 {
		d := gpu(t, lib, i)
		uuid, _ := d.GetUUID()
		seen[uuid] = true
		if found, ret := lib.DeviceGetHandleByUUID(uuid); found != d || ret != nvml.SUCCESS {
			t.Errorf("by UUID: %v", ret)
		}
		info, _ := d.GetPciInfo()
		bdf := m.hw.GPUs[i].PCI
		for _, busID := range []string{text(info.BusId[:]), bdf, bdf[5:], strings.ToUpper(bdf)} {
			if found, ret := lib.DeviceGetHandleByPciBusId(busID); found != d || ret != nvml.SUCCESS {
				t.Errorf("by bus ID %s: %v", busID, ret)
			}
		}
		if index, _ := d.GetIndex(); index != i {
			t.Errorf("GetIndex = %d, want %d", index, i)
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d UUIDs for 8 GPUs", len(seen))
	}
	d := gpu(t, lib, 0)
	name, _ := d.GetName()
	major, minor, _ := d.GetCudaComputeCapability()
	memory, _ := d.GetMemoryInfo()
	info, _ := d.GetPciInfo()
	driver, _ := lib.SystemGetDriverVersion()
	cuda, _ := lib.SystemGetCudaDriverVersion_v2()
	got := fmt.Sprintf("%s %d.%d %d MiB %s %08X driver %s cuda %d", name, major, minor, memory.Total>>20,
		text(info.BusId[:]), info.PciDeviceId, driver, cuda)
	if want := "NVIDIA H100 80GB HBM3 9.0 81559 MiB 00000000:1B:00.0 233010DE driver 580.95.05 cuda 13000"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, ret := d.GetNumaNodeId(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("GetNumaNodeId = %v: an H100's memory is no NUMA node", ret)
	}
	if words, _ := gpu(t, lib, 4).GetMemoryAffinity(1, nvml.AFFINITY_SCOPE_NODE); len(words) != 1 || words[0] != 1<<1 {
		t.Errorf("GetMemoryAffinity = %b, want node 1", words)
	}
	if words, _ := gpu(t, lib, 4).GetCpuAffinity(4); len(words) != 4 || words[0] != 0xff<<56 {
		t.Errorf("GetCpuAffinity = %x, want CPUs from 56 on", words)
	}
	if node, _ := gpu(t, open(t, newMachine(t, "gb200x4")), 1).GetNumaNodeId(); node != 10 {
		t.Errorf("GB200 memory node = %d, want 10", node)
	}
}

func TestSeed(t *testing.T) {
	uuids := func(options Options) string {
		m, err := CreateWith(temporary(t), "t4x4", options)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Open(m.Dir())
		if err != nil {
			t.Fatal(err)
		}
		if again.hw.GPUs[0].UUID != m.hw.GPUs[0].UUID {
			t.Error("another UUID after opening again")
		}
		return m.hw.GPUs[0].UUID
	}
	fixed := Options{Seed: "a", NoDeviceNodes: true}
	if one, two := uuids(fixed), uuids(fixed); one != two {
		t.Errorf("one seed, two UUIDs: %s, %s", one, two)
	}
	byFolder := Options{NoDeviceNodes: true}
	if one, two := uuids(byFolder), uuids(byFolder); one == two {
		t.Errorf("two folders, one UUID: %s", one)
	}
}
