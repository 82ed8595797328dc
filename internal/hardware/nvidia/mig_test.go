package nvidia_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestMIGDevices(t *testing.T) {
	n := newNode(t, gpus.A100_SXM4_40GB)
	c := n.gpus[0]
	c.MigMode = nvml.DEVICE_MIG_ENABLE
	attributes := func(g, ci uint32, mib uint64) nvml.DeviceAttributes {
		return nvml.DeviceAttributes{GpuInstanceSliceCount: g, ComputeInstanceSliceCount: ci, MemorySizeMB: mib}
	}
	c.mig = []*fakeMIG{
		{
			uuid: "MIG-a", name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", gi: 7,
			profileID: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, placement: nvml.GpuInstancePlacement{Start: 6, Size: 1},
			attributes: nvml.DeviceAttributes{
				GpuInstanceSliceCount: 1, ComputeInstanceSliceCount: 1, MemorySizeMB: 4864,
				MultiprocessorCount: 14, SharedCopyEngineCount: 1, SharedDecoderCount: 2, SharedEncoderCount: 3, SharedJpegCount: 4, SharedOfaCount: 5,
			},
		},
		nil, // the numbers have gaps
		{uuid: "MIG-b", name: "old driver, no profile", gi: 2, profileID: nvml.GPU_INSTANCE_PROFILE_3_SLICE, placement: nvml.GpuInstancePlacement{Size: 4}, attributes: attributes(3, 3, 19968)},
		{uuid: "MIG-c", gi: 8, profileID: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, attributes: attributes(1, 1, 4864)},
		{uuid: "MIG-d", gi: 3, ci: 1, profileID: nvml.GPU_INSTANCE_PROFILE_2_SLICE, attributes: attributes(2, 1, 9856)},
	}
	capabilities := filepath.Join(n.roots.Proc, "driver/nvidia/capabilities/gpu0/mig")
	write(t, filepath.Join(n.roots.Proc, "devices"), "Character devices:\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n  8 nvidia-caps\n")
	write(t, filepath.Join(capabilities, "gi7/access"), "DeviceFileMinor: 66\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	write(t, filepath.Join(capabilities, "gi7/ci0/access"), "DeviceFileMinor: 67\nDeviceFileMode: 292\n")

	got := scan(t, n.adapter()).GPUs[0].MIG
	want := gpu.MIG{Capable: true, Enabled: true, PendingEnabled: true, ModeNeedsReset: true, Geometry: geometryA100(), Devices: []gpu.MIGDevice{
		{
			Partition: gpu.Partition{UUID: "MIG-a", Profile: "1g.5gb+me", Index: 0, MemoryBytes: 4864 << 20, Nodes: []gpu.DeviceNode{
				{Path: "/dev/nvidia-caps/nvidia-cap66", Major: 237, Minor: 66},
				{Path: "/dev/nvidia-caps/nvidia-cap67", Major: 237, Minor: 67},
			}},
			GI: 7, Start: 6, Size: 1, Attributes: gpu.MIGAttributes{Multiprocessors: 14, CopyEngines: 1, Decoders: 2, Encoders: 3, JPEGs: 4, OFAs: 5},
		},
		{Partition: gpu.Partition{UUID: "MIG-b", Profile: "3g.20gb", Index: 2, MemoryBytes: 19968 << 20}, GI: 2, Size: 4},
		{Partition: gpu.Partition{UUID: "MIG-c", Profile: "1g.5gb+me", Index: 3, MemoryBytes: 4864 << 20}, GI: 8},
		{Partition: gpu.Partition{UUID: "MIG-d", Profile: "1c.2g.10gb", Index: 4, MemoryBytes: 9856 << 20}, GI: 3, CI: 1},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("MIG (-want +got):\n%s", diff)
	}
}

// TestDeviceNodes has inodes with numbers of their own, a file that is not a device, and missing nodes.
func TestDeviceNodes(t *testing.T) {
	n := newNode(t, gpus.Multiple(2, gpus.A100_SXM4_40GB)...)
	dev := filepath.Join(n.roots.Dev, "dev")
	mknod := func(name string, major, minor uint32) string {
		path := filepath.Join(dev, name)
		mkdir(t, filepath.Dir(path))
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor)))
		if errors.Is(err, unix.EPERM) {
			t.Skip("making device nodes needs root with CAP_MKNOD")
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := mknod("nvidia0", 509, 0)
	control := mknod("nvidiactl", 509, 255)
	write(t, filepath.Join(dev, "nvidia1"), "")
	write(t, filepath.Join(dev, "nvidia-uvm"), "")
	write(t, filepath.Join(n.roots.Proc, "devices"), "Character devices:\n508 nvidia-uvm\n")
	for i, name := range []string{"card1", "renderD128", "card1-DP-1", "controlD64"} {
		folder := filepath.Join(n.roots.Sys, "devices/pci0000:00", n.gpus[0].pci, "drm", name)
		write(t, filepath.Join(folder, "dev"), fmt.Sprintf("226:%d\n", i))
	}
	render := mknod("dri/renderD128", 226, 128)

	got := scan(t, n.adapter())
	want := []gpu.DeviceNode{
		{Path: "/dev/nvidia0", HostPath: first, Major: 509},
		// card1 has no inode; connectors are not nodes of a container.
		{Path: "/dev/dri/renderD128", HostPath: render, Major: 226, Minor: 128},
	}
	if diff := cmp.Diff(want, got.GPUs[0].Nodes); diff != "" {
		t.Errorf("nodes of GPU 0 (-want +got):\n%s", diff)
	}
	want = []gpu.DeviceNode{{Path: "/dev/nvidia1", Major: 195, Minor: 1}}
	if diff := cmp.Diff(want, got.GPUs[1].Nodes); diff != "" {
		t.Errorf("nodes of GPU 1 (-want +got):\n%s", diff)
	}
	want = []gpu.DeviceNode{
		{Path: "/dev/nvidiactl", HostPath: control, Major: 509, Minor: 255},
		{Path: "/dev/nvidia-uvm", Major: 508},
	}
	if diff := cmp.Diff(want, got.Vendor(gpu.NVIDIA).Shared); diff != "" {
		t.Errorf("control nodes (-want +got):\n%s", diff)
	}
}
