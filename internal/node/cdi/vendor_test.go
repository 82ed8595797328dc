package cdi

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/google/go-cmp/cmp"
)

// TestVendorWithoutEdits checks that the containers of a vendor that has no edits of its own get the device nodes of
// the inventory, and that no problem is reported.
func TestVendorWithoutEdits(t *testing.T) {
	m := newMachine(t, 3)
	m.drm(0)
	m.mig(1, "3g.20gb")
	w := New(Deps{Dir: m.dir, Roots: Roots{Driver: m.root}})
	m.sync(w)
	if problems := w.Problems(); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	spec, err := ReadSpec(m.dir)
	m.check(err)
	if common := spec.Common; len(common.Env)+len(common.Mounts)+len(common.Hooks) != 0 || len(common.Nodes) != len(control) {
		t.Errorf("every container gets %+v", common)
	}
	got := map[string][]string{}
	for _, device := range spec.Devices {
		if len(device.Env)+len(device.Mounts)+len(device.Hooks) != 0 {
			t.Errorf("%s gets %+v", device.Name, device.Edits)
		}
		for _, node := range device.Nodes {
			got[device.Name] = append(got[device.Name], node.Path)
		}
	}
	first := []string{"/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128"}
	partition := nodePaths(m.snapshot.GPUs[1].MIG.Devices[0].Nodes)
	want := map[string][]string{
		string(uuid(0)): first, "0": first, string(migUUID(1, 0)): partition, "1:0": partition,
		string(uuid(2)): {"/dev/nvidia2"}, "2": {"/dev/nvidia2"},
		All: append(append(append([]string{}, first...), partition...), "/dev/nvidia2"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
}

func nodePaths(nodes []gpu.DeviceNode) (paths []string) {
	for _, node := range nodes {
		paths = append(paths, node.Path)
	}
	return paths
}
