package kubeletsync

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
		node := NewReader(ReaderDeps{
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
			KubeletDir: dir, Node: node, Claims: w.recorded, Pods: w, Names: names, Ledger: book, Grants: NewGrants(GrantsDeps{StateDir: dir, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}),
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

// TestPodsShareAClaim: a second pod that starts on the GPU of a prepared claim is known from the kubelet's record, with the name that the
// watch has, and no conflict is reported, neither while the record cannot be read later nor when the first pod has ended.
func TestPodsShareAClaim(t *testing.T) {
	container := func(pod string) ledger.Container {
		return ledger.Container{ID: "in-" + pod, PodUID: pod, Name: "main", Open: []gpu.DeviceKey{gpuA}}
	}
	w := &world{
		pods:        map[string]podwatch.Pod{"b": {UID: "b", Namespace: "ml", Name: "second"}},
		assignedErr: kubelet.ErrNoCheckpoint, away: true, // Nothing but the device nodes shows what a container uses.
	}
	s, book := w.newSync(t, t.TempDir())
	first := gpu.Pod{UID: "a", Namespace: "ml", Name: "first"}
	claim := ledger.Claim{UID: "c", Namespace: "ml", Name: "shared", Pods: []gpu.Pod{first}, Devices: []ledger.ClaimDevice{{Key: gpuA, Requests: []string{"gpu"}}}}
	if err := book.AcquireClaim(claim); err != nil {
		t.Fatal(err)
	}
	second := gpu.Pod{UID: "b", Namespace: "ml", Name: "second"}
	steps := []struct {
		name     string
		change   func()
		pods     []gpu.Pod
		problems []string
	}{
		{"the first runs", func() {
			w.living, w.claims = []ledger.Container{container("a")}, []ledger.ClaimPods{{UID: "c", Pods: []gpu.Pod{{UID: "a"}}}}
		}, []gpu.Pod{first}, nil},
		{"both run", func() {
			w.living, w.claims = []ledger.Container{container("a"), container("b")}, []ledger.ClaimPods{{UID: "c", Pods: []gpu.Pod{{UID: "a"}, {UID: "b"}}}}
		}, []gpu.Pod{first, second}, nil},
		{"the record is damaged", func() { w.claims, w.claimsErr = nil, errors.New("the file is damaged") }, []gpu.Pod{first, second}, []string{"DRA_PODS_UNKNOWN"}},
		{"the first has ended", func() {
			w.living, w.claims, w.claimsErr = []ledger.Container{container("b")}, []ledger.ClaimPods{{UID: "c", Pods: []gpu.Pod{{UID: "b"}}}}, nil
		}, []gpu.Pod{second}, nil},
		{"a pod without the claim is on the GPU", func() { w.living = append(w.living, container("x")) }, []gpu.Pod{second}, []string{"DEVICE_CONFLICT", "CONTAINER_UNMARKED"}},
	}
	for _, step := range steps {
		w.set(step.change)
		s.Look(t.Context())
		if diff := cmp.Diff(step.pods, book.Holdings()[0].Pods); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		var codes []string
		for _, source := range []string{"claim pods", "conflicts"} {
			for _, cause := range w.problems[source] {
				codes = append(codes, cause.Code)
			}
		}
		if diff := cmp.Diff(step.problems, codes); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", step.name, diff)
		}
	}
}
