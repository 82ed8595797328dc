package dra

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// mpsConfig is an entry of a claim's allocation that wants MPS.
func mpsConfig(source resourceapi.AllocationConfigSource, requests ...string) resourceapi.DeviceAllocationConfiguration {
	const text = `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"mode":"mps","mps":{"pinnedMemoryMiB":8192,"activeThreadPercentage":25}}}`
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(text)}}}}
}

// limitsOf are the limits of the MPS daemons that the ledger has, by GPU.
func (l *fakeLedger) limitsOf() map[gpu.UUID]gpu.MPSLimits {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[gpu.UUID]gpu.MPSLimits{}
	for key, claim := range l.held {
		for _, device := range claim.Devices {
			if device.Key == key && device.MPS.Wanted() {
				all[key.GPU] = device.MPS
			}
		}
	}
	return all
}

// TestMPS: the GPU of the configured request has its daemon before the answer, which has the daemon's CDI name too; the others have none.
func TestMPS(t *testing.T) {
	limits := gpu.MPSLimits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25}
	mixed := []resourceapi.DeviceRequestAllocationResult{result("shared", 0), result("own", 1), result("part", 2), result("watch", 3)}
	mixed[3].AdminAccess = new(true)
	tests := map[string]struct {
		results   []resourceapi.DeviceRequestAllocationResult
		config    []resourceapi.DeviceAllocationConfiguration
		notServed map[gpu.UUID]error
		want      map[gpu.UUID]gpu.MPSLimits
		err       string
	}{
		"of one request": {
			results: mixed, config: []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClaim, "shared"), mpsConfig(fromClaim, "watch")},
			want: map[gpu.UUID]gpu.MPSLimits{"GPU-0": limits},
		},
		"the claim decides": {
			results: mixed[:2], config: []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClass), sliceConfig(fromClaim, "default", "own")},
			want: map[gpu.UUID]gpu.MPSLimits{"GPU-0": limits},
		},
		"of two GPUs": {
			results: mixed[:2], config: []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClass)},
			err: "claim ns/train, request own, status.allocation.devices.results[1]: mode mps of status.allocation.devices.config[0].opaque.parameters is for one GPU of a claim",
		},
		"of a MIG device": {
			results: mixed, config: []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClaim, "part")},
			err: "request part, status.allocation.devices.results[2]: device gpu-2 is a MIG device, and MPS of status.allocation.devices.config[0].opaque.parameters runs on whole GPUs only",
		},
		"without a daemon": {
			results: mixed, config: []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClaim, "shared")},
			notServed: map[gpu.UUID]error{"GPU-0": errors.New("it is Failed")}, want: map[gpu.UUID]gpu.MPSLimits{"GPU-0": limits},
			err: "claim ns/train, request shared: it is Failed",
		},
		"the daemon of an earlier claim": {
			results: mixed[1:2], notServed: map[gpu.UUID]error{"GPU-1": errors.New("it has not ended")},
			err: "claim ns/train, request own: it has not ended",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(4)
			n.devices[2].Key, n.devices[2].Profile = gpu.DeviceKey{GPU: "GPU-2", MIG: "MIG-2"}, "1g.10gb"
			if test.notServed != nil {
				n.notServed = test.notServed
			}
			d := n.driver(t)
			claim := allocated("train", "u1", test.results...)
			claim.Status.Allocation.Devices.Config = test.config
			got := one(t.Context(), t, d, claim)
			if test.err == "" && got.Err != nil || test.err != "" && (got.Err == nil || !strings.Contains(got.Err.Error(), test.err)) {
				t.Fatalf("got %v, want %q", got.Err, test.err)
			}
			if diff := cmp.Diff(test.want, n.ledger.limitsOf(), cmp.Transformer("present", func(m map[gpu.UUID]gpu.MPSLimits) string { return fmt.Sprint(m) })); diff != "" {
				t.Errorf("in the ledger (-want +got):\n%s", diff)
			}
			if got.Err == nil {
				names := got.Devices[0].CDIDeviceIDs
				if want := []string{"k8s.berth.dev/gpu=GPU-0", "k8s.berth.dev/gpu=mps-GPU-0"}; !cmp.Equal(names, want) {
					t.Errorf("the names of the first device are %v, want %v", names, want)
				}
				for _, other := range got.Devices[1:] {
					if len(other.CDIDeviceIDs) != 1 {
						t.Errorf("device %s has the names %v", other.DeviceName, other.CDIDeviceIDs)
					}
				}
				if want := []string{fmt.Sprintf("GPU-0 %+v", limits)}; !cmp.Equal(n.served, want) {
					t.Errorf("the daemons are %v, want %v", n.served, want)
				}
			}
			if err := undo(t.Context(), t, d, claim); err != nil || len(n.ledger.holders()) > 0 {
				t.Errorf("%v; left %v", err, n.ledger.holders())
			}
		})
	}
}

// TestKilledWithMPS: a prepare that dies once the daemon runs is completed by the retry of the next agent.
func TestKilledWithMPS(t *testing.T) {
	n := newNode(1)
	n.fault = func(at Step) error {
		if at == StepServed {
			return errors.New("died")
		}
		return nil
	}
	claim := allocated("train", "u1", result("gpu", 0))
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{mpsConfig(fromClaim)}
	if got := one(t.Context(), t, n.driver(t), claim); got.Err == nil || len(n.ledger.limitsOf()) != 1 {
		t.Fatalf("got %v; the ledger has %v", got.Err, n.ledger.limitsOf())
	}
	n.fault = nil
	if got := one(t.Context(), t, n.driver(t), claim); got.Err != nil || len(got.Devices[0].CDIDeviceIDs) != 2 {
		t.Errorf("the retry has %+v", got)
	}
}
