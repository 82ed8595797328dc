package dra

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// sliceConfig is an entry of a claim's allocation that wants a time slice.
func sliceConfig(source resourceapi.AllocationConfigSource, slice string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	text := fmt.Sprintf(`{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"mode":"timeSlicing","timeSlice":%q}}`, slice)
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(text)}}}}
}

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

// slicesOf are the time slices that the ledger has, by GPU.
func (l *fakeLedger) slicesOf() map[gpu.UUID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[gpu.UUID]string{}
	for key, claim := range l.held {
		for _, device := range claim.Devices {
			if device.Key == key {
				all[key.GPU] = device.TimeSlice
			}
		}
	}
	return all
}

// TestTimeSlices: the configuration of a request is the last one of the claim, else the last one of the class; its time slice is in the
// ledger before it is waited for, and the default is not waited for.
func TestTimeSlices(t *testing.T) {
	n := newNode(5)
	d := n.driver(t)
	claim := allocated("train", "u1", result("a", 0), result("b", 1), result("c/big", 2), result("c2", 3), result("watch", 4))
	claim.Status.Allocation.Devices.Results[4].AdminAccess = new(true)
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
		sliceConfig(fromClaim, "medium", "a"),
		sliceConfig(fromClass, "long", "a", "b"), sliceConfig(fromClass, "default", "b"), sliceConfig(fromClass, "short", "watch"),
		sliceConfig(fromClaim, "long", "c"), sliceConfig(fromClaim, "short", "c/big"),
	}
	if got := one(t.Context(), t, d, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	if diff := cmp.Diff(map[gpu.UUID]string{"GPU-0": "medium", "GPU-1": "default", "GPU-2": "short", "GPU-3": "default"}, n.ledger.slicesOf()); diff != "" {
		t.Errorf("in the ledger (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"GPU-0 medium", "GPU-2 short"}, n.sliced); diff != "" {
		t.Errorf("waited for (-want +got):\n%s", diff)
	}
	if err := undo(t.Context(), t, d, claim); err != nil || len(n.ledger.slicesOf()) > 0 {
		t.Errorf("%v; left %v", err, n.ledger.slicesOf())
	}
}

// TestInForce compares the choice of the configuration with a simple twin: sorted by source, the last one that names the request.
func TestInForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "c/x", "c/y"}
		var all []settings
		for i := range rapid.IntRange(0, 6).Draw(t, "entries") {
			all = append(all, settings{field: fmt.Sprint(i), ofClass: rapid.Bool().Draw(t, "class"),
				requests: rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID[string]).Draw(t, "requests")})
		}
		request := rapid.SampledFrom([]string{"a", "b", "c/x", "c/y"}).Draw(t, "request")
		sorted := slices.SortedStableFunc(slices.Values(all), func(a, b settings) int {
			if a.ofClass == b.ofClass {
				return 0
			}
			if a.ofClass {
				return -1
			}
			return 1
		})
		want := ""
		for _, one := range sorted {
			if len(one.requests) == 0 || slices.ContainsFunc(one.requests, func(name string) bool { return name == request || strings.HasPrefix(request, name+"/") }) {
				want = one.field
			}
		}
		got := ""
		if found := inForce(all, request); found != nil {
			got = found.field
		}
		if got != want {
			t.Fatalf("request %s of %v has the configuration %q, want %q", request, all, got, want)
		}
	})
}

// TestTimeSliceNotSet: a prepare whose time slice cannot be set fails with the reason and keeps the devices for the retry.
func TestTimeSliceNotSet(t *testing.T) {
	n := newNode(2)
	d := n.driver(t)
	claim := allocated("train", "u1", result("gpu", 1))
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{sliceConfig(fromClaim, "short")}
	n.notSliced["GPU-1"] = errors.New("Unable to set timeslice")
	if got := one(t.Context(), t, d, claim); got.Err == nil || got.Err.Error() != "claim ns/train, request gpu: Unable to set timeslice" {
		t.Errorf("got %v", got.Err)
	}
	if n.ledger.slicesOf()["GPU-1"] != "short" {
		t.Errorf("the ledger has %v", n.ledger.slicesOf())
	}
	delete(n.notSliced, "GPU-1")
	if got := one(t.Context(), t, d, claim); got.Err != nil {
		t.Error(got.Err)
	}
}

// TestTimeSliceOfMIGDevice: a MIG device has no time slice of its own, so a configuration that wants one for it is refused.
func TestTimeSliceOfMIGDevice(t *testing.T) {
	n := newNode(2)
	n.devices[1].Key, n.devices[1].Profile = gpu.DeviceKey{GPU: "GPU-1", MIG: "MIG-1"}, "1g.10gb"
	d := n.driver(t)
	claim := allocated("train", "u1", result("whole", 0), result("part", 1))
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{sliceConfig(fromClass, "short")}
	got := one(t.Context(), t, d, claim)
	const want = "request part, status.allocation.devices.results[1]: device gpu-1 is a MIG device, and only whole GPUs have the time slice short of status.allocation.devices.config[0]"
	if got.Err == nil || !strings.Contains(got.Err.Error(), want) || len(n.ledger.holders()) > 0 {
		t.Errorf("got %v; held %v", got.Err, n.ledger.holders())
	}
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{sliceConfig(fromClass, "short", "whole"), sliceConfig(fromClass, "default", "part")}
	if got := one(t.Context(), t, d, claim); got.Err != nil {
		t.Error(got.Err)
	}
	if diff := cmp.Diff(map[gpu.UUID]string{"GPU-0": "short", "GPU-1": ""}, n.ledger.slicesOf()); diff != "" {
		t.Errorf("in the ledger (-want +got):\n%s", diff)
	}
}

// TestKilledWithTimeSlice: a prepare that dies at a step is completed by the retry of the next agent or undone by its unprepare, and the
// ledger has the time slice from the step on at which it has the devices.
func TestKilledWithTimeSlice(t *testing.T) {
	for _, step := range []Step{StepLocked, StepChecked, StepAcquired, StepSliced} {
		for _, retry := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, retry %v", step, retry), func(t *testing.T) {
				n := newNode(2)
				n.fault = func(at Step) error {
					if at == step {
						return errors.New("died")
					}
					return nil
				}
				claim := allocated("train", "u1", result("gpu", 1))
				claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{sliceConfig(fromClaim, "short")}
				if got := one(t.Context(), t, n.driver(t), claim); got.Err == nil {
					t.Fatal("the step was not reached")
				}
				acquired := step == StepAcquired || step == StepSliced
				if got := n.ledger.slicesOf()["GPU-1"]; (got == "short") != acquired {
					t.Errorf("after %s the ledger has the time slice %q", step, got)
				}
				n.fault = nil
				next := n.driver(t)
				if retry {
					if got := one(t.Context(), t, next, claim); got.Err != nil || n.ledger.slicesOf()["GPU-1"] != "short" {
						t.Errorf("%v; the ledger has %v", got.Err, n.ledger.slicesOf())
					}
				}
				if err := undo(t.Context(), t, next, claim); err != nil || len(n.ledger.holders()) > 0 {
					t.Errorf("%v; left %v", err, n.ledger.holders())
				}
			})
		}
	}
}
