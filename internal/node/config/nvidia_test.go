package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	wholeUUID = "GPU-11111111-2222-3333-4444-555555555555"
	partUUID  = "MIG-11111111-2222-3333-4444-555555555555"
)

func timeSliced(replicas int) *v1alpha1.Sharing {
	fail := false
	return &v1alpha1.Sharing{Mode: v1alpha1.SharingTimeSlicing, Replicas: replicas, FailRequestsGreaterThanOne: &fail,
		TimeSlice: v1alpha1.TimeSliceDefault}
}

// onMIG is the configuration of time-slicing on MIG devices, which have no time slice of their own.
func onMIG(s *v1alpha1.Sharing) *v1alpha1.Sharing {
	s.TimeSlice = ""
	return s
}

func mps(replicas int) *v1alpha1.Sharing {
	fail := true
	return &v1alpha1.Sharing{Mode: v1alpha1.SharingMPS, Replicas: replicas, FailRequestsGreaterThanOne: &fail}
}

func renamed(s *v1alpha1.Sharing, name string) *v1alpha1.Sharing {
	s.ResourceName = name
	return s
}

// TestNVIDIAFiles has the kinds of files that NVIDIA documents; want changes the configuration of a file that has only
// a version.
func TestNVIDIAFiles(t *testing.T) {
	type gpus = []v1alpha1.GPURule
	type migs = []v1alpha1.MIGDeviceRule
	tests := map[string]struct {
		file  string
		want  func(c *v1alpha1.AgentConfig)
		notes []string
	}{
		"nothing but a version": {file: "", want: func(*v1alpha1.AgentConfig) {}},
		"the flags, all at their defaults": {
			file: `
flags:
  migStrategy: none
  failOnInitError: true
  mpsRoot: ""
  nvidiaDriverRoot: /
  nvidiaDevRoot: /
  gdrcopyEnabled: false
  gdsEnabled: false
  mofedEnabled: false
  useNodeFeatureAPI: true
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: envvar
    deviceIDStrategy: uuid
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: distributed
resources:
sharing:
imex:
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}
				c.Labels.Output = v1alpha1.LabelsNodeFeature
			},
		},
		"the flags, all at another value": {
			file: `
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /run/nvidia/dev
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, volume-mounts]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.example.com/
    nvidiaCTKPath: /usr/local/bin/nvidia-ctk
    containerDriverRoot: /host/run/nvidia/driver
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 30s
    outputFile: /tmp/gfd
    machineTypeFile: /tmp/machine
imex: {channelIDs: [0], required: true}
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategyMixed
				c.MPSRoot, c.DriverRoot, c.DevRoot, c.HostRoot = "/run/nvidia/mps", "/run/nvidia/driver", "/run/nvidia/dev", "/host"
				c.GDRCopy, c.GDS, c.MOFED, c.PassDeviceSpecs = true, true, true, true
				c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar, v1alpha1.StrategyVolumeMounts}
				c.DeviceIDStrategy, c.SharedDevicesAllocationPolicy = v1alpha1.IDStrategyIndex, v1alpha1.PolicyPacked
				c.CDIAnnotationPrefix = "cdi.example.com/"
				c.IMEX = v1alpha1.IMEX{ChannelIDs: []int{0}, Required: true}
				c.Labels = v1alpha1.Labels{Output: v1alpha1.LabelsFile, Dir: "/tmp", NoTimestamp: true}
			},
			notes: []string{
				"nvidia.yaml:19: flags.plugin.nvidiaCTKPath: has no effect: Berth's CDI spec names a hook program of its own (see hookDir of Berth's AgentConfig)",
				"nvidia.yaml:26: flags.gfd.outputFile: Berth's file is called berth-gpu, in this directory (delete the file that GPU feature discovery left)",
				"nvidia.yaml:23: flags.gfd.oneshot: has no effect: the agent updates the labels as long as it runs",
				"nvidia.yaml:25: flags.gfd.sleepInterval: has no effect: labels are written when they change",
				"nvidia.yaml:27: flags.gfd.machineTypeFile: has no effect: the machine's name is read from /sys/class/dmi/id/product_name",
			},
		},
		"the gpu operator's strategies": {
			file: "flags: {plugin: {deviceListStrategy: \"cdi-annotations,cdi-cri\", passDeviceSpecs: true}}",
			want: func(*v1alpha1.AgentConfig) {},
			notes: []string{
				"nvidia.yaml:2: flags.plugin.deviceListStrategy: cdi-annotations has no effect beside cdi-cri: the runtime would inject every device twice (remove cdi-annotations)",
				"nvidia.yaml:2: flags.plugin.passDeviceSpecs: has no effect with CDI: the CDI spec already names the device nodes (remove it, or set deviceListStrategy: envvar)",
			},
		},
		"the host's root where the driver's is /": {
			file: "flags: {plugin: {containerDriverRoot: /host}}",
			want: func(c *v1alpha1.AgentConfig) { c.HostRoot = "/host" },
		},
		"the driver's root where it is on the host": {
			file: "flags: {nvidiaDriverRoot: /run/nvidia/driver/, plugin: {containerDriverRoot: /run/nvidia/driver}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.DriverRoot, c.DevRoot = "/run/nvidia/driver/", "/run/nvidia/driver/"
			},
		},
		"the driver's root in a place of its own": {
			file: "flags: {nvidiaDriverRoot: /run/nvidia/driver, plugin: {containerDriverRoot: /drv}}",
			want: func(c *v1alpha1.AgentConfig) { c.DriverRoot, c.DevRoot = "/run/nvidia/driver", "/run/nvidia/driver" },
			notes: []string{
				"nvidia.yaml:2: flags.plugin.containerDriverRoot: has no effect: Berth looks for the driver's root below the host's root, at hostRoot followed by nvidiaDriverRoot (mount the host's root into the agent and set --host-root)",
			},
		},
		"sleeping for ever": {file: "flags: {gfd: {sleepInterval: infinite}}",
			want: func(*v1alpha1.AgentConfig) {}, notes: sleepNote()},
		"sleeping in nanoseconds": {file: "flags: {gfd: {sleepInterval: 60000000000}}",
			want: func(*v1alpha1.AgentConfig) {}, notes: sleepNote()},
		"labels for the worker of NFD, under Berth's name": {
			file: "flags: {useNodeFeatureAPI: false, gfd: {outputFile: /nfd/features.d/berth-gpu}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.Labels.Output, c.Labels.Dir = v1alpha1.LabelsFile, "/nfd/features.d"
			},
		},
		"labels for NFD in both ways": {
			file: "flags: {useNodeFeatureAPI: true, gfd: {outputFile: /nfd/features.d/gfd}}",
			want: func(c *v1alpha1.AgentConfig) { c.Labels.Output = v1alpha1.LabelsNodeFeature },
			notes: []string{
				"nvidia.yaml:2: flags.gfd.outputFile: has no effect beside useNodeFeatureAPI (remove one of them)",
			},
		},
		"labels without NFD": {
			file: "flags: {useNodeFeatureAPI: false, gfd: {oneshot: false, outputFile: \"\", machineTypeFile: /sys/class/dmi/id/product_name}}",
			want: func(*v1alpha1.AgentConfig) {},
		},
		"time-slicing, 10 replicas": {
			file: `
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
`,
			want: func(c *v1alpha1.AgentConfig) { c.GPUs = gpus{{Sharing: timeSliced(10)}} },
		},
		"time-slicing under another name": {
			file: "sharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 10}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				sharing := timeSliced(10)
				sharing.RenameByDefault, *sharing.FailRequestsGreaterThanOne = true, true
				c.GPUs = gpus{{Sharing: sharing}}
			},
		},
		"an explicit name": {
			file: "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, rename: gpu-slice, replicas: 2}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				sharing := renamed(timeSliced(2), "nvidia.com/gpu-slice")
				sharing.RenameByDefault = true
				c.GPUs = gpus{{Sharing: sharing}}
			},
		},
		"one replica": {
			file: "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}",
			want: func(c *v1alpha1.AgentConfig) { c.GPUs = gpus{{Sharing: timeSliced(1)}} },
		},
		"MPS, 10 replicas": {
			file: "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}",
			want: func(c *v1alpha1.AgentConfig) { c.GPUs = gpus{{Sharing: mps(10)}} },
		},
		"MPS where several may be asked": {
			file: "sharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: nvidia.com/gpu, replicas: 10, devices: 2}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				sharing := mps(10)
				*sharing.FailRequestsGreaterThanOne = false
				c.GPUs = gpus{{Select: v1alpha1.GPUSelector{Count: 2}, Sharing: sharing}}
			},
		},
		"an empty block of the other mode": {
			file: "sharing: {timeSlicing: , mps: {resources: [{name: gpu, replicas: 2}]}}",
			want: func(c *v1alpha1.AgentConfig) { c.GPUs = gpus{{Sharing: mps(2)}} },
		},
		"time-slicing of MIG devices": {
			file: `
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 8}
    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
    - {name: mig-1g.5gb.me.all, replicas: 3, rename: video}
    - {name: mig-1g.24gb-me, replicas: 4, devices: [1:0, ` + partUUID + `]}
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategyMixed
				c.GPUs = gpus{{Sharing: timeSliced(8)}}
				c.MIGDevices = migs{
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.5gb"}}, Sharing: onMIG(timeSliced(2))},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.5gb+me.all"}},
						Sharing: renamed(onMIG(timeSliced(3)), "nvidia.com/video")},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.24gb-me"}, Index: []string{"1:0"}},
						Sharing: onMIG(timeSliced(4))},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.24gb-me"}, UUID: []string{partUUID}},
						Sharing: onMIG(timeSliced(4))},
				}
			},
		},
		"one file for nodes with and without MIG": {
			file: "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: mig-1g.5gb, replicas: 2}]}}",
			want: func(c *v1alpha1.AgentConfig) { c.GPUs = gpus{{Sharing: timeSliced(2)}} },
			notes: []string{
				"nvidia.yaml:2: sharing.timeSlicing.resources[1]: has no effect: migStrategy none does not advertise nvidia.com/mig-1g.5gb (set migStrategy: mixed)",
			},
		},
		"single: the name of GPUs is that of MIG devices": {
			file: "flags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategySingle
				c.GPUs = gpus{{Sharing: timeSliced(4)}}
				c.MIGDevices = migs{{Select: v1alpha1.MIGDeviceSelector{NamedAsGPU: true}, Sharing: onMIG(timeSliced(4))}}
			},
		},
		"single: a list of both kinds": {
			file: "flags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0, \"1:0\", \"1:2\"]}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategySingle
				c.GPUs = gpus{{Select: v1alpha1.GPUSelector{Index: []int{0}}, Sharing: timeSliced(4)}}
				c.MIGDevices = migs{{Select: v1alpha1.MIGDeviceSelector{Index: []string{"1:0", "1:2"},
					NamedAsGPU: true}, Sharing: onMIG(timeSliced(4))}}
			},
		},
		"single with MPS": {
			file: "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategySingle
				c.GPUs = gpus{{Sharing: mps(4)}}
			},
			notes: []string{
				"nvidia.yaml:3: sharing.mps.resources[0]: MIG devices stay unshared: MPS does not run on them (use timeSlicing to share them too)",
			},
		},
		"devices by index and UUID": {
			file: "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0, \"2\", " + wholeUUID + "]}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.GPUs = gpus{
					{Select: v1alpha1.GPUSelector{Index: []int{0, 2}}, Sharing: timeSliced(4)},
					{Select: v1alpha1.GPUSelector{UUID: []string{wholeUUID}}, Sharing: timeSliced(4)},
				}
			},
		},
		"some GPUs in one way, the rest in another": {
			file: "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0]}, {name: gpu, replicas: 2, devices: 1}, {name: gpu, replicas: 8, devices: all}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.GPUs = gpus{
					{Select: v1alpha1.GPUSelector{Index: []int{0}}, Sharing: timeSliced(4)},
					{Select: v1alpha1.GPUSelector{Count: 1}, Sharing: timeSliced(2)},
					{Sharing: timeSliced(8)},
				}
			},
		},
		"a MIG device of an old driver": {
			file: "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 4, devices: [MIG-" + wholeUUID + "/1/0]}]}}",
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategyMixed
				c.MIGDevices = migs{{
					Select:  v1alpha1.MIGDeviceSelector{Profile: []string{"1g.5gb"}, UUID: []string{"MIG-" + wholeUUID + "/1/0"}},
					Sharing: onMIG(timeSliced(4)),
				}}
			},
			notes: []string{
				"nvidia.yaml:3: sharing.timeSlicing.resources[0].devices: MIG-GPU-… is the UUID of a MIG device in drivers before R470; later drivers do not use it (write MIG-… as nvidia-smi -L prints it)",
			},
		},
		"two named resources": {
			file: `
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  - {pattern: "*", name: nvidia.com/gpu}
sharing: {timeSlicing: {resources: [{name: a100, replicas: 4, devices: [0]}]}}
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.GPUs = gpus{
					{Select: v1alpha1.GPUSelector{Model: []string{"*A100*"}, Index: []int{0}},
						ResourceName: "nvidia.com/a100", Sharing: timeSliced(4)},
					{Select: v1alpha1.GPUSelector{Model: []string{"*A100*"}}, ResourceName: "nvidia.com/a100"},
					{ResourceName: "nvidia.com/gpu"},
				}
			},
		},
		"a named resource and the default, both shared": {
			file: `
resources: {gpus: [{pattern: "*A100*", name: gpu}, {pattern: "*T4*", name: t4}]}
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.GPUs = gpus{
					{Select: v1alpha1.GPUSelector{Model: []string{"*A100*"}}, ResourceName: "nvidia.com/gpu", Sharing: timeSliced(4)},
					{Select: v1alpha1.GPUSelector{Model: []string{"*T4*"}}, ResourceName: "nvidia.com/t4"},
					{Sharing: timeSliced(4)},
				}
			},
		},
		"named MIG resources": {
			file: `
flags: {migStrategy: mixed}
resources: {mig: [{pattern: "1g.*", name: small}, {pattern: 3g.20gb, name: large}]}
sharing: {timeSlicing: {resources: [{name: small, replicas: 2, devices: 3}, {name: mig-2g.10gb, replicas: 5}]}}
`,
			want: func(c *v1alpha1.AgentConfig) {
				c.MIGStrategy = v1alpha1.MIGStrategyMixed
				c.MIGDevices = migs{
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.*"}, Count: 3},
						ResourceName: "nvidia.com/small", Sharing: onMIG(timeSliced(2))},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"1g.*"}}, ResourceName: "nvidia.com/small"},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"3g.20gb"}}, ResourceName: "nvidia.com/large"},
					{Select: v1alpha1.MIGDeviceSelector{Profile: []string{"2g.10gb"}}, Sharing: onMIG(timeSliced(5))},
				}
			},
		},
		"named MIG resources without MIG": {
			file: "resources: {mig: [{pattern: \"1g.*\", name: small}]}\nsharing: {timeSlicing: {resources: [{name: small, replicas: 2}]}}",
			want: func(*v1alpha1.AgentConfig) {},
			notes: []string{
				"nvidia.yaml:2: resources.mig: has no effect: migStrategy none advertises no MIG devices (set migStrategy: mixed)",
				"nvidia.yaml:3: sharing.timeSlicing.resources[0]: has no effect: migStrategy none does not advertise nvidia.com/small (set migStrategy: mixed)",
			},
		},
	}
	plain, err := Parse("", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Read("nvidia.yaml", []byte("version: v1\n"+tc.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := plain.DeepCopy()
			want.MIGStrategy = v1alpha1.MIGStrategyNone
			tc.want(want)
			if diff := cmp.Diff(want, got.Config); diff != "" {
				t.Errorf("the configuration (-want +got):\n%s", diff)
			}
			// TestIgnoredFieldsAreNoted checks the other fields.
			notes := slices.DeleteFunc(got.Notes, func(note string) bool {
				return strings.Contains(note,
					"NVIDIA's device plugin ignores it")
			})
			if diff := cmp.Diff(tc.notes, notes, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the notes (-want +got):\n%s", diff)
			}
		})
	}
}

func sleepNote() []string {
	return []string{"nvidia.yaml:2: flags.gfd.sleepInterval: has no effect: labels are written when they change"}
}

// TestNVIDIAMistakes compares the whole error of each mistake, the part behind "nvidia.yaml:".
func TestNVIDIAMistakes(t *testing.T) {
	share := func(entries string) string { return "sharing: {timeSlicing: {resources: [" + entries + "]}}" }
	long := strings.Repeat("x", 50)
	tests := map[string]struct {
		file string
		want string
	}{
		"flagz":      {"flagz: {}", "2: flagz: unknown key (did you mean flags?)"},
		"migStratgy": {"flags:\n  migStratgy: mixed", "3: flags.migStratgy: unknown key (did you mean migStrategy?)"},
		"resorces":   {"sharing: {timeSlicing: {resorces: []}}", "2: sharing.timeSlicing.resorces: unknown key (did you mean resources?)"},
		"other case": {"flags: {migstrategy: mixed}", "2: flags.migstrategy: unknown key (did you mean migStrategy?)"},
		"a flag at the top": {
			"migStrategy: mixed",
			"2: migStrategy: unknown key (it belongs to flags)",
		},
		"a flag of the plugin beside the others": {
			"flags: {deviceListStrategy: envvar}",
			"2: flags.deviceListStrategy: unknown key (it belongs to flags.plugin)",
		},
		"Berth's kind too": {
			"kind: AgentConfig",
			"2: kind: unknown key (a file of NVIDIA's device plugin has a version and no apiVersion or kind, one of Berth has no version: keep one of them)",
		},
		"a mig-parted file": {
			"mig-configs: {}",
			"2: mig-configs: unknown key (a file of mig-parted belongs in a ConfigMap that migConfigMap of an AgentConfig names)",
		},
		"unknown MIG strategy": {
			"flags: {migStrategy: mixd}",
			`2: flags.migStrategy: "mixd" is unknown (did you mean mixed?)`,
		},
		"unknown list strategy": {
			"flags:\n  plugin:\n    deviceListStrategy:\n    - envvar\n    - cdi",
			`6: flags.plugin.deviceListStrategy[1]: "cdi" is unknown (write one of: cdi-annotations, cdi-cri, envvar, volume-mounts)`,
		},
		"unknown policy": {
			"flags: {plugin: {sharedDevicesAllocationPolicy: pack}}",
			`2: flags.plugin.sharedDevicesAllocationPolicy: "pack" is unknown (did you mean packed?)`,
		},
		"text for a switch": {
			"flags: {gdsEnabled: \"true\"}",
			`2: flags.gdsEnabled: want true or false, got "true"`,
		},
		"Tegra": {
			"flags: {deviceDiscoveryStrategy: tegra}",
			"2: flags.deviceDiscoveryStrategy: tegra is not supported: Berth finds its GPUs through NVML (write auto or nvml; keep NVIDIA's device plugin on such nodes)",
		},
		"unknown discovery": {
			"flags: {deviceDiscoveryStrategy: nvm}",
			`2: flags.deviceDiscoveryStrategy: "nvm" is unknown (did you mean nvml?)`,
		},
		"relative driver root": {
			"flags: {nvidiaDriverRoot: run/nvidia}",
			`2: flags.nvidiaDriverRoot: "run/nvidia" is not an absolute path (begin it with /)`,
		},
		"sleep": {
			"flags: {gfd: {sleepInterval: soon}}",
			`2: flags.gfd.sleepInterval: "soon" is not a duration (write a duration such as 60s, or infinite)`,
		},
		"both modes": {
			"sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n  mps: {resources: [{name: gpu, replicas: 2}]}",
			"4: sharing.mps: timeSlicing and mps exclude each other in this file (remove one of them; to use both on one node, on different GPUs, write a file of Berth's own: kind AgentConfig)",
		},
		"MPS with mixed": {
			"flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
			"3: sharing.mps: mps is not possible with migStrategy mixed (set migStrategy: none, or, for MPS and MIG on different GPUs, write a file of Berth's own: kind AgentConfig)",
		},
		"MPS on MIG devices": {
			"sharing: {mps: {resources: [{name: mig-1g.5gb, replicas: 2}]}}",
			"2: sharing.mps.resources[0].name: MPS does not run on MIG devices (share them by timeSlicing)",
		},
		"MPS on MIG devices of a list": {
			"flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [\"0:1\"]}]}}",
			"3: sharing.mps.resources[0].devices: MPS does not run on MIG devices (remove them from the list, or use timeSlicing)",
		},
		"nothing to share": {
			"sharing: {timeSlicing: {resources: []}}",
			"2: sharing.timeSlicing.resources: names no resource to share (write at least one, such as {name: nvidia.com/gpu, replicas: 4}, or remove sharing.timeSlicing)",
		},
		"sharing without resources": {
			"sharing:\n  mps:\n    renameByDefault: true",
			"3: sharing.mps.resources: names no resource to share (write at least one, such as {name: nvidia.com/gpu, replicas: 4}, or remove sharing.mps)",
		},
		"no replicas": {
			share("{name: gpu, replicas: 0}"),
			"2: sharing.timeSlicing.resources[0].replicas: 0 is less than 1 (write how many containers may share a device; 1 means that it is not shared)",
		},
		"fewer than none": {
			share("{name: gpu, replicas: -1}"),
			"2: sharing.timeSlicing.resources[0].replicas: -1 is less than 1 (write how many containers may share a device; 1 means that it is not shared)",
		},
		"replicas missing": {
			share("{name: gpu}"),
			"2: sharing.timeSlicing.resources[0].replicas: is missing (write how many containers may share a device)",
		},
		"name missing": {
			share("{replicas: 2}"),
			"2: sharing.timeSlicing.resources[0].name: is missing (write a resource name such as nvidia.com/gpu)",
		},
		"name of nothing": {
			share("{name: gpus, replicas: 2}"),
			"2: sharing.timeSlicing.resources[0].name: nothing is advertised as nvidia.com/gpus (did you mean nvidia.com/gpu?)",
		},
		"name of nothing near": {
			share("{name: accelerators, replicas: 2}"),
			"2: sharing.timeSlicing.resources[0].name: nothing is advertised as nvidia.com/accelerators (there are nvidia.com/mig-PROFILE and: nvidia.com/gpu)",
		},
		"name of no profile": {
			"flags: {migStrategy: mixed}\n" + share("{name: mig-1g5gb, replicas: 2}"),
			"3: sharing.timeSlicing.resources[0].name: nvidia.com/mig-1g5gb does not match a MIG profile (write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me, with . for each +)",
		},
		"name that another one took": {
			"flags: {migStrategy: mixed}\nresources: {mig: [{pattern: \"1g.*\", name: small}]}\n" + share("{name: mig-1g.5gb, replicas: 2}"),
			"4: sharing.timeSlicing.resources[0].name: nothing is advertised as nvidia.com/mig-1g.5gb: resources.mig[0] names these MIG devices nvidia.com/small (write that name)",
		},
		"name of another domain": {
			share("{name: example.com/gpu, replicas: 2}"),
			`2: sharing.timeSlicing.resources[0].name: "example.com/gpu" is of another domain than nvidia.com (for that, write a file of Berth's own: kind AgentConfig)`,
		},
		"name in capitals": {
			share("{name: gpu, rename: GPU, replicas: 2}"),
			`2: sharing.timeSlicing.resources[0].rename: "GPU" is not a resource name (write lower-case letters, digits, - and . after nvidia.com/)`,
		},
		"long name": {
			share("{name: gpu, rename: " + long + "xxx, replicas: 2}"),
			`2: sharing.timeSlicing.resources[0].rename: "nvidia.com/` + long + `xxx" has 64 characters, at most 63 are allowed (shorten it)`,
		},
		"long name once it is shared": {
			"resources: {gpus: [{pattern: \"*\", name: " + long + "}]}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: " + long + ", replicas: 2}]}}",
			`3: sharing.timeSlicing.resources[0].name: renameByDefault makes it "nvidia.com/` + long + `.shared", which has 68 characters, at most 63 are allowed (shorten it, or give rename)`,
		},
		"shared twice": {
			share("{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 4}"),
			"2: sharing.timeSlicing.resources[1]: nothing reaches this rule: sharing.timeSlicing.resources[0] selects all that it selects, and the first that matches decides (put the narrower one first, or remove one)",
		},
		"pattern behind a wider one": {
			"resources: {gpus: [{pattern: \"*A100*\", name: a}, {pattern: \"*A100-SXM*\", name: b}]}",
			"2: resources.gpus[1]: nothing reaches this pattern: resources.gpus[0] matches all that it matches, and the first decides (put the narrower one first, or remove one)",
		},
		"pattern missing": {
			"resources: {gpus: [{name: a}]}",
			"2: resources.gpus[0].pattern: is missing (write the models or profiles that the name is for; * stands for anything)",
		},
		"pattern of no profile": {
			"flags: {migStrategy: mixed}\nresources: {mig: [{pattern: small, name: a}]}",
			`3: resources.mig[0].pattern: "small" is not the name of a MIG profile (write it as nvidia-smi mig -lgip prints it, such as 1g.10gb or 1g.10gb+me)`,
		},
		"unknown device": {
			"sharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      replicas: 2\n      devices:\n      - 0\n      - gpu1",
			`9: sharing.timeSlicing.resources[0].devices[1]: "gpu1" is not a device (write an index as nvidia-smi -L numbers them (a GPU's 0, a MIG device's "0:1"), or a UUID as it prints them)`,
		},
		"unknown devices": {
			share("{name: gpu, replicas: 2, devices: every}"),
			`2: sharing.timeSlicing.resources[0].devices: "every" does not say which devices (write all, a number, or a list of indices (0, "0:1") and UUIDs)`,
		},
		"no devices": {
			share("{name: gpu, replicas: 2, devices: 0}"),
			"2: sharing.timeSlicing.resources[0].devices: 0 is not a number of devices (write 1 or more, or all)",
		},
		"an empty list of devices": {
			share("{name: gpu, replicas: 2, devices: []}"),
			`2: sharing.timeSlicing.resources[0].devices: an empty list shares nothing (write all, a number, or a list of indices (0, "0:1") and UUIDs)`,
		},
		"MIG devices as GPUs": {
			"flags: {migStrategy: mixed}\n" + share("{name: gpu, replicas: 2, devices: [0, \"0:1\"]}"),
			"3: sharing.timeSlicing.resources[0].devices: the list has MIG devices, which migStrategy mixed does not advertise as nvidia.com/gpu (share them as nvidia.com/mig-PROFILE with migStrategy: mixed)",
		},
		"GPUs as MIG devices": {
			"flags: {migStrategy: mixed}\n" + share("{name: mig-1g.5gb, replicas: 2, devices: [0]}"),
			`3: sharing.timeSlicing.resources[0].devices: the list has whole GPUs, which are not advertised as nvidia.com/mig-1g.5gb (write MIG devices as "0:1" or by UUID)`,
		},
		"a number across two patterns": {
			"resources: {gpus: [{pattern: \"*A100*\", name: gpu}]}\n" + share("{name: gpu, replicas: 2, devices: 3}"),
			"3: sharing.timeSlicing.resources[0].devices: a number of devices cannot be selected across resources.gpus[0] and the default, which all give the name nvidia.com/gpu (list the devices, or write all)",
		},
		"labels in a folder that is not absolute": {
			"flags: {gfd: {outputFile: features.d/berth-gpu}}",
			`2: flags.gfd.outputFile: "features.d/berth-gpu" is not an absolute path (begin it with /)`,
		},
		"two channels": {
			"imex: {channelIDs: [0, 1]}",
			"2: imex.channelIDs: [0 1] is neither [] nor [0] (a node has one channel, write [0])",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read("nvidia.yaml", []byte("version: v1\n"+tc.file), nil)
			if want := "nvidia.yaml:" + tc.want; err == nil || err.Error() != want {
				t.Errorf("Read returned\n%v\nwant\n%s", err, want)
			}
		})
	}
}

func TestNVIDIAVersion(t *testing.T) {
	tests := map[string]struct{ file, want string }{
		"another": {"version: v2", `nvidia.yaml:1: version: "v2" is unknown (write version: v1)`},
		"JSON":    {`{"version": 1}`, `nvidia.yaml:1: version: want text, got "1" (put it in quotes: "1")`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Read("nvidia.yaml", []byte(tc.file), nil); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("Read returned\n%v\nwant\n%s", err, tc.want)
			}
		})
	}
}

// TestFlagWinsOverNVIDIAFile checks that the flags override the converted file.
func TestFlagWinsOverNVIDIAFile(t *testing.T) {
	got, err := Parse("nvidia.yaml", []byte("version: v1\nflags: {plugin: {containerDriverRoot: /a}}"),
		func(c *v1alpha1.AgentConfig) { c.HostRoot = "/host" })
	if err != nil || got.HostRoot != "/host" {
		t.Errorf("Parse returned %+v, %v, want the flag's host root", got, err)
	}
}

// TestNVIDIALabelsStandalone checks that a setting that needs an API server is refused with the name that it has in the
// file.
func TestNVIDIALabelsStandalone(t *testing.T) {
	standalone := func(c *v1alpha1.AgentConfig) { c.Standalone = true }
	_, err := Read("nvidia.yaml", []byte("version: v1\nflags: {useNodeFeatureAPI: true}"), standalone)
	const want = "nvidia.yaml:2: flags.useNodeFeatureAPI: nodeFeature is written through the API server, and standalone works without one (set it to false, or leave out standalone)"
	if err == nil || err.Error() != want {
		t.Errorf("Read returned\n%v\nwant\n%s", err, want)
	}
	got, err := Parse("nvidia.yaml", []byte("version: v1"), standalone)
	if err != nil || got.Labels.Output != v1alpha1.LabelsNone {
		t.Errorf("Parse returned %+v, %v; want labels nowhere", got, err)
	}
}
