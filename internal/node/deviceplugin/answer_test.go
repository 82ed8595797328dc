package deviceplugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// describe prints an answer, one fact a line.
func describe(answer *pluginapi.ContainerAllocateResponse) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(answer.Envs)) {
		fmt.Fprintf(&text, "env %s=%s\n", name, answer.Envs[name])
	}
	for _, name := range slices.Sorted(maps.Keys(answer.Annotations)) {
		fmt.Fprintf(&text, "annotation %s=%s\n", name, answer.Annotations[name])
	}
	for _, device := range answer.CdiDevices {
		fmt.Fprintf(&text, "cdi %s\n", device.Name)
	}
	for _, mount := range answer.Mounts {
		fmt.Fprintf(&text, "mount %s on %s\n", mount.HostPath, mount.ContainerPath)
	}
	for _, device := range answer.Devices {
		fmt.Fprintf(&text, "device %s as %s %s\n", device.HostPath, device.ContainerPath, device.Permissions)
	}
	return text.String()
}

// partitioned is a snapshot with a GPU in two MIG devices and two whole GPUs.
func partitioned() *gpu.Snapshot {
	h := machine(3)
	for i, id := range []gpu.UUID{"MIG-a", "MIG-b"} {
		h.snapshot.GPUs[0].MIG.Devices = append(h.snapshot.GPUs[0].MIG.Devices, gpu.MIGDevice{
			Partition: gpu.Partition{UUID: id, Index: i, Nodes: []gpu.DeviceNode{
				{Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", 10+i)},
				{Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", 20+i)},
			}},
		})
	}
	return &h.snapshot
}

// mixedOffer has whole GPUs, MIG devices, time-sliced replicas of both, and MPS replicas.
func mixedOffer() []offer.Device {
	var devices []offer.Device
	add := func(key gpu.DeviceKey, index string) {
		device := offer.Device{ID: offer.DeviceID(key), Key: key, Index: index, Health: gpu.Healthy}
		switch {
		case key.GPU == "GPU-02":
			device.Mode, device.Injection = offer.MPS, mpsInjection(key.GPU)
		case key.Share > 0:
			device.Mode = offer.TimeSlicing
		}
		devices = append(devices, device)
	}
	add(gpu.DeviceKey{GPU: "GPU-00"}, "0")
	add(gpu.DeviceKey{GPU: "GPU-01"}, "1")
	add(gpu.DeviceKey{GPU: "GPU-00", MIG: "MIG-a"}, "0:0")
	add(gpu.DeviceKey{GPU: "GPU-00", MIG: "MIG-b"}, "0:1")
	for share := 1; share <= 2; share++ {
		add(gpu.DeviceKey{GPU: "GPU-01", Share: share}, "1")
		add(gpu.DeviceKey{GPU: "GPU-00", MIG: "MIG-b", Share: share}, "0:1")
	}
	for share := 1; share <= 2; share++ {
		add(gpu.DeviceKey{GPU: "GPU-02", Share: share}, "2")
	}
	return devices
}

// mpsInjection is what the clients of a daemon need.
func mpsInjection(id gpu.UUID) offer.Injection {
	pipe := fmt.Sprintf("/mps/%s/pipe", id)
	return offer.Injection{
		CDIDevices: []string{cdiName("mps-" + string(id))},
		Envs:       map[string]string{"CUDA_MPS_PIPE_DIRECTORY": pipe},
		Mounts:     []Mount{{HostPath: "/run" + pipe, ContainerPath: pipe}, {HostPath: fmt.Sprintf("/run/mps/%s/shm", id), ContainerPath: "/dev/shm"}},
	}
}

// TestAnswers compares the answers of each strategy with testdata/answers.
//
//	allocate list=(LIST…) id=uuid|index [specs] [resource=NAME] [prefix=PREFIX] [gds] [gdrcopy] [mofed] [imex] ids=(ID…)
func TestAnswers(t *testing.T) {
	datadriven.RunTest(t, "testdata/answers", func(t *testing.T, d *datadriven.TestData) string {
		deps := Deps{KubeletDir: "/var/lib/kubelet", State: func() State { return State{} }, CDIName: cdiName, Vendors: testVendors()}
		name := resource
		var ids []string
		var features Features
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "list":
				for _, list := range arg.Vals {
					deps.Strategy.List = append(deps.Strategy.List, v1alpha1.DeviceListStrategy(list))
				}
			case "id":
				deps.Strategy.ID = v1alpha1.DeviceIDStrategy(arg.Vals[0])
			case "specs":
				deps.Strategy.PassDeviceSpecs = true
			case "prefix":
				deps.Strategy.AnnotationPrefix = arg.Vals[0]
			case "resource":
				name = arg.Vals[0]
			case "ids":
				ids = arg.Vals
			case "gds":
				features.GDS = true
			case "gdrcopy":
				features.GDRCopy = true
			case "mofed":
				features.MOFED = true
			case "imex":
				features.IMEXChannels = []int{0}
			}
		}
		m, err := New(deps)
		if err != nil {
			return err.Error()
		}
		v := m.viewer.build(offer.Offer{Resource: name, Devices: mixedOffer()}, State{Snapshot: partitioned(), Features: features}, nil, nil, time.Time{})
		picked, err := v.pick(ids)
		if err != nil {
			return err.Error()
		}
		return describe(received(t, m.viewer.answer(v, picked)))
	})
}

func TestMark(t *testing.T) {
	m, err := New(Deps{
		KubeletDir: "/k", State: func() State { return State{} }, CDIName: cdiName,
		Vendors: testVendors(),
		Mark: func(resource string, keys []gpu.DeviceKey) (string, string) {
			return "MARK", fmt.Sprint(resource, keys)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	v := m.viewer.build(offer.Offer{Resource: resource, Devices: mixedOffer()}, State{Snapshot: partitioned()}, nil, nil, time.Time{})
	answer := received(t, m.viewer.answer(v, []int{4, 6}))
	want := map[string]string{"MARK": "nvidia.com/gpu[GPU-01#1 GPU-01#2]"}
	if diff := cmp.Diff(want, answer.Envs); diff != "" {
		t.Errorf("environment differs (-want +got):\n%s", diff)
	}
}

func TestStrategyValidate(t *testing.T) {
	tests := map[string]struct {
		strategy Strategy
		want     string // a part of the error; empty for none
	}{
		"empty":                  {},
		"all lists":              {strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI, v1alpha1.StrategyCDIAnnotations, v1alpha1.StrategyEnvVar, v1alpha1.StrategyVolumeMounts}, ID: v1alpha1.IDStrategyIndex, PassDeviceSpecs: true}},
		"a typing error":         {strategy: Strategy{List: []v1alpha1.DeviceListStrategy{"cdi"}}, want: `unknown device list strategy "cdi": use one or more of [cdi-cri cdi-annotations envvar volume-mounts]`},
		"a double":               {strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar, v1alpha1.StrategyEnvVar}}, want: "given twice"},
		"another id":             {strategy: Strategy{ID: "name"}, want: `unknown device id strategy "name": use uuid or index`},
		"specs beside CDI only":  {strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}, PassDeviceSpecs: true}, want: "drop passDeviceSpecs"},
		"a prefix without slash": {strategy: Strategy{AnnotationPrefix: "cdi.k8s.io"}, want: "must end in a slash"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.strategy.validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	state := func() State { return State{} }
	tests := map[string]struct {
		deps Deps
		want string
	}{
		"no directory": {Deps{State: state, CDIName: cdiName, Vendors: testVendors()}, "no kubelet directory"},
		"no offers":    {Deps{KubeletDir: "/k", CDIName: cdiName, Vendors: testVendors()}, "no source of offers"},
		"no CDI names": {Deps{KubeletDir: "/k", State: state}, "need the CDI names"},
		"bad instance": {Deps{KubeletDir: "/k", State: state, CDIName: cdiName, Instance: "A/b"}, `instance "A/b"`},
		"bad strategy": {Deps{KubeletDir: "/k", State: state, CDIName: cdiName, Strategy: Strategy{ID: "x"}}, "unknown device id strategy"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := New(test.deps); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if _, err := New(Deps{KubeletDir: "/k", State: state, Strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}}}); err != nil {
		t.Errorf("envvar needs no CDI names: %v", err)
	}
}

func TestDoublyOfferedDevice(t *testing.T) {
	w := &viewer{vendors: testVendors(), strategy: Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}, ID: v1alpha1.IDStrategyUUID}}
	devices := append(mixedOffer()[:2:2], mixedOffer()[0])
	if v := w.build(offer.Offer{Resource: resource, Devices: devices}, State{Snapshot: partitioned()}, nil, nil, time.Time{}); len(v.devices) != 2 {
		t.Errorf("%d devices, want 2", len(v.devices))
	}
}
