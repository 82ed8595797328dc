package dra

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// one prepares one claim.
func one(ctx context.Context, t testing.TB, d *Driver, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	results, err := d.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	return results[claim.UID]
}

// undo unprepares one claim.
func undo(ctx context.Context, t testing.TB, d *Driver, claim *resourceapi.ResourceClaim) error {
	t.Helper()
	object := kubeletplugin.NamespacedObject{UID: claim.UID, NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	results, err := d.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{object})
	if err != nil {
		t.Fatal(err)
	}
	err, there := results[claim.UID]
	if !there {
		t.Fatalf("no result for %s", claim.UID)
	}
	return err
}

func TestPrepare(t *testing.T) {
	n := newNode(4)
	d := n.driver(t)
	other := result("gpu", 0)
	other.Driver = "nic.example.com"
	claim := allocated("train", "u1", result("gpu", 1), other, result("first/big", 3))
	want := kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{
		{Requests: []string{"gpu"}, PoolName: poolName, DeviceName: "gpu-1", CDIDeviceIDs: []string{"k8s.berth.dev/gpu=GPU-1"}},
		{Requests: []string{"first/big"}, PoolName: poolName, DeviceName: "gpu-3", CDIDeviceIDs: []string{"k8s.berth.dev/gpu=GPU-3"}},
	}}
	for range 2 { // It can be repeated.
		if diff := cmp.Diff(want, one(t.Context(), t, d, claim)); diff != "" {
			t.Fatal(diff)
		}
	}
	if diff := cmp.Diff(map[gpu.UUID]string{"GPU-1": "u1", "GPU-3": "u1"}, n.ledger.holders()); diff != "" {
		t.Error(diff)
	}
	held := n.ledger.held[gpu.DeviceKey{GPU: "GPU-3"}]
	wantHeld := ledger.Claim{UID: "u1", Namespace: "ns", Name: "train", Pods: []gpu.Pod{{UID: "pod-u1", Namespace: "ns", Name: "pod-of-train"}},
		Devices: []ledger.ClaimDevice{{Key: gpu.DeviceKey{GPU: "GPU-1"}, TimeSlice: "default", Requests: []string{"gpu"}}, {Key: gpu.DeviceKey{GPU: "GPU-3"}, TimeSlice: "default", Requests: []string{"first/big"}}}}
	if diff := cmp.Diff(wantHeld, held); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		if err := undo(t.Context(), t, d, claim); err != nil {
			t.Error(err)
		}
	}
	if len(n.ledger.holders()) != 0 {
		t.Errorf("left %v", n.ledger.holders())
	}
}

// TestAllocatedAgain: a claim with another allocation under its UID holds the devices of that one only, also when it has none to hold.
func TestAllocatedAgain(t *testing.T) {
	n := newNode(3)
	d := n.driver(t)
	watching := result("gpu", 1)
	watching.AdminAccess = new(true)
	for _, step := range []struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    map[gpu.UUID]string
	}{
		{[]resourceapi.DeviceRequestAllocationResult{result("gpu", 0)}, map[gpu.UUID]string{"GPU-0": "u1"}},
		{[]resourceapi.DeviceRequestAllocationResult{result("gpu", 2)}, map[gpu.UUID]string{"GPU-2": "u1"}},
		{[]resourceapi.DeviceRequestAllocationResult{watching}, map[gpu.UUID]string{}},
	} {
		if got := one(t.Context(), t, d, allocated("train", "u1", step.results...)); got.Err != nil {
			t.Fatal(got.Err)
		}
		if diff := cmp.Diff(step.want, n.ledger.holders()); diff != "" {
			t.Errorf("holders (-want +got):\n%s", diff)
		}
	}
}

func TestRefuse(t *testing.T) {
	opaque := func(driver string, source resourceapi.AllocationConfigSource) resourceapi.DeviceAllocationConfiguration {
		return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: []string{"gpu"}, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{}`)}}}}
	}
	shared := types.UID("share")
	tests := map[string]struct {
		edit func(*node, *resourceapi.ResourceClaim)
		want []string // all in the error
	}{
		"unhealthy": {func(n *node, _ *resourceapi.ResourceClaim) {
			n.devices[1].Health, n.devices[1].Reason = gpu.Unhealthy, "XID 79: the GPU has fallen off the bus"
		}, []string{"device gpu-1 is unhealthy: XID 79"}},
		"draining": {func(n *node, _ *resourceapi.ResourceClaim) { n.devices[1].Health = gpu.Draining }, []string{"is draining: the reason is not known"}},
		"not ready": {func(n *node, _ *resourceapi.ResourceClaim) { n.devices[1].NotReady = "MIG mode changes" },
			[]string{"cannot be used by containers yet: MIG mode changes"}},
		"gone":       {func(n *node, _ *resourceapi.ResourceClaim) { n.devices = n.devices[:1] }, []string{"gpu-1 is not on this node any more"}},
		"not in CDI": {func(n *node, _ *resourceapi.ResourceClaim) { n.notReady["GPU-1"] = errors.New("no such device") }, []string{"not in the CDI spec on disk: no such device"}},
		"replica":    {func(n *node, _ *resourceapi.ResourceClaim) { n.devices[1].Key.Share = 2 }, []string{"is a replica", "request gpu", "results[0]"}},
		"held by a pod": {func(n *node, _ *resourceapi.ResourceClaim) {
			n.ledger.other[gpu.DeviceKey{GPU: "GPU-1"}] = "pod ns/old"
		}, []string{"request gpu", "held by pod ns/old"}},
		"ledger not stored": {func(n *node, _ *resourceapi.ResourceClaim) { n.ledger.fail = errors.New("disk full") }, []string{"disk full"}},
		"other pool":        {func(_ *node, c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "node-b" }, []string{"pool node-b"}},
		"share":             {func(_ *node, c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].ShareID = &shared }, []string{"shareID"}},
		"twice": {func(_ *node, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result("again", 1))
		}, []string{"request again", "twice"}},
		"config of the claim": {func(_ *node, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, opaque("nic.example.com", ""), opaque(driverName, resourceapi.AllocationConfigSourceClaim))
		}, []string{"request gpu, status.allocation.devices.config[1].opaque.parameters: apiVersion: is missing", "correct it in the claim (or its template)"}},
		"config of the class": {func(_ *node, c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, opaque(driverName, resourceapi.AllocationConfigSourceClass))
		}, []string{"config[0].opaque", "correct it in the DeviceClass"}},
		"deallocated": {func(_ *node, c *resourceapi.ResourceClaim) { c.Status.Allocation = nil }, []string{"status.allocation is empty"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(3)
			claim := allocated("train", "u1", result("gpu", 1))
			d := n.driver(t)
			test.edit(n, claim)
			got := one(t.Context(), t, d, claim)
			if got.Err == nil {
				t.Fatalf("prepared %v", got.Devices)
			}
			for _, want := range append(test.want, "claim ns/train") {
				if !strings.Contains(got.Err.Error(), want) {
					t.Errorf("%q is not in %q", want, got.Err)
				}
			}
			if strings.Contains(got.Err.Error(), "\n") || len(n.ledger.holders()) != 0 {
				t.Errorf("%v; holders %v", got.Err, n.ledger.holders())
			}
		})
	}
}

// TestAdminAccess: a claim for monitoring gets devices that others hold, or that are unhealthy, and holds nothing.
func TestAdminAccess(t *testing.T) {
	n := newNode(2)
	d := n.driver(t)
	if got := one(t.Context(), t, d, allocated("train", "u1", result("gpu", 0))); got.Err != nil {
		t.Fatal(got.Err)
	}
	n.change(1, func(device *Device) { device.Health, device.Reason = gpu.Unhealthy, "XID 79" })
	yes := true
	monitor := allocated("monitor", "u2", result("all", 0), result("all", 1))
	for i := range monitor.Status.Allocation.Devices.Results {
		monitor.Status.Allocation.Devices.Results[i].AdminAccess = &yes
	}
	got := one(t.Context(), t, d, monitor)
	if got.Err != nil || len(got.Devices) != 2 {
		t.Fatalf("%v %v", got.Devices, got.Err)
	}
	// The kubelet's record has what the answer had; an agent that has lost the ledger holds nothing for it.
	lost := newNode(2)
	listed := Listed{UID: "u2", Namespace: "ns", Name: "monitor"}
	for _, device := range got.Devices {
		if device.Requests[0] != "all" {
			t.Errorf("the requests of %s are %v, want the claim's own first", device.DeviceName, device.Requests)
		}
		listed.Devices = append(listed.Devices, ListedDevice{Pool: device.PoolName, Name: device.DeviceName, Requests: device.Requests})
	}
	lost.prepared = []Listed{listed}
	lost.driver(t)
	if len(lost.ledger.holders()) != 0 {
		t.Errorf("adopted %v", lost.ledger.holders())
	}
	if err := undo(t.Context(), t, d, monitor); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[gpu.UUID]string{"GPU-0": "u1"}, n.ledger.holders()); diff != "" {
		t.Error(diff)
	}
}

// TestSameName: a claim that was deleted and made again under its name is another claim.
func TestSameName(t *testing.T) {
	n := newNode(1)
	d := n.driver(t)
	old, again := allocated("train", "u1", result("gpu", 0)), allocated("train", "u2", result("gpu", 0))
	if got := one(t.Context(), t, d, old); got.Err != nil {
		t.Fatal(got.Err)
	}
	if got := one(t.Context(), t, d, again); got.Err == nil || !strings.Contains(got.Err.Error(), "u1") {
		t.Fatalf("%v", got)
	}
	if err := undo(t.Context(), t, d, again); err != nil {
		t.Fatal(err)
	}
	if n.ledger.holders()["GPU-0"] != "u1" {
		t.Fatal("the older claim has lost its GPU")
	}
	if err := undo(t.Context(), t, d, old); err != nil {
		t.Fatal(err)
	}
	if got := one(t.Context(), t, d, again); got.Err != nil {
		t.Fatal(got.Err)
	}
}

// TestUnprepareFails: a release that cannot be written is an error, and is repeated.
func TestUnprepareFails(t *testing.T) {
	n := newNode(1)
	d := n.driver(t)
	claim := allocated("train", "u1", result("gpu", 0))
	if got := one(t.Context(), t, d, claim); got.Err != nil {
		t.Fatal(got.Err)
	}
	n.ledger.fail = errors.New("disk full")
	if err := undo(t.Context(), t, d, claim); err == nil || !strings.Contains(err.Error(), "claim ns/train: disk full") {
		t.Fatalf("%v", err)
	}
	n.ledger.fail = nil
	if err := undo(t.Context(), t, d, claim); err != nil || len(n.ledger.holders()) != 0 {
		t.Fatalf("%v %v", err, n.ledger.holders())
	}
}

// TestRetryWhilePreparing: a call for a claim waits for the one before it, other claims do not; a prepare that the kubelet has given up
// acquires nothing after the unprepare.
func TestRetryWhilePreparing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(2)
		hang := make(chan struct{})
		slow := true
		deps := n.deps(n.ledger)
		deps.Ready = func(_ context.Context, id gpu.UUID) error {
			if id == "GPU-0" && slow {
				<-hang // It ignores the context, as a file system that hangs.
			}
			return nil
		}
		d := New(deps)
		if err := d.Adopt(); err != nil {
			t.Fatal(err)
		}
		claim := allocated("train", "u1", result("gpu", 0))
		first, giveUp := context.WithTimeout(t.Context(), 45*time.Second)
		defer giveUp()
		prepared := make(chan error, 2)
		go func() { prepared <- one(first, t, d, claim).Err }()
		synctest.Wait()

		if got := one(t.Context(), t, d, allocated("other", "u2", result("gpu", 1))); got.Err != nil {
			t.Error("another claim was not prepared meanwhile: ", got.Err)
		}
		// A call whose time ends while it waits.
		second, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := one(second, t, d, claim); !errors.Is(got.Err, context.DeadlineExceeded) {
			t.Errorf("got %v", got.Err)
		}
		time.Sleep(time.Minute) // The kubelet has given up, and the pod is deleted.
		unprepared := make(chan error, 1)
		go func() { unprepared <- undo(t.Context(), t, d, claim) }()
		synctest.Wait()
		slow = false
		close(hang)
		if err := <-prepared; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the late prepare returned %v", err)
		}
		if err := <-unprepared; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(map[gpu.UUID]string{"GPU-1": "u2"}, n.ledger.holders()); diff != "" {
			t.Error(diff)
		}
		if len(d.locks.locks) != 0 {
			t.Errorf("%d locks are left", len(d.locks.locks))
		}
	})
}

// TestParallel: the claims of one call are prepared at the same time.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(8)
		n.ledger.holdOn = func(ledger.Claim) { time.Sleep(time.Second) }
		d := n.driver(t)
		var claims []*resourceapi.ResourceClaim
		for i := range 8 {
			claims = append(claims, allocated(name(i), name(i), result("gpu", i)))
		}
		began := time.Now()
		results, err := d.PrepareResourceClaims(t.Context(), claims)
		if err != nil || len(results) != 8 || len(n.ledger.holders()) != 8 {
			t.Fatalf("%v %v %v", results, err, n.ledger.holders())
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("8 claims took %s", took)
		}
	})
}

// TestKilled: killed at any step, a prepare is finished by a retry or undone by an unprepare of the next start.
func TestKilled(t *testing.T) {
	died := errors.New("died")
	for _, step := range []Step{StepLocked, StepChecked, StepAcquired, StepReleased} {
		for _, retry := range []bool{true, false} {
			n := newNode(2)
			n.fault = func(s Step) error {
				if s == step {
					return died
				}
				return nil
			}
			claim := allocated("train", "u1", result("gpu", 0))
			got := one(t.Context(), t, n.driver(t), claim)
			if (got.Err == nil) != (step == StepReleased) {
				t.Fatalf("%s: %v", step, got.Err)
			}
			if step == StepReleased {
				if err := undo(t.Context(), t, n.driver(t), claim); !errors.Is(err, died) {
					t.Fatal(err)
				}
			}
			n.fault = nil
			next := n.driver(t)
			if retry {
				if got := one(t.Context(), t, next, claim); got.Err != nil || n.ledger.holders()["GPU-0"] != "u1" {
					t.Fatalf("%s: %v", step, got.Err)
				}
			}
			if err := undo(t.Context(), t, next, claim); err != nil || len(n.ledger.holders()) != 0 {
				t.Fatalf("%s: %v %v", step, err, n.ledger.holders())
			}
		}
	}
}

// TestAdopt: claims that the kubelet lists are held before the server may register, also when the ledger was lost.
func TestAdopt(t *testing.T) {
	n := newNode(2)
	n.prepared = []Listed{
		{UID: "u1", Namespace: "ns", Name: "train", PodUIDs: []string{"p1"}, Devices: []ListedDevice{{Pool: poolName, Name: "gpu-1", Requests: []string{"gpu"}}}},
		{UID: "u2", Namespace: "ns", Name: "removed", Devices: []ListedDevice{{Pool: poolName, Name: "gpu-9"}}},
		{UID: "u3", Namespace: "ns", Name: "elsewhere", Devices: []ListedDevice{{Pool: "node-b", Name: "gpu-0"}}},
		{UID: "u4", Namespace: "ns", Name: "in-progress"},
	}
	d := n.driver(t)
	want := map[gpu.DeviceKey]ledger.Claim{{GPU: "GPU-1"}: {UID: "u1", Namespace: "ns", Name: "train", Pods: []gpu.Pod{{UID: "p1"}},
		Devices: []ledger.ClaimDevice{{Key: gpu.DeviceKey{GPU: "GPU-1"}, Requests: []string{"gpu"}}}}}
	if diff := cmp.Diff(want, n.ledger.held); diff != "" {
		t.Error(diff)
	}
	if !d.adopted.Is() {
		t.Error("no call is served")
	}
	failing := New(n.deps(n.ledger))
	n.ledger.fail = errors.New("disk full")
	if err := failing.Adopt(); err == nil || failing.adopted.Is() {
		t.Errorf("%v %v", err, failing.adopted.Is())
	}
}

// TestHealth: the first report has all devices, a change is sent at once, and without one a report is sent within the timeout.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(3)
		n.devices[2].Health = ""
		d := n.driver(t)
		ctx, cancel := context.WithCancel(t.Context())
		reports, ended := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 1)
		go func() { ended <- d.WatchHealthStatus(ctx, reports) }()
		statuses := func() (all []kubeletplugin.HealthStatus) {
			report := <-reports
			for _, device := range report.Devices {
				all = append(all, device.Health)
				if device.PoolName != poolName || device.HealthCheckTimeout != HealthTimeout || !device.LastUpdated.Equal(time.Now()) {
					t.Errorf("%+v at %s", device, time.Now())
				}
			}
			return all
		}
		const healthy, unhealthy, unknown = kubeletplugin.HealthStatusHealthy, kubeletplugin.HealthStatusUnhealthy, kubeletplugin.HealthStatusUnknown
		began := time.Now()
		if diff := cmp.Diff([]kubeletplugin.HealthStatus{healthy, healthy, unknown}, statuses()); diff != "" {
			t.Error(diff)
		}
		n.change(1, func(device *Device) { device.Health, device.Reason = gpu.Unhealthy, "XID 79" })
		if diff := cmp.Diff([]kubeletplugin.HealthStatus{healthy, unhealthy, unknown}, statuses()); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the change took %s", took)
		}
		n.change(1, func(device *Device) { device.Health, device.Reason = gpu.Draining, "a reset is needed" })
		if diff := cmp.Diff([]kubeletplugin.HealthStatus{healthy, healthy, unknown}, statuses()); diff != "" {
			t.Error(diff)
		}
		_ = statuses()
		if took := time.Since(began); took > HealthTimeout/2 {
			t.Errorf("the report was not repeated for %s", took)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestCallsWaitForAdopt: while it is not known which claims are prepared, a call waits, and says so at its end; it continues once it is.
func TestCallsWaitForAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(1)
		d := New(n.deps(n.ledger))
		claim := allocated("train", "u1", result("gpu", 0))
		const want = "claim ns/train: this agent has not yet taken the ledger over from another one"
		began := time.Now()
		if got := one(t.Context(), t, d, claim); got.Err == nil || !strings.HasPrefix(got.Err.Error(), want) || time.Since(began) != prepareWithin {
			t.Errorf("%v after %s", got.Err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := undo(ctx, t, d, claim); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("unprepare: %v", err)
		}
		time.AfterFunc(3*time.Second, func() {
			if err := d.Adopt(); err != nil {
				t.Error(err)
			}
		})
		began = time.Now()
		if got := one(t.Context(), t, d, claim); got.Err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", got.Err, time.Since(began))
		}
	})
}
