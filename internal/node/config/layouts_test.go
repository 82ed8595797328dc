package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/mig"
)

func TestParseMIGLayouts(t *testing.T) {
	got, err := ParseMIGLayouts("layouts.yaml", []byte(`
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-enabled:
  - {devices: all, mig-enabled: true, mig-devices: {}}
  all-1g.10gb:
  - device-filter: ["0x20B210DE", "0x233010DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      1g.10gb: 7
  half:
  - device-filter: "0x233010DE"
    devices: [0, 1]
    mig-enabled: true
    mig-devices: {"1g.10gb+me": 1, 3g.40gb: 1}
  - {devices: [2, 3], mig-enabled: false}
`))
	if err != nil {
		t.Fatal(err)
	}
	all := v1alpha1.AllOrIndices{All: true}
	some := func(indices ...int) v1alpha1.AllOrIndices { return v1alpha1.AllOrIndices{Indices: indices} }
	want := map[string][]v1alpha1.MIGLayoutEntry{
		"all-disabled": {{Devices: all}},
		"all-enabled":  {{Devices: all, MIGEnabled: true, MIGDevices: map[string]int{}}},
		"all-1g.10gb": {{DeviceFilter: v1alpha1.StringOrList{"0x20B210DE", "0x233010DE"}, Devices: all,
			MIGEnabled: true, MIGDevices: map[string]int{"1g.10gb": 7}}},
		"half": {
			{DeviceFilter: v1alpha1.StringOrList{"0x233010DE"}, Devices: some(0, 1), MIGEnabled: true,
				MIGDevices: map[string]int{"1g.10gb+me": 1, "3g.40gb": 1}},
			{Devices: some(2, 3)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the layouts (-want +got):\n%s", diff)
	}
}

// TestMIGLayoutMistakes compares the whole error of each mistake, the part behind "layouts.yaml:".
func TestMIGLayoutMistakes(t *testing.T) {
	entry := func(fields string) string { return "version: v1\nmig-configs:\n  a:\n  - {" + fields + "}\n" }
	tests := map[string]struct{ file, want string }{
		"no version": {"mig-configs: {a: [{devices: all, mig-enabled: false}]}", " version: is missing (write version: v1)"},
		"another version": {"version: v2\nmig-configs: {a: [{devices: all, mig-enabled: false}]}",
			`1: version: "v2" is unknown (write version: v1)`},
		"no layouts": {"version: v1",
			" mig-configs: is missing (write the layouts under mig-configs, each a list of entries under its name)"},
		"empty layouts": {"version: v1\nmig-configs: {}",
			"2: mig-configs: there is no layout (write at least one, such as all-disabled: [{devices: all, mig-enabled: false}])"},
		"all-zero counts": {entry("devices: all, mig-enabled: true, mig-devices: {1g.10gb: 0, 2g.20gb: 0}"),
			"4: mig-configs[a][0].mig-devices: every count is 0 (write at least one device, or {} for MIG enabled without devices)"},
		"unknown key": {"version: v1\nmig-config: {}", "2: mig-config: unknown key (did you mean mig-configs?)"},
		"hooks": {
			"version: v1\nhooks: {}\nmig-configs: {}",
			"2: hooks: unknown key (hooks are not run: Berth does not stop or start programs of the node for a MIG change)",
		},
		"unknown key of an entry": {
			entry("devices: all, mig-enable: true"),
			"4: mig-configs[a][0].mig-enable: unknown key (did you mean mig-enabled?)",
		},
		"no entries": {
			"version: v1\nmig-configs:\n  a: []",
			"3: mig-configs[a]: this layout has no entries (write at least one, such as {devices: all, mig-enabled: false})",
		},
		"devices missing": {
			entry("mig-enabled: false"),
			"4: mig-configs[a][0].devices: is missing (write all, or a list of indices such as [0, 1])",
		},
		"devices of no form": {
			entry("devices: some, mig-enabled: false"),
			`4: mig-configs[a][0].devices: want all or a list of indices such as [0, 1], got "some"`,
		},
		"devices with a gap": {
			entry("devices: [0, ], mig-enabled: false, mig-devices: , device-filter: [~]"),
			"4: mig-configs[a][0].device-filter[0]: this entry is empty (fill it in, or remove it)",
		},
		"negative index": {
			entry("devices: [0, -1], mig-enabled: false"),
			"4: mig-configs[a][0].devices[1]: -1 is not the index of a GPU (GPUs are numbered from 0, see nvidia-smi -L)",
		},
		"enabled or not": {
			entry("devices: all"),
			"4: mig-configs[a][0].mig-enabled: is missing (write true or false)",
		},
		"enabled without devices": {
			entry("devices: all, mig-enabled: true"),
			`4: mig-configs[a][0].mig-devices: is missing (write the number of devices by profile, such as {"1g.10gb": 7}, or {} for none)`,
		},
		"disabled with devices": {
			entry("devices: all, mig-enabled: false, mig-devices: {1g.10gb: 1}"),
			"4: mig-configs[a][0].mig-devices: mig-enabled is false, so there can be no MIG devices (set mig-enabled: true, or remove mig-devices)",
		},
		"no profile": {
			entry("devices: all, mig-enabled: true, mig-devices: {small: 1}"),
			`4: mig-configs[a][0].mig-devices[small]: "small" is not the name of a MIG profile (write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me)`,
		},
		"a count that is text": {
			entry("devices: all, mig-enabled: true, mig-devices: {1g.10gb: all}"),
			`4: mig-configs[a][0].mig-devices[1g.10gb]: want a whole number, got "all"`,
		},
		"PCI ID without quotes": {
			entry("device-filter: [0x233010DE], devices: all, mig-enabled: false"),
			`4: mig-configs[a][0].device-filter[0]: want text, got "0x233010DE" (put it in quotes: "0x233010DE")`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseMIGLayouts("layouts.yaml", []byte(tc.file))
			if want := "layouts.yaml:" + tc.want; err == nil || err.Error() != want {
				t.Errorf("ParseMIGLayouts returned\n%v\nwant\n%s", err, want)
			}
		})
	}
}

// TestDeviceFilterWithSubsystem checks that boards of one model are distinguished by their subsystem, as in mig-parted
// since v0.15.
func TestDeviceFilterWithSubsystem(t *testing.T) {
	layouts, err := ParseMIGLayouts("layouts", []byte(`version: v1
mig-configs:
  a:
  - device-filter: ["0x233010DE:0x16C110DE", "0x20B210DE"]
    devices: all
    mig-enabled: false
`))
	if err != nil {
		t.Fatal(err)
	}
	layout := Layout(layouts["a"])
	for _, test := range []struct {
		device    uint32
		subsystem uint32
		named     bool
	}{{0x233010DE, 0x16C110DE, true}, {0x233010DE, 0x16C210DE, false}, {0x20B210DE, 0, true}, {0x20B010DE, 0x16C110DE, false}} {
		if _, named := layout.Wanted(mig.GPU{DeviceID: test.device, SubsystemID: test.subsystem, Capable: true}); named != test.named {
			t.Errorf("%#x:%#x is named: %v, want %v", test.device, test.subsystem, named, test.named)
		}
	}
}
