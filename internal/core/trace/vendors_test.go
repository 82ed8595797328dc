package trace

import "testing"

// testVendors are the vendor of the transcripts, and one without GPUs in them.
func testVendors() Vendors {
	return Vendors{
		{Name: "other", ResourcePrefix: "other.example", NodePrefixes: []string{"/dev/other"}, VisibleDevices: []string{"OTHER_DEVICES"}, Environment: []string{"OTHER_"}},
		{
			Name: "nvidia", ResourcePrefix: "nvidia.com", UUIDPrefix: "GPU-", PartitionPrefix: "MIG-", VisibleDevices: []string{"NVIDIA_VISIBLE_DEVICES"}, VisibleMounts: "/var/run/nvidia-container-devices",
			Environment: []string{"NVIDIA_", "CUDA_"}, Mounts: []string{"nvidia", "libcuda", "/mps"}, NodePrefixes: []string{"/dev/nvidia"},
			GPUMajor: 195, ControlMinor: 240,
		},
	}
}

// TestVendors checks that a name concerns GPUs when it is one of a vendor's, and only then.
func TestVendors(t *testing.T) {
	v := testVendors()
	for name, want := range map[string]bool{"NVIDIA_VISIBLE_DEVICES": true, "CUDA_VERSION": true, "OTHER_X": true, "BERTH_DEVICES": true, "PASSWORD": false} {
		if v.RelevantEnv(name) != want || Vendors(nil).RelevantEnv(name) != (name == "BERTH_DEVICES") {
			t.Errorf("variable %s concerns GPUs: %v", name, !want)
		}
	}
	for _, test := range []struct {
		node     Node
		relevant bool
		minor    int64 // -1 for none
	}{
		{Node{"/dev/nvidia3", 195, 3}, true, 3},
		{Node{"/dev/nvidia3", Unknown, Unknown}, true, 3},
		{Node{"/dev/renamed", 195, 4}, true, 4},
		{Node{"/dev/nvidiactl", 195, 255}, true, -1},
		{Node{"/dev/nvidia-uvm", Unknown, Unknown}, true, -1},
		{Node{"/dev/other0", 300, 0}, true, -1},
		{Node{"/dev/other2", Unknown, Unknown}, true, 2},
		{Node{"/dev/dri/card0", 226, 0}, true, -1},
		{Node{"/dev/null", 1, 3}, false, -1},
	} {
		minor := int64(-1)
		if own, ok := v.own(test.node); ok {
			minor = own.minor
		}
		if got := v.RelevantNode(test.node); got != test.relevant || minor != test.minor {
			t.Errorf("%v: relevant %v, minor %d", test.node, got, minor)
		}
	}
	for resource, want := range map[string]bool{"nvidia.com/gpu": true, "other.example/gpu": true, "nvidia.com.evil/gpu": false, "cpu": false} {
		if newCatalogue(v, nil, nil).isGPU(resource, nil) != want {
			t.Errorf("resource %s consists of GPUs: %v", resource, !want)
		}
	}
	fact := DeviceFact{UUID: "GPU-1", Minor: 1}
	if got := (Vendors{v[0]}).node("", fact); got != "a node with minor 1" {
		t.Errorf("without a rule for names: %s", got)
	}
	fact.Nodes = []Node{{"/dev/other1", Unknown, Unknown}}
	if got := v.node("", fact); got != "/dev/other1" {
		t.Errorf("a node that is known: %s", got)
	}
}
