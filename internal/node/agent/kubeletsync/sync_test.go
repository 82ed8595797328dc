package kubeletsync

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/agent/grants"
	"github.com/berth-gpu/berth/internal/node/agent/nodeview"
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

// TestInitContainerKeepsItsDevice checks that a pod whose init container alone has a GPU holds it while an image is
// pulled and between retries, when no process runs and PodResources names no such container, and that the GPU is free
// when the pod has ended.
func TestInitContainerKeepsItsDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		id := gpu.UUID("GPU-11ba558d-3437-2335-2fd8-a78c8502f87f")
		w := &world{
			pods: map[string]podwatch.Pod{"p": {UID: "p", Namespace: "ns", Name: "pod", Containers: []podwatch.Container{
				{Name: "prepare", Init: true, Devices: map[string]int{"nvidia.com/gpu": 1}}, {Name: "main"},
			}}},
			states: map[string]podwatch.State{"p": podwatch.Living}, getErr: kubelet.ErrNoPod, cgroups: []string{"p"},
		}
		names := func() []string { return []string{"nvidia.com/gpu"} }
		node := nodeview.New(nodeview.Deps{
			KubeletDir: dir, Pods: w, Containers: w, Resources: w, Names: names,
			Snapshot: func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: id}}} },
			Granted:  func(string) []gpu.DeviceKey { return nil }, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
		book, err := ledger.Open(ledger.Deps{Path: filepath.Join(dir, "ledger"), BootID: "boot", Log: slog.New(slog.DiscardHandler),
			Look: node.Living, LookIn: node.LivingIn, Assigned: node.Assigned, Stamp: node.Stamp, Pod: node.Pod, Ask: node.Ask})
		if err != nil {
			t.Fatal(err)
		}
		defer book.Close()
		sync := New(Deps{
			KubeletDir: dir, Node: node, Pods: w, Names: names, Ledger: book, Grants: grants.New(grants.Deps{StateDir: dir, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}),
			Report: func(string, ...gpu.Cause) {}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
		writeCheckpoint(t, dir, "p", "prepare", string(id))
		for range 100 {
			sync.Look(t.Context())
			holdings := book.Holdings()
			if len(holdings) != 1 || holdings[0].Holder.PodUID != "p" || holdings[0].Holder.Name != "pod" {
				t.Fatalf("holdings are %v, want one of ns/pod", holdings)
			}
			time.Sleep(10 * time.Second)
		}
		if err := book.Acquire(gpu.Holder{Kind: gpu.HolderMaintenance, ID: "MIG"}, []gpu.DeviceKey{{GPU: id}}); err == nil {
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
			t.Errorf("%d requests to the kubelet, want none", w.gets)
		}
	})
}
