package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestRulesRefused compares the whole error of each mistake, the part behind "agent.yaml:1: ".
func TestRulesRefused(t *testing.T) {
	long := "berth.dev/" + strings.Repeat("x", 50)
	tests := map[string]struct {
		file string
		want string
	}{
		"an API that does not exist": {
			`gpus: [{allocation: {api: DRA}}]`,
			`gpus[0].allocation.api: "DRA" is unknown (did you mean dra?)`,
		},
		"DRA with a name of the device plugin": {
			`gpus: [{resourceName: example.com/gpu, allocation: {api: dra}}]`,
			"gpus[0].resourceName: with DRA the resource name belongs to the DeviceClass (remove it, and set extendedResourceName in the DeviceClass)",
		},
		"DRA with replicas": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 2}, allocation: {api: dra}}]`,
			"gpus[0].sharing: with DRA the claim says how a device is shared (remove sharing)",
		},
		"DRA without CDI": {
			"gpus: [{allocation: {api: dra}}]\ndeviceListStrategy: [envvar]",
			"gpus[0].allocation.api: DRA injects devices through CDI, and deviceListStrategy does not use it (add cdi-cri to deviceListStrategy)",
		},
		"an API to be chosen, with a name of the device plugin": {
			`gpus: [{allocation: {api: auto}, resourceName: example.com/gpu}]`,
			"gpus[0].resourceName: with DRA the resource name belongs to the DeviceClass (remove it, and set extendedResourceName in the DeviceClass)",
		},
		"an API to be chosen, with MIG on demand": {
			`gpus: [{allocation: {api: auto}, dynamicMIG: true}]`,
			"gpus[0].dynamicMIG: only claims create MIG devices on demand (set allocation: {api: dra}, or remove dynamicMIG)",
		},
		"DRA of excluded GPUs": {
			`gpus: [{exclude: true, allocation: {api: dra}}]`,
			"gpus[0].allocation: an excluded GPU is not allocated (remove allocation, or exclude)",
		},
		"dynamic MIG through the device plugin": {
			`gpus: [{dynamicMIG: true}]`,
			"gpus[0].dynamicMIG: only claims create MIG devices on demand (set allocation: {api: dra}, or remove dynamicMIG)",
		},
		"dynamic MIG with a layout": {
			`gpus: [{dynamicMIG: true, allocation: {api: dra}, mig: {layout: all-balanced}}]`,
			"gpus[0].dynamicMIG: a GPU has either a layout or MIG devices on demand (remove mig, or dynamicMIG)",
		},
		"dynamic MIG with replicas": {
			`gpus: [{dynamicMIG: true, allocation: {api: dra}, sharing: {mode: timeSlicing, replicas: 2}}]`,
			"gpus[0].sharing: with DRA the claim says how a device is shared (remove sharing)",
		},
		"dynamic MIG of excluded GPUs": {
			`gpus: [{dynamicMIG: true, exclude: true}]`,
			"gpus[0].exclude: an excluded GPU has no resourceName, mig, dynamicMIG or sharing (remove those, or exclude)",
		},
		"no replicas": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 0}}]`,
			"gpus[0].sharing.replicas: 0 is less than 1 (write how many containers may share a device; 1 means that it is not shared)",
		},
		"replicas missing": {
			`gpus: [{sharing: {mode: timeSlicing}}]`,
			"gpus[0].sharing.replicas: is missing (write how many containers may share a device)",
		},
		"replicas absurd": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 1000000}}]`,
			"gpus[0].sharing.replicas: 1000000 is more than 1000 (write how many containers may share a device)",
		},
		"more replicas than the kubelet would take": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 1001}}]`,
			"gpus[0].sharing.replicas: 1001 is more than 1000 (write how many containers may share a device)",
		},
		"more replicas than any MPS server has clients": {
			`gpus: [{sharing: {mode: mps, replicas: 49}}]`,
			"gpus[0].sharing.replicas: 49 is more than the 48 clients that an MPS server can have (write 48 or less, or share by timeSlicing)",
		},
		"a resource name that the kubelet would refuse": {
			`gpus: [{resourceName: nvidia.com/GPU}]`,
			`gpus[0].resourceName: "nvidia.com/GPU" is not a resource name: the part "GPU" after the slash must be lower-case letters, digits, dashes and dots, each part with a letter or digit at both ends (write it as domain/name, such as nvidia.com/gpu)`,
		},
		"mode missing": {
			`gpus: [{sharing: {replicas: 2}}]`,
			"gpus[0].sharing.mode: is missing (write timeSlicing or mps)",
		},
		"unknown mode": {
			`gpus: [{sharing: {mode: timeslice, replicas: 2}}]`,
			`gpus[0].sharing.mode: "timeslice" is unknown (did you mean timeSlicing?)`,
		},
		"mode of nothing": {
			`gpus: [{sharing: {mode: vgpu, replicas: 2}}]`,
			`gpus[0].sharing.mode: "vgpu" is unknown (write one of: mps, timeSlicing)`,
		},
		"MPS on MIG devices": {
			`migDevices: [{sharing: {mode: mps, replicas: 2}}]`,
			"migDevices[0].sharing.mode: MPS does not run on MIG devices (use timeSlicing, or mps in a rule of gpus for GPUs without MIG)",
		},
		"time slice with MPS": {
			`gpus: [{sharing: {mode: mps, replicas: 2, timeSlice: short}}]`,
			"gpus[0].sharing.timeSlice: a time slice has no meaning with mode mps (remove timeSlice, or set mode: timeSlicing)",
		},
		"time slice of a MIG device": {
			`migDevices: [{sharing: {mode: timeSlicing, replicas: 2, timeSlice: short}}]`,
			"migDevices[0].sharing.timeSlice: a time slice is a setting of a whole GPU, not of its MIG devices (remove timeSlice)",
		},
		"unknown time slice": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 2, timeSlice: shrt}}]`,
			`gpus[0].sharing.timeSlice: "shrt" is unknown (did you mean short?)`,
		},
		"limits without MPS": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 2, mps: {pinnedMemoryMiB: 1024}}}]`,
			"gpus[0].sharing.mps: these limits need mode mps: time-slicing limits neither memory nor threads (set mode: mps, or remove mps)",
		},
		"percentage too high": {
			`gpus: [{sharing: {mode: mps, replicas: 2, mps: {activeThreadPercentage: 101}}}]`,
			"gpus[0].sharing.mps.activeThreadPercentage: 101 is not a percentage from 1 to 100 (remove it for 100 divided by the replicas)",
		},
		"percentage zero": {
			`gpus: [{sharing: {mode: mps, replicas: 2, mps: {activeThreadPercentage: 0}}}]`,
			"gpus[0].sharing.mps.activeThreadPercentage: 0 is not a percentage from 1 to 100 (remove it for 100 divided by the replicas)",
		},
		"memory limit of no meaning": {
			`gpus: [{sharing: {mode: mps, replicas: 2, mps: {pinnedMemoryMiB: -2}}}]`,
			"gpus[0].sharing.mps.pinnedMemoryMiB: -2 is not a limit (write MiB, or -1 for no limit, or remove it for an equal part of the GPU's memory)",
		},
		"more memory than a daemon is given": {
			`gpus: [{sharing: {mode: mps, replicas: 2, mps: {pinnedMemoryMiB: 1073741825}}}]`,
			"gpus[0].sharing.mps.pinnedMemoryMiB: 1073741825 is not a limit (write MiB, or -1 for no limit, or remove it for an equal part of the GPU's memory)",
		},
		"long name": {
			`gpus: [{resourceName: ` + long + `xxxx}]`,
			`gpus[0].resourceName: "` + long + `xxxx" has 64 characters, at most 63 are allowed (shorten it)`,
		},
		"long name once it is shared": {
			`gpus: [{resourceName: ` + long + `, sharing: {mode: timeSlicing, replicas: 2, renameByDefault: true}}]`,
			`gpus[0].sharing.renameByDefault: "` + long + `.shared" has 67 characters, at most 63 are allowed (give a shorter name)`,
		},
		"long default name once it is shared": {
			`{resourceName: ` + long + `, migStrategy: single, migDevices: [{sharing: {mode: timeSlicing, replicas: 2, renameByDefault: true}}]}`,
			`migDevices[0].sharing.renameByDefault: "` + long + `.shared" has 67 characters, at most 63 are allowed (give a shorter name)`,
		},
		"name of shares": {
			`gpus: [{sharing: {mode: timeSlicing, replicas: 2, resourceName: shares}}]`,
			`gpus[0].sharing.resourceName: "shares" is not a resource name (write it as domain/name, such as nvidia.com/gpu)`,
		},
		"layout and devices": {
			`gpus: [{mig: {layout: all-balanced, devices: {1g.10gb: 1}}}]`,
			"gpus[0].mig: layout and devices exclude each other (keep one)",
		},
		"neither layout nor devices": {
			`gpus: [{mig: {}}]`,
			"gpus[0].mig: has neither a layout nor devices (write layout: all-enabled for a GPU with MIG and no devices, or remove mig to leave the GPU unchanged)",
		},
		"unknown layout": {
			`{migLayouts: {training: [{devices: all, mig-enabled: false}]}, gpus: [{mig: {layout: trainin}}]}`,
			`gpus[0].mig.layout: "trainin" is not a layout (did you mean training?)`,
		},
		"misspelled layout of the hardware": {
			`gpus: [{mig: {layout: all-balance}}]`,
			`gpus[0].mig.layout: "all-balance" is not a layout (did you mean all-balanced?)`,
		},
		"layout with a profile's own plus": {
			`gpus: [{mig: {layout: all-1g.10gb+me}}]`,
			`gpus[0].mig.layout: "all-1g.10gb+me" is not a layout (there are: all-PROFILE, all-balanced, all-disabled, all-enabled)`,
		},
		"excluded and more": {
			`gpus: [{exclude: true, resourceName: berth.dev/gpu}]`,
			"gpus[0].exclude: an excluded GPU has no resourceName, mig, dynamicMIG or sharing (remove those, or exclude)",
		},
		"sharing and MIG": {
			`gpus: [{mig: {devices: {1g.10gb: 7}}, sharing: {mode: timeSlicing, replicas: 2}}]`,
			"gpus[0].sharing: mig and sharing exclude each other: a GPU with MIG enabled is not advertised as a whole (share its MIG devices by a rule of migDevices)",
		},
		"profile of no form": {
			`gpus: [{mig: {devices: {1g10gb: 7}}}]`,
			`gpus[0].mig.devices[1g10gb]: "1g10gb" is not the name of a MIG profile (write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me)`,
		},
		"fewer than no devices": {
			`gpus: [{mig: {devices: {1g.10gb: -1}}}]`,
			"gpus[0].mig.devices[1g.10gb]: -1 is not a number of MIG devices (write 0 or more)",
		},
		"profile pattern of no form": {
			`migDevices: [{select: {profile: ["1g 10gb"]}}]`,
			`migDevices[0].select.profile[0]: "1g 10gb" is not the name of a MIG profile (write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me)`,
		},
		"UUID of no form": {
			`gpus: [{select: {uuid: [GPU-0]}}]`,
			`gpus[0].select.uuid[0]: "GPU-0" is not the UUID of a GPU (write it as nvidia-smi -L prints it)`,
		},
		"UUID of a GPU for a MIG device": {
			`migDevices: [{select: {uuid: [GPU-11111111-2222-3333-4444-555555555555]}}]`,
			`migDevices[0].select.uuid[0]: "GPU-11111111-2222-3333-4444-555555555555" is not the UUID of a MIG device (write it as nvidia-smi -L prints it)`,
		},
		"negative index": {
			`gpus: [{select: {index: [-1]}}]`,
			"gpus[0].select.index[0]: -1 is not the index of a GPU (GPUs are numbered from 0, see nvidia-smi -L)",
		},
		"index of a MIG device": {
			`migDevices: [{select: {index: ["3"]}}]`,
			`migDevices[0].select.index[0]: "3" is not the index of a MIG device (write N:M, the GPU's index and the MIG device's, such as 0:1)`,
		},
		"negative count": {
			`gpus: [{select: {count: -1}}]`,
			"gpus[0].select.count: -1 is not a number of devices (write 1 or more, or 0 for all)",
		},
		"selection that a template left empty": {
			`gpus: [{select: {index: []}, exclude: true}]`,
			"gpus[0].select.index: an empty list selects nothing (remove it to select all)",
		},
		"rule behind one that selects everything": {
			`gpus: [{resourceName: berth.dev/a}, {select: {index: [0]}, exclude: true}]`,
			"gpus[1]: nothing reaches this rule: gpus[0] selects all that it selects, and the first that matches decides (put the narrower one first, or remove one)",
		},
		"rule behind a wider pattern": {
			`migDevices: [{select: {profile: ["1g.*"]}}, {select: {profile: ["1g.10gb", "1g.*+me"], gpu: [0]}}]`,
			"migDevices[1]: nothing reaches this rule: migDevices[0] selects all that it selects, and the first that matches decides (put the narrower one first, or remove one)",
		},
		"rules of MIG devices that are not advertised": {
			`{migStrategy: none, migDevices: [{resourceName: berth.dev/slice}]}`,
			"migDevices: migStrategy none advertises no MIG devices, so these rules would do nothing (set migStrategy: mixed or single, or remove them)",
		},
		"two channels": {
			`imex: {channelIDs: [0, 1]}`,
			"imex.channelIDs: [0 1] is neither [] nor [0] (a node has one channel, write [0])",
		},
		"relative mpsRoot": {
			`mpsRoot: run/mps`,
			`mpsRoot: "run/mps" is not an absolute path (begin it with /)`,
		},
		"ConfigMap without a namespace": {
			`migConfigMap: layouts`,
			`migConfigMap: "layouts" is not the name of a ConfigMap (write it as NAMESPACE/NAME, such as berth/mig-layouts)`,
		},
		"unknown MIG strategy": {
			`migStrategy: mixd`,
			`migStrategy: "mixd" is unknown (did you mean mixed?)`,
		},
		"unknown policy": {
			`sharedDevicesAllocationPolicy: spread`,
			`sharedDevicesAllocationPolicy: "spread" is unknown (write one of: distributed, packed)`,
		},
		"layout for a model": {
			`migLayouts: {a: [{device-filter: A100, devices: all, mig-enabled: false}]}`,
			`migLayouts[a][0].device-filter[0]: "A100" is not the PCI ID of a model (write device and vendor as 0xDDDDVVVV, such as "0x233010DE", or with the subsystem as 0xDDDDVVVV:0xSSSSVVVV)`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("agent.yaml", []byte(tc.file), nil)
			if want := "agent.yaml:1: " + tc.want; err == nil || err.Error() != want {
				t.Errorf("Parse returned\n%v\nwant\n%s", err, want)
			}
		})
	}
}

// TestRulesAccepted has rules that look like the mistakes above and are valid.
func TestRulesAccepted(t *testing.T) {
	tests := map[string]string{
		"one replica":                      `gpus: [{sharing: {mode: mps, replicas: 1}}]`,
		"layouts that the hardware gives":  `gpus: [{select: {index: [0]}, mig: {layout: all-1g.24gb-me}}, {mig: {layout: all-1g.10gb.me.all}}]`,
		"a layout that a ConfigMap gives":  `{migConfigMap: berth/layouts, gpus: [{mig: {layout: training}}]}`,
		"a number, then the rest":          `gpus: [{select: {count: 2}, exclude: true}, {resourceName: berth.dev/gpu}]`,
		"a narrow pattern, then a wider":   `gpus: [{select: {model: ["NVIDIA A100*"]}}, {select: {model: ["NVIDIA*"]}}, {}]`,
		"no limit of memory":               `gpus: [{sharing: {mode: mps, replicas: 2, mps: {pinnedMemoryMiB: -1, activeThreadPercentage: 100}}}]`,
		"a compute instance's profile":     `gpus: [{mig: {devices: {1c.2g.20gb: 2, 1g.10gb+me: 1, 1g.24gb-me: 0}}}]`,
		"a MIG device of an old driver":    `migDevices: [{select: {uuid: [MIG-GPU-11111111-2222-3333-4444-555555555555/1/0]}}]`,
		"channel 0":                        `imex: {channelIDs: [0], required: true}`,
		"a date for a node's name as text": `nodeName: 2001-01-01`,
	}
	for name, file := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("agent.yaml", []byte(file), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSharingDefaults(t *testing.T) {
	got, err := Parse("", []byte(`
gpus:
- {select: {index: [0]}, sharing: {mode: timeSlicing, replicas: 2}}
- {select: {index: [1]}, sharing: {mode: mps, replicas: 2}}
- {sharing: {mode: mps, replicas: 2, failRequestsGreaterThanOne: false}}
migDevices: [{sharing: {mode: timeSlicing, replicas: 2}}]
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	type filled struct {
		fail  bool
		slice v1alpha1.TimeSlice
	}
	of := func(s *v1alpha1.Sharing) filled { return filled{*s.FailRequestsGreaterThanOne, s.TimeSlice} }
	for i, want := range []filled{{false, v1alpha1.TimeSliceDefault}, {true, ""}, {false, ""}} {
		if got := of(got.GPUs[i].Sharing); got != want {
			t.Errorf("gpus[%d] got the defaults %v, want %v", i, got, want)
		}
	}
	if got := of(got.MIGDevices[0].Sharing); got != (filled{}) {
		t.Errorf("migDevices[0] got the defaults %v, want none to fail and no time slice", got)
	}
}

// slowMatch is the definition of a pattern, letter by letter.
func slowMatch(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return slowMatch(pattern[1:], text) || text != "" && slowMatch(pattern, text[1:])
	}
	return text != "" && pattern[0] == text[0] && slowMatch(pattern[1:], text[1:])
}

func TestMatchesAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern, text := rapid.StringMatching(`[ab*]{0,7}`).Draw(t, "pattern"), rapid.StringMatching(`[ab]{0,8}`).Draw(t, "text")
		if got, want := matches(pattern, text), slowMatch(pattern, text); got != want {
			t.Errorf("matches(%q, %q) = %v, want %v", pattern, text, got, want)
		}
	})
}

// TestCoveringPatterns checks that a pattern that covers another one matches every text that the other one matches.
func TestCoveringPatterns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{1,4}`)
		wide, narrow := pattern.Draw(t, "wide"), pattern.Draw(t, "narrow")
		text := rapid.StringMatching(`[ab]{0,6}`).Draw(t, "text")
		if coversPatterns([]string{wide}, []string{narrow}) && matches(narrow, text) && !matches(wide, text) {
			t.Errorf("%q is said to cover %q and does not match %q", wide, narrow, text)
		}
	})
}
