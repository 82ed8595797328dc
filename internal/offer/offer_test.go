package offer

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/gpu"
)

func card(index int, id gpu.UUID, numa int) gpu.GPU {
	return gpu.GPU{UUID: id, Index: index, NUMANode: numa}
}

func whole(id gpu.UUID, index string, numa int) Device {
	return Device{ID: string(id), Key: gpu.DeviceKey{GPU: id}, Index: index, NUMANode: numa, Healthy: true}
}

func TestBuild(t *testing.T) {
	lost := card(1, "GPU-b", 0)
	lost.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{
		{Code: "XID79", Message: "fell off the bus"}, {Code: "GPU_LOST"},
	}}
	silent := card(0, "GPU-a", 0)
	silent.Health = gpu.Health{State: gpu.Unhealthy}
	migEnabled := card(0, "GPU-a", 0)
	migEnabled.MIG = gpu.MIG{Capable: true, Enabled: true, Devices: []gpu.MIGDevice{{UUID: "MIG-1"}}}

	tests := map[string]struct {
		cards    []gpu.GPU
		settings Settings
		want     []Offer
	}{
		"no driver": {},
		"every card, by index": {
			cards: []gpu.GPU{card(10, "GPU-a", 1), card(2, "GPU-b", gpu.NoNUMANode)},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				whole("GPU-b", "2", gpu.NoNUMANode), whole("GPU-a", "10", 1),
			}}},
		},
		"a name of one's own": {
			cards:    []gpu.GPU{card(0, "GPU-a", 0)},
			settings: Settings{ResourceName: "nvidia.com/a100"},
			want:     []Offer{{Resource: "nvidia.com/a100", Devices: []Device{whole("GPU-a", "0", 0)}}},
		},
		"excluded cards": {
			cards:    []gpu.GPU{card(0, "GPU-a", 0), card(1, "GPU-b", 0)},
			settings: Settings{Exclude: []gpu.UUID{"GPU-a", "GPU-nowhere"}},
			want:     []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{whole("GPU-b", "1", 0)}}},
		},
		"all excluded": {
			cards:    []gpu.GPU{card(0, "GPU-a", 0)},
			settings: Settings{Exclude: []gpu.UUID{"GPU-a"}},
		},
		"a lost card stays, unhealthy": {
			cards: []gpu.GPU{silent, lost},
			want: []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-a", Key: gpu.DeviceKey{GPU: "GPU-a"}, Index: "0", Reason: "Unhealthy"},
				{ID: "GPU-b", Key: gpu.DeviceKey{GPU: "GPU-b"}, Index: "1", Reason: "XID79: fell off the bus; GPU_LOST"},
			}}},
		},
		"a card with MIG enabled is whole": {
			cards: []gpu.GPU{migEnabled},
			want:  []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{whole("GPU-a", "0", 0)}}},
		},
		"nameless and doubled cards": {
			cards: []gpu.GPU{card(0, "", 0), card(1, "GPU-b", 0), card(2, "GPU-b", 1)},
			want:  []Offer{{Resource: "nvidia.com/gpu", Devices: []Device{whole("GPU-b", "1", 0)}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Build(&gpu.Snapshot{GPUs: test.cards}, test.settings)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("offers differ (-want +got):\n%s", diff)
			}
		})
	}
	if got := Build(nil, Settings{}); got != nil {
		t.Errorf("offers of no snapshot: %v", got)
	}
}

func TestDeviceID(t *testing.T) {
	tests := map[string]struct {
		key  gpu.DeviceKey
		want string
	}{
		"GPU":            {gpu.DeviceKey{GPU: "GPU-a"}, "GPU-a"},
		"MIG device":     {gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-b"}, "MIG-b"},
		"first replica":  {gpu.DeviceKey{GPU: "GPU-a", Share: 1}, "GPU-a::0"},
		"MIG's eleventh": {gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-b", Share: 11}, "MIG-b::10"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			id := DeviceID(test.key)
			if id != test.want {
				t.Errorf("DeviceID = %q, want %q", id, test.want)
			}
			device, share, err := ParseDeviceID(id)
			if err != nil || device != test.key.Device() || share != test.key.Share {
				t.Errorf("ParseDeviceID(%q) = %q, %d, %v", id, device, share, err)
			}
		})
	}
	for _, bad := range []string{"", "::1", "GPU-a::", "GPU-a::-1", "GPU-a::01", "GPU-a::1::2", "GPU-a::+1", "GPU-a::2147483647", "GPU-a::99999999999"} {
		if device, share, err := ParseDeviceID(bad); err == nil {
			t.Errorf("ParseDeviceID(%q) = %q, %d, want an error", bad, device, share)
		}
	}
}

func FuzzParseDeviceID(f *testing.F) {
	for _, seed := range []string{"GPU-a", "MIG-b::0", "GPU-a::007", "::"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		device, share, err := ParseDeviceID(id)
		if err != nil {
			return
		}
		if back := DeviceID(gpu.DeviceKey{GPU: device, Share: share}); back != id {
			t.Errorf("ParseDeviceID(%q) reads %q, %d, which is written %q", id, device, share, back)
		}
	})
}
