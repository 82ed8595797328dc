package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestProperty prepares and unprepares claims at random, in batches, with faults at each step, failing writes, devices that become
// unhealthy, claims made again under their names, and restarts. After each step no GPU has two claims, the ledger has what a simple
// twin says, and at the end nothing is left.
func TestProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const gpus = 4
		n := newNode(gpus)
		died := errors.New("died")
		var dieAt Step
		n.fault = func(s Step) error {
			if s == dieAt {
				return died
			}
			return nil
		}
		driver := func() *Driver {
			d := New(n.deps(n.ledger))
			if err := d.Adopt(); err != nil {
				t.Fatal(err)
			}
			return d
		}
		d := driver()
		// known are all claims ever made, by UID; want are the devices that the twin says are held.
		known, want, unhealthy := map[string]*resourceapi.ResourceClaim{}, map[gpu.UUID]string{}, map[int]bool{}
		devicesOf := func(claim *resourceapi.ResourceClaim) (all []gpu.UUID) {
			for _, r := range claim.Status.Allocation.Devices.Results {
				var i int
				if _, err := fmt.Sscanf(r.Device, "gpu-%d", &i); err != nil {
					t.Fatal(err)
				}
				all = append(all, uuid(i))
			}
			return all
		}
		// allowed reports what the twin says about a prepare without faults.
		allowed := func(claim *resourceapi.ResourceClaim) bool {
			for _, id := range devicesOf(claim) {
				if holder, held := want[id]; held && holder != string(claim.UID) {
					return false
				}
				for i := range gpus {
					if uuid(i) == id && unhealthy[i] {
						return false
					}
				}
			}
			return true
		}
		draw := func(t *rapid.T) *resourceapi.ResourceClaim {
			i, generation := rapid.IntRange(0, 3).Draw(t, "claim"), rapid.IntRange(0, 1).Draw(t, "generation")
			uid := fmt.Sprintf("u%d-%d", i, generation)
			if known[uid] == nil || rapid.IntRange(0, 3).Draw(t, "allocated again") == 0 {
				var results []resourceapi.DeviceRequestAllocationResult
				for device := range gpus {
					if rapid.Bool().Draw(t, "device") {
						results = append(results, result("gpu", device))
					}
				}
				known[uid] = allocated(fmt.Sprintf("c%d", i), uid, results...)
			}
			return known[uid]
		}
		faults := func(t *rapid.T) {
			dieAt, n.ledger.fail = "", nil
			switch rapid.IntRange(0, 3).Draw(t, "fault") {
			case 0:
				dieAt = rapid.SampledFrom([]Step{StepLocked, StepChecked, StepAcquired, StepReleased}).Draw(t, "step")
			case 1:
				n.ledger.fail = errors.New("disk full")
			}
		}
		unprepare := func(claim *resourceapi.ResourceClaim) error {
			results, err := d.UnprepareResourceClaims(context.Background(), []kubeletplugin.NamespacedObject{
				{UID: claim.UID, NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}})
			if err != nil {
				t.Fatal(err)
			}
			return results[claim.UID]
		}
		t.Repeat(map[string]func(*rapid.T){
			"prepare": func(t *rapid.T) {
				claim := draw(t)
				faults(t)
				results, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim})
				if err != nil {
					t.Fatal(err)
				}
				reached := dieAt == "" || dieAt == StepReleased || dieAt == StepAcquired
				devices := devicesOf(claim)
				writes := len(devices) > 0 || n.ledger.holds(string(claim.UID))
				acquired := allowed(claim) && reached && (n.ledger.fail == nil || !writes)
				if ok := acquired && dieAt != StepAcquired; ok != (results[claim.UID].Err == nil) {
					t.Fatalf("%s: ok %v, got %v", claim.UID, ok, results[claim.UID].Err)
				}
				if acquired {
					maps.DeleteFunc(want, func(_ gpu.UUID, holder string) bool { return holder == string(claim.UID) })
					for _, id := range devices {
						want[id] = string(claim.UID)
					}
				}
			},
			"prepareMany": func(t *rapid.T) {
				dieAt, n.ledger.fail = "", nil
				batch := map[types.UID]*resourceapi.ResourceClaim{}
				for range 3 {
					claim := draw(t)
					batch[claim.UID] = claim
				}
				var claims []*resourceapi.ResourceClaim
				for _, claim := range batch {
					claims = append(claims, claim)
				}
				results, err := d.PrepareResourceClaims(context.Background(), claims)
				if err != nil || len(results) != len(claims) {
					t.Fatalf("%v %v", results, err)
				}
				// Which of two claims for one GPU is first is open, but not that both have it.
				claims = slices.DeleteFunc(claims, func(claim *resourceapi.ResourceClaim) bool { return results[claim.UID].Err != nil })
				maps.DeleteFunc(want, func(_ gpu.UUID, holder string) bool {
					return slices.ContainsFunc(claims, func(claim *resourceapi.ResourceClaim) bool { return holder == string(claim.UID) })
				})
				for _, claim := range claims {
					for _, id := range devicesOf(claim) {
						if holder, held := want[id]; held && holder != string(claim.UID) {
							t.Fatalf("%s was given to %s and %s", id, holder, claim.UID)
						}
						want[id] = string(claim.UID)
					}
				}
			},
			"unprepare": func(t *rapid.T) {
				claim := draw(t)
				faults(t)
				err := unprepare(claim)
				if released := n.ledger.fail == nil && dieAt != StepLocked; released {
					maps.DeleteFunc(want, func(_ gpu.UUID, holder string) bool { return holder == string(claim.UID) })
				}
				if ok := n.ledger.fail == nil && dieAt != StepLocked && dieAt != StepReleased; ok != (err == nil) {
					t.Fatalf("%s: ok %v, got %v", claim.UID, ok, err)
				}
			},
			"restart": func(*rapid.T) { d = driver() },
			"health": func(t *rapid.T) {
				i := rapid.IntRange(0, gpus-1).Draw(t, "gpu")
				unhealthy[i] = !unhealthy[i]
				n.change(i, func(device *Device) {
					if device.Health = gpu.Healthy; unhealthy[i] {
						device.Health = gpu.Unhealthy
					}
				})
			},
			"": func(t *rapid.T) {
				if got := n.ledger.holders(); !maps.Equal(got, want) {
					t.Fatalf("the ledger has %v, want %v", got, want)
				}
				if len(d.locks.locks) != 0 {
					t.Fatalf("%d locks are left", len(d.locks.locks))
				}
			},
		})
		dieAt, n.ledger.fail = "", nil
		for _, claim := range known {
			if err := unprepare(claim); err != nil {
				t.Fatal(err)
			}
		}
		if left := n.ledger.holders(); len(left) != 0 {
			t.Fatalf("left %v", left)
		}
	})
}
