package gpulabels

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
)

func TestFamilies(t *testing.T) {
	got := map[string]string{}
	for major := range 16 {
		for _, minor := range []int{0, 5, 9} {
			v := gpu.Version{Major: major, Minor: minor}
			got[v.String()] = family(v)
		}
	}
	want := map[string]string{}
	for major, families := range map[int][3]string{
		0: {}, 1: {"tesla"}, 2: {"fermi"}, 3: {"kepler"}, 4: {}, 5: {"maxwell"}, 6: {"pascal"}, 7: {"volta", "turing", "turing"},
		8: {"ampere", "ampere", "ada-lovelace"}, 9: {"hopper"}, 10: {"blackwell"}, 11: {}, 12: {"blackwell"}, 13: {"rubin"}, 14: {}, 15: {},
	} {
		for i, minor := range []int{0, 5, 9} {
			name := families[i]
			for _, other := range []string{families[0], "undefined"} {
				if name == "" {
					name = other
				}
			}
			want[gpu.Version{Major: major, Minor: minor}.String()] = name
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// space returns a configuration space with capabilities from 0x40 on, one after the other.
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

// virtual returns a virtual GPU's capability with some records.
func virtual(records ...[]byte) []byte {
	out := []byte{vendorCapability, 0, 0, 'V', 'F'}
	for _, record := range records {
		out = append(out, record...)
	}
	out[2] = byte(len(out))
	return out
}

// record returns a record of a type; its length includes its header.
func record(kind byte, data string) []byte {
	return append([]byte{kind, byte(recordHead + len(data))}, data...)
}

func driver(version, branch string) []byte {
	data := make([]byte, 2*driverField)
	copy(data, version)
	copy(data[driverField:], branch)
	return record(driverRecord, string(data))
}

// reported is what a virtual GPU reports about its hypervisor's driver.
func reported(version, branch string) labelset.VGPU {
	return labelset.VGPU{Present: true, DriverVersion: version, DriverBranch: branch}
}

func TestVirtualGPU(t *testing.T) {
	ones := make([]byte, minSpace)
	for i := range ones {
		ones[i] = 0xff
	}
	ring := space([]byte{0x10, 0, 0, 0})
	ring[firstCapability+1] = firstCapability
	power := []byte{0x01, 0, 0, 0, 0, 0, 0, 0}
	for name, test := range map[string]struct {
		space []byte
		want  labelset.VGPU
		err   error
	}{
		"a physical GPU":            {space: space(power, []byte{0x05, 0, 0, 0}, []byte{vendorCapability, 0, 8, 0, 0, 0, 0, 0})},
		"no capabilities":           {space: space()},
		"the start says enough":     {space: space()[:firstCapability]},
		"the start says too little": {space: space(power)[:firstCapability], err: errSpaceCut},
		"nothing":                   {err: errSpaceCut},
		"off the bus":               {space: ones, err: errOffBus},
		"a list with a cycle":       {space: ring},
		"a virtual GPU":             {space: space(power, virtual(driver("550.90.05", "r550_00"))), want: reported("550.90.05", "r550_00")},
		"other records first":       {space: space(virtual(record(1, "abc"), record(7, ""), driver("1.2", "b"))), want: reported("1.2", "b")},
		"fields without an end":     {space: space(virtual(driver("0123456789", "abcdefghij"))), want: reported("0123456789", "abcdefghij")},
		"no record":                 {space: space(virtual()), want: labelset.VGPU{Present: true}},
		"a record that is cut":      {space: space(virtual(driver("1.2", "b")[:12])), want: labelset.VGPU{Present: true}},
		"a record of no length":     {space: space(virtual([]byte{1, 0}, driver("1.2", "b"))), want: labelset.VGPU{Present: true}},
		"a record beyond the end":   {space: space(virtual([]byte{1, 200}, driver("1.2", "b"))), want: labelset.VGPU{Present: true}},
		"no record of the driver":   {space: space(virtual([]byte{1, 2})), want: labelset.VGPU{Present: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Vendor{}.VirtualGPU(test.space)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("got %+v, %v; want %+v, %v", got, err, test.want, test.err)
			}
		})
	}
}

func FuzzVirtualGPU(f *testing.F) {
	f.Add(space(virtual(driver("550.90.05", "r550_00"))))
	f.Add(space(virtual(record(1, "abc"), driver("1", "2"))))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := Vendor{}.VirtualGPU(content)
		if !got.Present && (got.DriverVersion != "" || got.DriverBranch != "") || err != nil && got.Present {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}
