package cdi_test

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/cdi"
)

func TestFingerprint(t *testing.T) {
	spec := func(change func(*cdi.Spec)) *cdi.Spec {
		s := &cdi.Spec{
			Devices: []cdi.Device{{Name: "GPU-1"}},
			Common: cdi.Edits{
				Nodes:  []gpu.DeviceNode{{Path: "/dev/nvidiactl", Major: 195, Minor: 255}, {Path: "/dev/nvidia-uvm", Major: 510}},
				Mounts: []cdi.Mount{{HostPath: "/usr/lib/libcuda.so.580.1", ContainerPath: "/usr/lib/libcuda.so.580.1"}},
				Hooks:  []cdi.Hook{{Stage: "createContainer", Path: "/opt/berth/bin/berth-cdi-hook-1"}},
			},
		}
		change(s)
		return s
	}
	node := func(path string) func(*cdi.Spec) {
		return func(s *cdi.Spec) { s.Common.Nodes = append(s.Common.Nodes, gpu.DeviceNode{Path: path}) }
	}
	tests := map[string]struct {
		change func(*cdi.Spec)
		same   bool
	}{
		"nothing":                     {func(*cdi.Spec) {}, true},
		"another hook":                {func(s *cdi.Spec) { s.Common.Hooks[0].Path = "/opt/berth/bin/berth-cdi-hook-2" }, true},
		"more devices":                {func(s *cdi.Spec) { s.Devices = append(s.Devices, cdi.Device{Name: "GPU-2"}) }, true},
		"another major":               {func(s *cdi.Spec) { s.Common.Nodes[1].Major = 511 }, true},
		"another order":               {func(s *cdi.Spec) { s.Common.Nodes[0], s.Common.Nodes[1] = s.Common.Nodes[1], s.Common.Nodes[0] }, true},
		"GDS":                         {node("/dev/nvidia-fs0"), true},
		"GDRCopy":                     {node("/dev/gdrdrv"), true},
		"an IMEX channel":             {node("/dev/nvidia-caps-imex-channels/channel0"), true},
		"a library of another driver": {func(s *cdi.Spec) { s.Common.Mounts[0].HostPath = "/usr/lib/libcuda.so.581.1" }, false},
		"without a library":           {func(s *cdi.Spec) { s.Common.Mounts = nil }, false},
		"a further node":              {node("/dev/nvidia-modeset"), false},
	}
	want := spec(func(*cdi.Spec) {}).Fingerprint()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := spec(tc.change).Fingerprint(); (got == want) != tc.same {
				t.Errorf("Fingerprint = %s, that of the spec before is %s, want the same: %v", got, want, tc.same)
			}
		})
	}
}
