package labels

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// space is a configuration space with capabilities from 0x40 on, one after the other.
func space(capabilities ...[]byte) []byte {
	out := make([]byte, minSpace)
	binary.LittleEndian.PutUint16(out, 0x10de)
	if len(capabilities) > 0 {
		out[statusAt] = hasCapabilities
		out[capabilitiesAt] = firstCapability
	}
	at := firstCapability
	for i, capability := range capabilities {
		copy(out[at:], capability)
		next := (at + len(capability) + 3) &^ 3
		if i < len(capabilities)-1 {
			out[at+1] = byte(next)
		}
		at = next
	}
	return out
}

// virtual is a virtual GPU's capability of some records.
func virtual(records ...[]byte) []byte {
	out := []byte{vendorCapability, 0, 0, 'V', 'F'}
	for _, record := range records {
		out = append(out, record...)
	}
	out[2] = byte(len(out))
	return out
}

// record is a record of a type; its length is that of all of it.
func record(kind byte, data string) []byte {
	return append([]byte{kind, byte(recordHead + len(data))}, data...)
}

func driver(version, branch string) []byte {
	data := make([]byte, 2*driverField)
	copy(data, version)
	copy(data[driverField:], branch)
	return record(driverRecord, string(data))
}

func TestParseVGPU(t *testing.T) {
	ones := make([]byte, minSpace)
	for i := range ones {
		ones[i] = 0xff
	}
	ring := space([]byte{0x10, 0, 0, 0})
	ring[firstCapability+1] = firstCapability
	power := []byte{0x01, 0, 0, 0, 0, 0, 0, 0}
	for name, test := range map[string]struct {
		space []byte
		want  VGPU
		err   error
	}{
		"a physical card":           {space: space(power, []byte{0x05, 0, 0, 0}, []byte{vendorCapability, 0, 8, 0, 0, 0, 0, 0})},
		"no capabilities":           {space: space()},
		"the start says enough":     {space: space()[:firstCapability]},
		"the start says too little": {space: space(power)[:firstCapability], err: errSpaceCut},
		"nothing":                   {err: errSpaceCut},
		"off the bus":               {space: ones, err: errOffBus},
		"a list that is a ring":     {space: ring},
		"a virtual GPU":             {space: space(power, virtual(driver("550.90.05", "r550_00"))), want: VGPU{true, "550.90.05", "r550_00"}},
		"other records first":       {space: space(virtual(record(1, "abc"), record(7, ""), driver("1.2", "b"))), want: VGPU{true, "1.2", "b"}},
		"fields without an end":     {space: space(virtual(driver("0123456789", "abcdefghij"))), want: VGPU{true, "0123456789", "abcdefghij"}},
		"no record":                 {space: space(virtual()), want: VGPU{Present: true}},
		"a record that is cut":      {space: space(virtual(driver("1.2", "b")[:12])), want: VGPU{Present: true}},
		"a record of no length":     {space: space(virtual([]byte{1, 0}, driver("1.2", "b"))), want: VGPU{Present: true}},
		"a record beyond the end":   {space: space(virtual([]byte{1, 200}, driver("1.2", "b"))), want: VGPU{Present: true}},
		"no record of the driver":   {space: space(virtual([]byte{1, 2})), want: VGPU{Present: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseVGPU(test.space)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("got %+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
		})
	}
}

func FuzzParseVGPU(f *testing.F) {
	f.Add(space(virtual(driver("550.90.05", "r550_00"))))
	f.Add(space(virtual(record(1, "abc"), driver("1", "2"))))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := parseVGPU(content)
		if !got.Present && (got.DriverVersion != "" || got.DriverBranch != "") || err != nil && got.Present {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestReadHost(t *testing.T) {
	n := newNode(t, "h100x8")
	snapshot := n.scan()
	sys := filepath.Join(n.machine.Root(), "sys")
	want := Host{Machine: "DGXH100", Classes: map[gpu.UUID]uint32{}, VGPU: &VGPU{}}
	for i := range snapshot.GPUs {
		want.Classes[snapshot.GPUs[i].UUID] = 0x030200
	}
	got := ReadHost(sys, snapshot)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// One card of eight is a virtual one; another is off the bus.
	card := snapshot.GPUs[5]
	config := filepath.Join(sys, "bus/pci/devices", card.PCI.String(), "config")
	if err := n.machine.Inject(sim.Fault{GPU: string(snapshot.GPUs[1].UUID), OffBus: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, space(virtual(driver("1.2", "b"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := ReadHost(sys, snapshot).VGPU; got == nil || *got != (VGPU{true, "1.2", "b"}) {
		t.Errorf("got %+v; want the virtual card", got)
	}
	if got := ReadHost(t.TempDir(), snapshot); got.VGPU != nil || got.Machine != "" || len(got.Classes) != 0 {
		t.Errorf("of an empty sysfs: %+v; want nothing", got)
	}
}
