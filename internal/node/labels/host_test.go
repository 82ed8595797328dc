package labels

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// virtualGPU returns the configuration space of a virtual GPU of the hypervisor's driver 1.2, branch b.
func virtualGPU() []byte {
	space := make([]byte, 256)
	binary.LittleEndian.PutUint16(space, 0x10de)
	space[0x06], space[0x34] = 0x10, 0x40
	copy(space[0x40:], "\x09\x00\x1b"+"VF"+"\x00\x16"+"1.2\x00\x00\x00\x00\x00\x00\x00"+"b")
	return space
}

func TestReadHost(t *testing.T) {
	n := newNode(t, "h100x8")
	snapshot := n.Scan()
	sys := filepath.Join(n.Machine.Root(), "sys")
	want := Host{Machine: "DGXH100", Classes: map[gpu.UUID]uint32{}, VGPU: &VGPU{}}
	for i := range snapshot.GPUs {
		want.Classes[snapshot.GPUs[i].UUID] = 0x030200
	}
	got := ReadHost(sys, snapshot, gpulabels.Vendor{})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// One GPU of eight is virtual; another is off the bus.
	g := snapshot.GPUs[5]
	config := filepath.Join(sys, "bus/pci/devices", g.PCI.String(), "config")
	if err := n.Machine.Inject(sim.Fault{GPU: string(snapshot.GPUs[1].UUID), OffBus: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, virtualGPU(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := ReadHost(sys, snapshot, gpulabels.Vendor{}).VGPU; got == nil || *got != (VGPU{Present: true, DriverVersion: "1.2", DriverBranch: "b"}) {
		t.Errorf("got %+v; want the virtual GPU", got)
	}
	if got := ReadHost(t.TempDir(), snapshot, gpulabels.Vendor{}); got.VGPU != nil || got.Machine != "" || len(got.Classes) != 0 {
		t.Errorf("of an empty sysfs: %+v; want nothing", got)
	}
}
