package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	gpu0, gpu1 = gpu.UUID("GPU-00000000-0000-0000-0000-000000000000"), gpu.UUID("GPU-11111111-1111-1111-1111-111111111111")
	mig0, mig1 = gpu.UUID("MIG-aaaaaaaa-0000-0000-0000-000000000000"), gpu.UUID("MIG-bbbbbbbb-0000-0000-0000-000000000000")
)

func node(path string, major, minor uint32) gpu.DeviceNode {
	return gpu.DeviceNode{Path: path, Major: major, Minor: minor}
}

func twoGPUs() *gpu.Snapshot {
	return &gpu.Snapshot{GPUs: []gpu.GPU{
		{UUID: gpu0, Nodes: []gpu.DeviceNode{node("/dev/nvidia0", 195, 0), node("/dev/dri/card1", 226, 1)}},
		{UUID: gpu1, Nodes: []gpu.DeviceNode{node("/dev/nvidia1", 195, 1)}, MIG: gpu.MIG{Devices: []gpu.MIGDevice{
			{Partition: gpu.Partition{UUID: mig0, Nodes: []gpu.DeviceNode{node("/dev/nvidia-caps/nvidia-cap3", 237, 3),
				node("/dev/nvidia-caps/nvidia-cap4", 237, 4)}}},
			{Partition: gpu.Partition{UUID: mig1, Nodes: []gpu.DeviceNode{node("/dev/nvidia-caps/nvidia-cap5", 237, 5),
				node("/dev/nvidia-caps/nvidia-cap6", 237, 6)}}},
		}}},
	}}
}

const testGrant = "0123456789abcdef0123456789abcdef"

func TestOpen(t *testing.T) {
	nodes := []gpu.DeviceNode{node("/dev/x", 195, 0), node("/dev/nvidiactl", 195, 255)}
	whole := gpu.DeviceKey{GPU: gpu0}
	tests := map[string]struct {
		env     map[string]string
		devices []gpu.DeviceNode
		want    []gpu.DeviceKey
	}{
		"a GPU": {devices: nodes, want: []gpu.DeviceKey{whole}},
		"its author's variable": {env: map[string]string{"BERTH_DEVICES_NVIDIA_COM_GPU": string(gpu1),
			"NVIDIA_VISIBLE_DEVICES": "all"}, devices: nodes, want: []gpu.DeviceKey{whole}},
		"only a variable": {env: map[string]string{"BERTH_DEVICES_NVIDIA_COM_GPU": string(gpu0),
			"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}},
		"a MIG device, with the device node of its GPU": {
			devices: append(nodes[:1:1], node("/dev/nvidia1", 195, 1), node("/c3", 237, 3), node("/c4", 237, 4)),
			want:    []gpu.DeviceKey{whole, {GPU: gpu1, MIG: mig0}},
		},
		"a GPU with part of a capability": {
			devices: []gpu.DeviceNode{node("/dev/nvidia1", 195, 1), node("/c3", 237, 3)}, want: []gpu.DeviceKey{{GPU: gpu1}},
		},
		"a capability without the GPU": {devices: []gpu.DeviceNode{node("/c3", 237, 3), node("/c4", 237, 4)}},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			c := Container{Env: test.env, Devices: test.devices}
			if diff := cmp.Diff(test.want, c.Open(twoGPUs())); diff != "" {
				t.Errorf("open (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDevicesEnv(t *testing.T) {
	if got := DevicesEnv("nvidia.com/mig-1g.10gb.me"); got != "BERTH_DEVICES_NVIDIA_COM_MIG_1G_10GB_ME" {
		t.Errorf("variable %q", got)
	}
}

func TestGrantID(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for source, want := range map[string]string{
		"/run/berth/grants/" + id:           id,
		"/run/berth/grants/" + id + "/":     "",
		"/run/berth/grants/" + id[1:]:       "",
		"/run/berth/grants/" + id[1:] + "G": "",
		"/run/berth/grants/../grants/" + id: "",
		"/run/berth/grants":                 "",
		"/var/run/berth/grants/" + id:       "",
		"/tmp/run/berth/grants/" + id:       "",
		"":                                  "",
	} {
		if got, ok := GrantID(source, "/run/berth/grants"); got != want || ok != (want != "") {
			t.Errorf("source %q has the grant %q, want %q", source, got, want)
		}
	}
}

// FuzzParseKeys: keys that are parsed are formatted to the same text, except for the order.
func FuzzParseKeys(f *testing.F) {
	f.Add("GPU-a,GPU-b/MIG-c#2")
	f.Add("#1,/")
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseKeys(text)
		if err != nil {
			return
		}
		again, err := ParseKeys(formatKeys(keys))
		if err != nil || formatKeys(again) != formatKeys(keys) || len(again) != len(keys) {
			t.Fatalf("%q: %v, then %v, %v", text, keys, again, err)
		}
	})
}

func FuzzReadSpec(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["A=1"]},"linux":{"devices":[{"path":"/dev/x","type":"c","major":195,"minor":-1}]}}`))
	f.Fuzz(func(t *testing.T, blob []byte) {
		var c Container
		if c.readSpec(blob, containerdKeys(), ContainersDeps{GrantsDir: "/run/berth/grants"}) == nil {
			c.Open(twoGPUs())
		}
	})
}

// TestHostUsers: the spec of a container in a user namespace (hostUsers: false) has the same devices and variables as any other one. The
// IDs of its mappings are not those of devices.
func TestHostUsers(t *testing.T) {
	const devices = `"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "uid": 0, "gid": 0}]`
	read := func(linux string) Container {
		t.Helper()
		var c Container
		if err := c.readSpec([]byte(`{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, "linux": {`+linux+`}}`), containerdKeys(), ContainersDeps{Vendors: []gpu.Traits{{Assigning: []string{"NVIDIA_"}}}}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const mapped = `"namespaces": [{"type": "user"}], "uidMappings": [{"containerID": 0, "hostID": 131072, "size": 65536}], "gidMappings": [{"containerID": 0, "hostID": 131072, "size": 65536}], `
	want, got := read(devices), read(mapped+devices)
	if diff := cmp.Diff(want, got); diff != "" || len(got.Devices) != 1 {
		t.Errorf("-without a user namespace +with one:\n%s", diff)
	}
}

// TestAnnotationsOfTheRuntime: a pod's author can annotate it with another runtime's keys, which CRI-O copies into the OCI spec of each of
// its containers, and containerd those that its configuration lists. Only the keys of the runtime whose folder has the spec count.
func TestAnnotationsOfTheRuntime(t *testing.T) {
	ofContainerd := map[string]string{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "cuda",
		"io.kubernetes.cri.sandbox-name": "train", "io.kubernetes.cri.sandbox-namespace": "default"}
	ofCRIO := map[string]string{"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.container.name": "cuda",
		"io.kubernetes.pod.name": "train", "io.kubernetes.pod.namespace": "default"}
	const containerd, docker, crio = 0, 1, 2 // of DefaultBundles
	type names struct {
		Namespace string
		Pod       string
		Name      string
		Sandbox   bool
	}
	tests := map[string]struct {
		bundle  int
		written map[string]string
		more    map[string]string
		want    names
	}{
		"CRI-O, hidden by containerd's keys": {crio, ofCRIO, map[string]string{"io.kubernetes.cri.container-type": "sandbox"},
			names{"default", "train", "cuda", false}},
		"CRI-O, renamed by containerd's keys": {crio, ofCRIO, map[string]string{"io.kubernetes.cri.container-name": "a",
			"io.kubernetes.cri.sandbox-name": "b", "io.kubernetes.cri.sandbox-namespace": "c"}, names{"default", "train", "cuda", false}},
		"containerd, with CRI-O's keys": {containerd, ofContainerd, map[string]string{"io.kubernetes.cri-o.ContainerType": "sandbox",
			"io.kubernetes.container.name": "POD", "io.kubernetes.pod.name": "b", "io.kubernetes.pod.namespace": "c"},
			names{"default", "train", "cuda", false}},
		"containerd that wrote no names": {containerd, nil, ofCRIO, names{}},
		"docker, which writes none":      {docker, ofContainerd, ofCRIO, names{}},
		"CRI-O's own container of the pod": {crio, ofCRIO, map[string]string{"io.kubernetes.container.name": "POD"},
			names{"default", "train", "POD", true}},
		// CRI-O writes a pod's annotations over its own ones there, and the kubelet's labels over both.
		"CRI-O's own container, renamed": {crio, ofCRIO, map[string]string{"io.kubernetes.container.name": "POD",
			"io.kubernetes.cri-o.ContainerType": "container"}, names{"default", "train", "POD", true}},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			tree, run := newCgroupTree(t, 2), t.TempDir()
			tree.container("kubepods/pod"+uid1+"/"+id1, 1)
			annotations := maps.Clone(test.written)
			if annotations == nil {
				annotations = map[string]string{}
			}
			maps.Copy(annotations, test.more)
			blob, err := json.Marshal(map[string]any{"annotations": annotations})
			if err != nil {
				t.Fatal(err)
			}
			writeBundle(t, DefaultBundles(run)[test.bundle], id1, blob)
			containers := NewContainers(ContainersDeps{ProcRoot: tree.proc, Bundles: func() []Bundle { return DefaultBundles(run) }})
			got, err := containers.Live()
			if err != nil || len(got) != 1 || got[0].SpecError != "" {
				t.Fatalf("%+v, %v", got, err)
			}
			if diff := cmp.Diff(test.want, names{got[0].Namespace, got[0].Pod, got[0].Name, got[0].Sandbox}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// bundle writes an OCI spec as containerd does.
func bundle(t *testing.T, run, id, kind, name string, devices []map[string]any, env ...string) {
	t.Helper()
	annotations := map[string]string{
		"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-name": "train",
		"io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-uid": uid1,
	}
	if name != "" {
		annotations["io.kubernetes.cri.container-name"] = name
	}
	blob, err := json.Marshal(map[string]any{
		"ociVersion": "1.2.0", "annotations": annotations,
		"process": map[string]any{"env": env}, "linux": map[string]any{"devices": devices},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/run/berth/grants/x", "type": "bind",
				"source": map[bool]string{true: "/run/berth/grants/" + testGrant, false: "/tmp/run/berth/grants/" + testGrant}[name != ""]},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	writeBundle(t, DefaultBundles(run)[0], id, blob)
}

func writeBundle(t *testing.T, in Bundle, id string, blob []byte) {
	t.Helper()
	path := filepath.Join(in.Dir, id, in.File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, blob, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestContainers(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) { testContainers(t, newCgroupTree(t, version)) })
	}
}

func testContainers(t *testing.T, tree *cgroupTree) {
	run := t.TempDir()
	tree.container("kubepods/pod"+uid1+"/"+id1, 10)
	tree.container("kubepods/pod"+uid1+"/"+id2, 11, 12)
	tree.container("kubepods/burstable/pod" + uid2 + "/" + id3)
	bundle(t, run, id1, "sandbox", "", nil)
	bundle(t, run, id2, "container", "cuda", []map[string]any{
		{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
		{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
		{"path": "/dev/sda", "type": "b", "major": 195, "minor": 1},
	}, "HOME=/", "NVIDIA_VISIBLE_DEVICES=void", "BERTH_DEVICES_NVIDIA_COM_GPU="+string(gpu0))
	containers := NewContainers(ContainersDeps{ProcRoot: tree.proc, Bundles: func() []Bundle { return DefaultBundles(run) }, GrantsDir: "/run/berth/grants", Vendors: []gpu.Traits{{Assigning: []string{"NVIDIA_"}}}})
	got, err := containers.Live()
	if err != nil {
		t.Fatal(err)
	}
	spec := func(id string) string { return filepath.Join(DefaultBundles(run)[0].Dir, id, "config.json") }
	want := []Container{
		{
			ID: id1, PodUID: uid1, Namespace: "default", Pod: "train", Sandbox: true, Spec: spec(id1), Env: map[string]string{},
		},
		{
			ID: id2, PodUID: uid1, Namespace: "default", Pod: "train", Name: "cuda", Spec: spec(id2),
			Devices: []gpu.DeviceNode{node("/dev/nvidia0", 195, 0), node("/dev/nvidiactl", 195, 255)},
			Grants:  []string{testGrant},
			Env:     map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "BERTH_DEVICES_NVIDIA_COM_GPU": string(gpu0)},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Container{}, "Cgroup")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	of, err := containers.LiveIn(uid1)
	if diff := cmp.Diff(got, of); diff != "" || err != nil {
		t.Errorf("of one pod: %v (-all +pod):\n%s", err, diff)
	}
	if of, err := containers.LiveIn(uid2); len(of) > 0 || err != nil {
		t.Errorf("of a pod that has ended: %+v, %v", of, err)
	}
	uids, err := containers.PodUIDs()
	if diff := cmp.Diff([]string{uid2, uid1}, uids); diff != "" || err != nil {
		t.Errorf("pods with a cgroup: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(map[string][]int{id1: {10}, id2: {11, 12}}, living(t, containers)); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	tree.container("kubepods/pod"+uid1+"/"+id2+"/nested/deep", 99)
	tree.container("kubepods/pod" + uid1 + "/" + id2)
	tree.container("kubepods/burstable/pod"+uid2+"/"+id3, 12)
	if diff := cmp.Diff(map[string][]int{id1: {10}, id2: {99}, id3: {12}}, living(t, containers)); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	tree.remove("kubepods/pod" + uid1)
	if diff := cmp.Diff(map[string][]int{id3: {12}}, living(t, containers)); diff != "" {
		t.Errorf("at last (-want +got):\n%s", diff)
	}
	if of, err := containers.LiveIn(uid1); len(of) > 0 || err != nil {
		t.Errorf("of a pod without a cgroup: %+v, %v", of, err)
	}
}

// living has the PIDs of each container.
func living(t *testing.T, containers *Containers) map[string][]int {
	t.Helper()
	all, err := containers.Live()
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string][]int{}
	for i := range all {
		if pids[all[i].ID], err = containers.PIDs(&all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return pids
}

// TestContainersWithoutSpec: a spec that comes later, or that is no spec, is not an
// error for the others.
func TestContainersWithoutSpec(t *testing.T) {
	tree, run := newCgroupTree(t, 2), t.TempDir()
	tree.container("kubepods/pod"+uid1+"/"+id1, 1)
	tree.container("kubepods/pod"+uid1+"/"+id2, 2)
	writeBundle(t, DefaultBundles(run)[0], id2, []byte("{"))
	containers := NewContainers(ContainersDeps{ProcRoot: tree.proc, Bundles: func() []Bundle { return DefaultBundles(run) }, GrantsDir: "/run/berth/grants", Vendors: []gpu.Traits{{Assigning: []string{"NVIDIA_"}}}})
	got, err := containers.Live()
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if got[0].SpecError != "no runtime has its bundle" || !strings.Contains(got[1].SpecError, "unexpected end of JSON input") {
		t.Errorf("errors %q, %q", got[0].SpecError, got[1].SpecError)
	}
	bundle(t, run, id1, "container", "late", nil)
	if got, err = containers.Live(); err != nil || got[0].Name != "late" || got[0].SpecError != "" {
		t.Errorf("later: %+v, %v", got[0], err)
	}
	// Read once and kept, as it does not change.
	writeBundle(t, DefaultBundles(run)[0], id1, []byte("{"))
	if got, err = containers.Live(); err != nil || got[0].Name != "late" {
		t.Errorf("again: %+v, %v", got[0], err)
	}
}
