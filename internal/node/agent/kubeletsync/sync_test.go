package kubeletsync

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

// writeCheckpoint writes the kubelet's file with one pod's container.
func writeCheckpoint(t *testing.T, dir, pod, container, device string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"RegisteredDevices": map[string]any{}, "PodDeviceEntries": []any{map[string]any{
		"PodUID": pod, "ContainerName": container, "ResourceName": "nvidia.com/gpu", "DeviceIDs": map[string]any{"-1": []string{device}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, kubelet.CheckpointFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestInitContainerKeepsItsDevice: a pod whose init container alone has a GPU holds it while an image is pulled and between
// retries, when no process lives and PodResources names no such container; it is free when the pod has ended.
func TestInitContainerKeepsItsDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		card := gpu.UUID("GPU-11ba558d-3437-2335-2fd8-a78c8502f87f")
		w := &world{
			pods: map[string]podwatch.Pod{"p": {UID: "p", Namespace: "ns", Name: "pod", Containers: []podwatch.Container{
				{Name: "prepare", Init: true, Devices: map[string]int{"nvidia.com/gpu": 1}}, {Name: "main"},
			}}},
			states: map[string]podwatch.State{"p": podwatch.Living}, getErr: kubelet.ErrNoPod, cgroups: []string{"p"},
		}
		node := NewNode(NodeDeps{
			KubeletDir: dir, Pods: w, Containers: w, Resources: w, Names: func() []string { return []string{"nvidia.com/gpu"} },
			Snapshot: func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: card}}} },
			Granted:  func(string) []gpu.DeviceKey { return nil }, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
		book, err := ledger.Open(ledger.Deps{Path: filepath.Join(dir, "ledger"), BootID: "boot", Log: slog.New(slog.DiscardHandler),
			Look: node.Living, LookIn: node.LivingIn, Assigned: node.Assigned, Stamp: node.Stamp, Pod: node.Pod, Ask: node.Ask})
		if err != nil {
			t.Fatal(err)
		}
		defer book.Close()
		sync := New(Deps{Node: node, Ledger: book, Grants: &Grants{Dir: filepath.Join(dir, "grants"), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}, Report: func(string, ...gpu.Cause) {}})
		writeCheckpoint(t, dir, "p", "prepare", string(card))
		for range 100 {
			sync.Look(t.Context())
			holdings := book.Holdings()
			if len(holdings) != 1 || holdings[0].Holder.PodUID != "p" || holdings[0].Holder.Name != "pod" {
				t.Fatalf("holdings are %v, want one of ns/pod", holdings)
			}
			time.Sleep(10 * time.Second)
		}
		if err := book.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: "MIG"}, []gpu.DeviceKey{{GPU: card}}); err == nil {
			t.Error("maintenance took the GPU of a pod that is starting")
		}
		w.mu.Lock()
		w.states["p"] = podwatch.Ended
		w.mu.Unlock()
		sync.Look(t.Context())
		if holdings := book.Holdings(); len(holdings) > 0 {
			t.Errorf("holdings are %v after the pod has ended", holdings)
		}
		if w.gets > 0 {
			t.Errorf("the kubelet was asked %d times", w.gets)
		}
	})
}

// TestCleanGrants: the folder of a grant goes when neither the ledger nor the checkpoint has it, and not while it is young.
func TestCleanGrants(t *testing.T) {
	grants := &Grants{Dir: filepath.Join(t.TempDir(), "grants"), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
	held, listed, free, young := grants.make(), grants.make(), grants.make(), grants.make()
	now := time.Now()
	for _, id := range []string{held, listed, free, young} {
		host, container := grants.Paths(id)
		if host != filepath.Join(grants.Dir, id) || container != "/run/berth/grants/"+id {
			t.Errorf("grant %s is at %s and %s", id, host, container)
		}
		if id != young {
			if err := os.Chtimes(host, now, now.Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	grants.Clean([]ledger.Holding{{Grants: []string{held}}}, []ledger.Assignment{{Grant: listed}}, now)
	entries, err := os.ReadDir(grants.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{held, listed, young}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}
