package kubeletsync

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/kubelet/checkpoint"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// containers are the containers of a test's node.
type containers struct {
	all []kubelet.Container
	err error
}

func (c containers) Live() ([]kubelet.Container, error) { return c.all, c.err }
func (c containers) PodUIDs() ([]string, error)         { return []string{"p"}, c.err }

func (c containers) InPod(uid string) ([]kubelet.Container, bool, error) {
	return c.all, uid == "p", c.err
}

// TestLiving checks that the containers come with the devices of their grants, that sandboxes are left out, and that an
// error is returned.
func TestLiving(t *testing.T) {
	key := gpu.DeviceKey{GPU: "GPU-a"}
	n := (&readerWorld{}).node()
	n.deps.Granted = func(id string) []gpu.DeviceKey { return map[string][]gpu.DeviceKey{"grant": {key}}[id] }
	n.deps.Containers = containers{all: []kubelet.Container{
		{ID: "sandbox", PodUID: "p", Sandbox: true}, {ID: "c", PodUID: "p", Namespace: "ns", Pod: "pod", Name: "main", Grants: []string{"grant", "other"}},
	}}
	want := []ledger.Container{{ID: "c", PodUID: "p", Namespace: "ns", Pod: "pod", Name: "main", Keys: []gpu.DeviceKey{key}}}
	all, err := n.Living()
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("%v, living (-want +got):\n%s", err, diff)
	}
	some, err := n.LivingIn([]string{"p"})
	if diff := cmp.Diff(want, some); diff != "" || err != nil {
		t.Errorf("%v, living in the pod (-want +got):\n%s", err, diff)
	}
	n.deps.Containers = containers{err: errors.New("no cgroups")}
	if _, err := n.Living(); err == nil {
		t.Error("Living hides an error")
	}
	if _, err := n.LivingIn([]string{"p"}); err == nil {
		t.Error("LivingIn hides an error")
	}
}

// TestAssigned checks that the checkpoint's entries of Berth's resources and of this node's GPUs are returned, and no
// others; a missing file is an error.
func TestAssigned(t *testing.T) {
	id := gpu.UUID("GPU-11ba558d-3437-2335-2fd8-a78c8502f87f")
	dir := t.TempDir()
	n := NewReader(ReaderDeps{
		KubeletDir: dir, Snapshot: func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: id}}} },
		Names: func() []string { return []string{"nvidia.com/gpu"} }, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	if _, err := n.Assigned(); !errors.Is(err, kubelet.ErrNoCheckpoint) {
		t.Errorf("without a checkpoint: %v", err)
	}
	entry := func(pod, resource, device string) checkpoint.PodDevicesEntry {
		return checkpoint.PodDevicesEntry{PodUID: pod, ContainerName: "main", ResourceName: resource, DeviceIDs: checkpoint.DevicesPerNUMA{0: {device}}}
	}
	blob, err := checkpoint.Encode([]checkpoint.PodDevicesEntry{
		entry("whole", "nvidia.com/gpu", string(id)), entry("replica", "nvidia.com/other", string(id)+"::1"), entry("foreign", "example.com/nic", "eth0"),
	}, nil)
	if err == nil {
		path := filepath.Join(dir, kubelet.CheckpointFile)
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, blob, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Assigned()
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]gpu.DeviceKey{}
	for _, a := range got {
		keys[a.PodUID] = a.Keys
	}
	if diff := cmp.Diff(map[string][]gpu.DeviceKey{"whole": {{GPU: id}}, "replica": {{GPU: id, Share: 2}}}, keys); diff != "" {
		t.Errorf("assigned (-want +got):\n%s", diff)
	}
}

// TestPlacement checks that only the placement of a MIG device that the last scan found on that GPU is known.
func TestPlacement(t *testing.T) {
	device := gpu.MIGDevice{Partition: gpu.Partition{UUID: "MIG-1"}, Start: 4, Size: 2}
	unread := gpu.MIGDevice{Partition: gpu.Partition{UUID: "MIG-2"}}
	n := NewReader(ReaderDeps{Snapshot: func() *gpu.Snapshot {
		return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a", MIG: gpu.MIG{Devices: []gpu.MIGDevice{device, unread}}}, {UUID: "GPU-b"}}}
	}})
	for key, want := range map[gpu.DeviceKey]gpu.Placement{
		{GPU: "GPU-a", MIG: "MIG-1"}:           {Start: 4, Size: 2},
		{GPU: "GPU-a", MIG: "MIG-1", Share: 2}: {Start: 4, Size: 2},
		{GPU: "GPU-a", MIG: "MIG-2"}:           {},
		{GPU: "GPU-a", MIG: "MIG-3"}:           {},
		{GPU: "GPU-b", MIG: "MIG-1"}:           {},
		{GPU: "GPU-a"}:                         {},
	} {
		if got := n.Placement(key); got != want {
			t.Errorf("%s is at %s, want %s", key, got, want)
		}
	}
}
