package offer

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func newGPU(index int, id gpu.UUID, numa int) gpu.GPU {
	return gpu.GPU{UUID: id, Index: index, NUMANode: numa}
}

func unit(key gpu.DeviceKey, use Use) Unit { return Unit{Key: key, Use: use} }

func whole(id gpu.UUID) gpu.DeviceKey { return gpu.DeviceKey{GPU: id} }

// TestUseAsJSON checks the form of the file of units, which agents of other versions read.
func TestUseAsJSON(t *testing.T) {
	for want, use := range map[string]Use{
		`{"resource":"nvidia.com/gpu"}`: {Resource: "nvidia.com/gpu"},
		`{"resource":"nvidia.com/gpu","mode":"mps","replicas":4,"pinnedMemoryMiB":-1,"activeThreadPercentage":25,"singleUser":true}`: {
			Resource:  "nvidia.com/gpu",
			Mode:      MPS,
			Replicas:  4,
			MPSLimits: gpu.MPSLimits{PinnedMemoryMiB: -1, ActiveThreadPercentage: 25, SingleUser: true},
		},
	} {
		if got, err := json.Marshal(use); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

func TestBuild(t *testing.T) {
	lost := newGPU(1, "GPU-b", 0)
	lost.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{
		{Code: "XID79", Message: "fell off the bus"}, {Code: "GPU_LOST"},
	}}
	withoutUUID := newGPU(0, "GPU-a", 0)
	withoutUUID.Health = gpu.Health{State: gpu.Unhealthy}
	parted := newGPU(3, "GPU-a", 1)
	parted.MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-y", Index: 1}}, {Partition: gpu.Partition{UUID: "MIG-x", Index: 0}}}}
	sickParted := parted
	sickParted.Health = gpu.Health{State: gpu.Unhealthy}
	halfSick := parted
	halfSick.MIG.Devices = []gpu.MIGDevice{
		{Partition: gpu.Partition{UUID: "MIG-y", Index: 1, Health: gpu.Health{State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "XID94"}}}}},
		{Partition: gpu.Partition{UUID: "MIG-x", Index: 0, Health: gpu.Health{State: gpu.Degraded, Causes: []gpu.Cause{{Code: "THROTTLE_THERMAL"}}}}},
	}
	plain := Use{Resource: DefaultResource}

	tests := map[string]struct {
		gpus  []gpu.GPU
		units []Unit
		want  []Offer
	}{
		"no driver": {},
		"no units":  {gpus: []gpu.GPU{withoutUUID}},
		"by index, whatever the order of the units": {
			gpus:  []gpu.GPU{newGPU(10, "GPU-a", 1), newGPU(2, "GPU-b", gpu.NoNUMANode)},
			units: []Unit{unit(whole("GPU-a"), plain), unit(whole("GPU-b"), plain)},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-b", Key: whole("GPU-b"), Index: "2", Position: 1, NUMANode: gpu.NoNUMANode, Health: gpu.Healthy},
				{ID: "GPU-a", Key: whole("GPU-a"), Index: "10", NUMANode: 1, Health: gpu.Healthy},
			}}},
		},
		"resources by name": {
			gpus:  []gpu.GPU{newGPU(0, "GPU-a", 0), newGPU(1, "GPU-b", 0)},
			units: []Unit{unit(whole("GPU-a"), Use{Resource: "example.com/z"}), unit(whole("GPU-b"), Use{Resource: "example.com/a"})},
			want: []Offer{
				{Resource: "example.com/a", Devices: []Device{{ID: "GPU-b", Key: whole("GPU-b"), Index: "1",
					Position: 1, Health: gpu.Healthy}}},
				{Resource: "example.com/z", Devices: []Device{{ID: "GPU-a", Key: whole("GPU-a"), Index: "0", Health: gpu.Healthy}}},
			},
		},
		"a unit without silicon, and a second of the same": {
			gpus:  []gpu.GPU{newGPU(0, "GPU-a", 0)},
			units: []Unit{unit(whole("GPU-b"), plain), unit(whole("GPU-a"), plain), unit(whole("GPU-a"), Use{Resource: "example.com/a"})},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{{ID: "GPU-a", Key: whole("GPU-a"), Index: "0",
				Health: gpu.Healthy}}}},
		},
		"a MIG device by its own health": {
			gpus:  []gpu.GPU{halfSick},
			units: []Unit{unit(gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, plain), unit(gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y"}, plain)},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "MIG-x", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, Index: "3:0", NUMANode: 1,
					Health: gpu.Degraded, Reason: "THROTTLE_THERMAL"},
				{ID: "MIG-y", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y"}, Index: "3:1", NUMANode: 1,
					Health: gpu.Unhealthy, Reason: "XID94"},
			}}},
		},
		"one replica is a replica": {
			gpus:  []gpu.GPU{newGPU(0, "GPU-a", 0)},
			units: []Unit{unit(whole("GPU-a"), Use{Resource: DefaultResource, Mode: TimeSlicing, Replicas: 1})},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-a::0", Key: gpu.DeviceKey{GPU: "GPU-a", Share: 1}, Mode: TimeSlicing, Index: "0", Health: gpu.Healthy},
			}}},
		},
		"the strictest refusal decides": {
			gpus: []gpu.GPU{newGPU(0, "GPU-a", 0), newGPU(1, "GPU-b", 0)},
			units: []Unit{
				unit(whole("GPU-a"), Use{Resource: DefaultResource, Mode: MPS, Replicas: 1, RefuseMany: true}),
				unit(whole("GPU-b"), plain),
			},
			want: []Offer{{Resource: "nvidia.com/gpu", RefuseMany: true, Devices: []Device{
				{ID: "GPU-a::0", Key: gpu.DeviceKey{GPU: "GPU-a", Share: 1}, Mode: MPS, Index: "0", Health: gpu.Healthy},
				{ID: "GPU-b", Key: whole("GPU-b"), Index: "1", Position: 1, Health: gpu.Healthy},
			}}},
		},
		"MIG devices and their replicas": {
			gpus: []gpu.GPU{parted},
			units: []Unit{
				unit(gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y"}, Use{Resource: "nvidia.com/mig-1g.5gb", Mode: TimeSlicing, Replicas: 2}),
				unit(gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, Use{Resource: "nvidia.com/mig-1g.5gb"}),
			},
			want: []Offer{{Resource: "nvidia.com/mig-1g.5gb", Devices: []Device{
				{ID: "MIG-x", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, Index: "3:0", NUMANode: 1, Health: gpu.Healthy},
				{ID: "MIG-y::0", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y", Share: 1}, Mode: TimeSlicing,
					Index: "3:1", NUMANode: 1, Health: gpu.Healthy},
				{ID: "MIG-y::1", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y", Share: 2}, Mode: TimeSlicing,
					Index: "3:1", NUMANode: 1, Health: gpu.Healthy},
			}}},
		},
		"a MIG device is as healthy as its GPU": {
			gpus:  []gpu.GPU{sickParted},
			units: []Unit{unit(gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, Use{Resource: "nvidia.com/mig-1g.5gb"})},
			want: []Offer{{Resource: "nvidia.com/mig-1g.5gb", Devices: []Device{
				{ID: "MIG-x", Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}, Index: "3:0", NUMANode: 1,
					Health: gpu.Unhealthy, Reason: "Unhealthy"},
			}}},
		},
		"a lost GPU stays, with both reasons": {
			gpus:  []gpu.GPU{withoutUUID, lost},
			units: []Unit{unit(whole("GPU-a"), plain), {Key: whole("GPU-b"), Use: plain, Draining: "waits"}},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-a", Key: whole("GPU-a"), Index: "0", Health: gpu.Unhealthy, Reason: "Unhealthy"},
				{ID: "GPU-b", Key: whole("GPU-b"), Index: "1", Position: 1, Health: gpu.Unhealthy,
					Reason: "XID79: fell off the bus; GPU_LOST; waits"},
			}}},
		},
		"all replicas of a draining device": {
			gpus:  []gpu.GPU{newGPU(0, "GPU-a", 0)},
			units: []Unit{{Key: whole("GPU-a"), Use: Use{Resource: DefaultResource, Mode: MPS, Replicas: 2}, Draining: "waits"}},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-a::0", Key: gpu.DeviceKey{GPU: "GPU-a", Share: 1}, Mode: MPS, Index: "0", Health: gpu.Draining, Reason: "waits"},
				{ID: "GPU-a::1", Key: gpu.DeviceKey{GPU: "GPU-a", Share: 2}, Mode: MPS, Index: "0", Health: gpu.Draining, Reason: "waits"},
			}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Build(&gpu.Snapshot{GPUs: test.gpus}, test.units)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("offers differ (-want +got):\n%s", diff)
			}
		})
	}
	if got := Build(nil, []Unit{unit(whole("GPU-a"), plain)}); got != nil {
		t.Errorf("offers of no snapshot: %v", got)
	}
}

func TestWhatUnitsNeed(t *testing.T) {
	units := []Unit{
		unit(whole("GPU-d"), Use{Mode: TimeSlicing, Replicas: 2, TimeSlice: "long"}),
		unit(whole("GPU-a"), Use{}),
		{Key: whole("GPU-b"), Use: Use{Mode: MPS, Replicas: 2}, Draining: "waits"},
		unit(whole("GPU-c"), Use{Mode: TimeSlicing, Replicas: 2}),
	}
	if diff := cmp.Diff(units[2:3], MPSUnits(units)); diff != "" {
		t.Errorf("MPS units differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]TimeSlice{{GPU: "GPU-d", Slice: "long"}}, TimeSlices(units)); diff != "" {
		t.Errorf("time slices differ (-want +got):\n%s", diff)
	}
}
