package dra

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// dynamicNode is a node with the devices of a dynamic GPU, GPU-0: gpu-0 is the GPU, gpu-1 and gpu-2 are MIG devices, of which none exists
// yet, and gpu-3 is a MIG device of a layout.
func dynamicNode() *node {
	n := newNode(4)
	n.exists = map[gpu.DeviceKey]gpu.UUID{}
	for i := range 3 {
		n.devices[i].Key, n.devices[i].Dynamic = gpu.DeviceKey{GPU: "GPU-0"}, true
	}
	n.devices[0].UUID = "GPU-0"
	n.devices[1].Key.Placement, n.devices[1].Profile = gpu.Placement{Start: 0, Size: 1}, "1g.10gb"
	n.devices[2].Key.Placement, n.devices[2].Profile = gpu.Placement{Start: 4, Size: 4}, "3g.40gb"
	n.devices[3].Key, n.devices[3].Profile = gpu.DeviceKey{GPU: "GPU-3", MIG: "MIG-3"}, "1g.10gb"
	return n
}

// heldBy returns the devices that a claim has.
func (n *node) heldBy(uid string) []string {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	var held []string
	for key, claim := range n.ledger.held {
		if claim.UID == uid {
			held = append(held, key.String())
		}
	}
	slices.Sort(held)
	return held
}

// TestPrepareDynamic creates two MIG devices for a claim, beside one of a layout. The steps are in the order of the package comment.
func TestPrepareDynamic(t *testing.T) {
	n := dynamicNode()
	n.exists[n.devices[1].Key], n.exists[n.devices[2].Key] = "MIG-a", "MIG-b"
	n.notReady["GPU-0"] = errors.New("not asked for")
	var steps []Step
	n.fault = func(step Step) error { steps = append(steps, step); return nil }
	d := n.driver(t)
	claim := allocated("train", "u1", result("a", 1), result("layout", 3), result("b", 2))
	for range 2 { // It can be repeated.
		steps = nil
		got := one(t.Context(), t, d, claim)
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		var names []string
		for _, device := range got.Devices {
			names = append(names, device.Requests[0]+" "+strings.Join(device.CDIDeviceIDs, " "))
		}
		want := []string{"a k8s.berth.dev/gpu=MIG-a", "layout k8s.berth.dev/gpu=MIG-3", "b k8s.berth.dev/gpu=MIG-b"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
		order := []Step{StepLocked, StepChecked, StepAcquired, StepCreated, StepResolved, StepCreated, StepResolved, StepInjectable}
		if diff := cmp.Diff(order, steps); diff != "" {
			t.Error(diff)
		}
		n.ledger.held[n.devices[1].Key] = n.ledger.held[gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-a"}] // as a ledger that knows no UUIDs
		n.ledger.held[n.devices[2].Key] = n.ledger.held[gpu.DeviceKey{GPU: "GPU-0", MIG: "MIG-b"}]
	}
	if err := undo(t.Context(), t, d, claim); err != nil || len(n.heldBy("u1")) > 0 {
		t.Errorf("left %v, %v", n.heldBy("u1"), err)
	}
}

// TestDynamicNotNow: a device that cannot be created now is an error with its reason, and the claim keeps its placement for the retry.
func TestDynamicNotNow(t *testing.T) {
	n := dynamicNode()
	d := n.driver(t)
	claim := allocated("train", "u1", result("a", 1))
	got := one(t.Context(), t, d, claim)
	if got.Err == nil || !strings.Contains(got.Err.Error(), "claim ns/train, request a: device gpu-1 cannot be created now: GPU 0 cannot have 1g.10gb") {
		t.Errorf("got %v", got.Err)
	}
	if diff := cmp.Diff([]string{"GPU-0/0:1"}, n.heldBy("u1")); diff != "" {
		t.Error(diff)
	}
	n.exists[n.devices[1].Key] = "MIG-a"
	n.notReady["MIG-a"] = errors.New("not written yet")
	if got := one(t.Context(), t, d, claim); got.Err == nil || !strings.Contains(got.Err.Error(), "request a: device gpu-1 is not in the CDI spec on disk: not written yet") {
		t.Errorf("got %v", got.Err)
	}
	if diff := cmp.Diff([]string{"GPU-0/MIG-a"}, n.heldBy("u1")); diff != "" {
		t.Error(diff)
	}
}

// TestAdminAccessToDynamic: a claim for admin access creates and holds nothing. It gets the devices that exist.
func TestAdminAccessToDynamic(t *testing.T) {
	n := dynamicNode()
	n.devices[2].UUID = "MIG-b"
	d := n.driver(t)
	claim := allocated("monitor", "u1", result("all", 0), result("all", 1), result("all", 2))
	for i := range claim.Status.Allocation.Devices.Results {
		yes := true
		claim.Status.Allocation.Devices.Results[i].AdminAccess = &yes
	}
	got := one(t.Context(), t, d, claim)
	if got.Err != nil || len(got.Devices) != 3 || len(n.heldBy("u1")) > 0 {
		t.Fatalf("got %v, holds %v", got, n.heldBy("u1"))
	}
	want := [][]string{{"k8s.berth.dev/gpu=GPU-0"}, nil, {"k8s.berth.dev/gpu=MIG-b"}}
	for i, device := range got.Devices {
		if diff := cmp.Diff(want[i], device.CDIDeviceIDs); diff != "" {
			t.Errorf("device %d: %s", i, diff)
		}
	}
}
