package offer

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

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
	for _, bad := range []string{"", "::1", "GPU-a::", "GPU-a::-1", "GPU-a::01", "GPU-a::1::2", "GPU-a::+1",
		"GPU-a::2147483647", "GPU-a::99999999999"} {
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
