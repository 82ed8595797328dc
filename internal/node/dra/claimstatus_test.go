package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// statusNode is a node with claims, and the API server that gets their status.
type statusNode struct {
	held    signal.Broadcast
	settled signal.Broadcast

	mu     sync.Mutex
	claims []StatusClaim
	// applied are the statuses that were written, and answer is the API server's answer.
	applied []string
	answer  func(name string) error
	// problems are the texts of the problems, by source.
	problems map[string]string
}

// summary shows a status: claim (UID): device UUID status reason.
func summary(claim *resourceapi.ResourceClaim) string {
	text := fmt.Sprintf("%s (%s)", claim.Name, claim.UID)
	for i := range claim.Status.Devices {
		device := &claim.Status.Devices[i]
		data := map[string]string{}
		_ = json.Unmarshal(device.Data.Raw, &data)
		condition := device.Conditions[0]
		text += fmt.Sprintf(" %s/%s/%s %s %s=%s %s %s", device.Driver, device.Pool, device.Device, data["uuid"]+data["parentUUID"]+data["profile"]+data["pciBusID"],
			condition.Type, condition.Status, condition.Reason, condition.LastTransitionTime.UTC().Format(time.TimeOnly))
	}
	return text
}

func (n *statusNode) run(t *testing.T) {
	n.problems = map[string]string{}
	client := fake.NewClientset()
	client.PrependReactor("patch", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchActionImpl)
		claim := &resourceapi.ResourceClaim{}
		if err := json.Unmarshal(patch.Patch, claim); err != nil || patch.Subresource != "status" {
			t.Errorf("%v: %s of %q", err, patch.Patch, patch.Subresource)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.answer != nil {
			if err := n.answer(claim.Name); err != nil {
				return true, nil, err
			}
		}
		n.applied = append(n.applied, summary(claim))
		return true, claim, nil
	})
	w := NewStatusWriter(StatusDeps{
		Client: client, Driver: "gpu.berth.dev", Held: n.held.Subscribe, Settled: n.settled.Subscribe, Clock: clock.RealClock{},
		Claims: func() []StatusClaim {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.claims
		},
		Report: func(source string, problems ...gpu.Cause) {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.problems, source)
			for _, problem := range problems {
				n.problems[source] += problem.Code + ": " + problem.Message + "."
			}
		},
	})
	go func() { _ = w.Run(t.Context()) }()
	synctest.Wait()
}

// set makes claims those of the ledger, and wants these writes.
func (n *statusNode) set(t *testing.T, changed *signal.Broadcast, claims []StatusClaim, want ...string) {
	t.Helper()
	n.mu.Lock()
	n.claims = claims
	n.mu.Unlock()
	changed.Set()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if diff := cmp.Diff(want, n.applied); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	n.applied = nil
}

func claimWith(uid string, devices ...StatusDevice) StatusClaim {
	return StatusClaim{UID: uid, Namespace: "ml", Name: "train-" + uid, Devices: devices}
}

// statusDevice is a GPU since 12:00:00; the time of a test begins at midnight.
func statusDevice(id gpu.UUID, health gpu.State) StatusDevice {
	return StatusDevice{Pool: "n", Name: strings.ToLower(string(id)), UUID: id, PCI: "0000:1b:00.0", Health: health, Since: time.Date(1999, 12, 31, 12, 0, 0, 0, time.UTC)}
}

// TestStatusWrites: a claim is written when it gets devices and when their health changes, and not otherwise; the time of the condition is
// that of the change.
func TestStatusWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &statusNode{}
		n.run(t)
		part := StatusDevice{Pool: "n", Name: "gpu-b-1g10gb-0", UUID: "MIG-b", Parent: "GPU-b", Profile: "1g.10gb", PCI: "0000:2b:00.0"}
		const healthy = "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=True Healthy 12:00:00"
		n.set(t, &n.held, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, healthy)
		n.set(t, &n.settled, n.claims)
		n.set(t, &n.held, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy)), claimWith("2", part, statusDevice("GPU-b", gpu.Degraded))},
			"train-2 (2) gpu.berth.dev/n/gpu-b GPU-b0000:1b:00.0 Healthy=True Degraded 00:00:10 gpu.berth.dev/n/gpu-b-1g10gb-0 MIG-bGPU-b1g.10gb0000:2b:00.0 Healthy=Unknown NotKnown 00:00:10")
		n.set(t, &n.settled, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Unhealthy))}, "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=False Unhealthy 00:00:15")
		n.set(t, &n.settled, n.claims)
		n.set(t, &n.settled, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=True Healthy 00:00:25")
		n.set(t, &n.held, nil)
		n.set(t, &n.held, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, healthy)
		n.set(t, &n.held, []StatusClaim{{UID: "without a name", Devices: []StatusDevice{statusDevice("GPU-a", gpu.Healthy)}}})
	})
}

// TestRemoved: the status says that a device's GPU is not on the node any more, and so does a problem, also of a device without a name,
// until the GPU is back or the claim has ended.
func TestRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &statusNode{}
		n.run(t)
		const healthy, gone = "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=True Healthy ", "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=False Gone "
		lost := statusDevice("GPU-a", gpu.Gone)
		lost.Reason = "GPU GPU-a is not on this node any more"
		unnamed := lost
		unnamed.Name = ""
		problem := func(want string) {
			t.Helper()
			if got := n.problems[SourceRemoved]; got != want {
				t.Errorf("the problem is %q, want %q", got, want)
			}
		}
		n.set(t, &n.held, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, healthy+"12:00:00")
		problem("")
		n.set(t, &n.settled, []StatusClaim{claimWith("1", lost)}, gone+"00:00:05")
		problem("DRA_GPU_REMOVED: claim ml/train-1: " + lost.Reason + ".")
		n.set(t, &n.settled, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, healthy+"00:00:10")
		problem("")
		n.set(t, &n.settled, []StatusClaim{claimWith("1", unnamed)}, "train-1 (1)")
		problem("DRA_GPU_REMOVED: claim ml/train-1: " + lost.Reason + ".")
		n.set(t, &n.held, nil)
		problem("")
	})
}

// TestNextAgentWritesTheSame: an agent that starts again applies the same content.
func TestNextAgentWritesTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const want = "train-1 (1) gpu.berth.dev/n/gpu-a GPU-a0000:1b:00.0 Healthy=True Healthy 12:00:00"
		for range 2 {
			n := &statusNode{}
			n.run(t)
			n.set(t, &n.held, []StatusClaim{claimWith("1", statusDevice("GPU-a", gpu.Healthy))}, want)
			time.Sleep(time.Hour)
		}
	})
}

// TestFailure: the failure of one claim is reported and tried again after 30 s, and the others are written; a claim that is gone is no
// failure.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &statusNode{answer: func(name string) error {
			switch name {
			case "train-1":
				return errors.New("no route")
			case "train-2":
				return apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), name, errors.New("no role"))
			case "train-3":
				return apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
			case "train-4":
				return apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), name,
					field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "4", "field is immutable")})
			}
			return nil
		}}
		n.run(t)
		var claims []StatusClaim
		for i := range 5 {
			claims = append(claims, claimWith(fmt.Sprint(i+1)))
		}
		n.set(t, &n.held, claims, "train-5 (5)")
		if got := n.problems[StatusSource]; got != "DRA_STATUS_FAILED: write status.devices of claim ml/train-1: no route (and 1 more)." {
			t.Errorf("the problem is %q", got)
		}
		n.mu.Lock()
		n.answer = nil
		n.mu.Unlock()
		time.Sleep(statusRetry)
		n.set(t, &n.held, claims, "train-1 (1)", "train-2 (2)")
		if len(n.problems) > 0 {
			t.Errorf("after the repair: %q", n.problems)
		}
	})
}

// TestForbidden: the problem says how to give the agent the right, in both forms in which API servers refuse it.
func TestForbidden(t *testing.T) {
	for name, answer := range map[string]error{
		"no right to the status": apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "train-1", errors.New("no role")),
		"no right to the driver": apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), "train-1",
			field.ErrorList{field.Forbidden(field.NewPath("status", "devices"), `changing status.devices requires resource="resourceclaims/driver"`)}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &statusNode{answer: func(string) error { return answer }}
				n.run(t)
				n.set(t, &n.held, []StatusClaim{claimWith("1")})
				if got := n.problems[StatusSource]; !strings.Contains(got, "set rights.dra") || strings.Contains(got, "\n") {
					t.Errorf("the problem is %q", got)
				}
			})
		})
	}
}

// TestPace: many claims are written one after the other, at most two in a second.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		n := &statusNode{}
		n.answer = func(string) error { times = append(times, time.Now()); return nil }
		for i := range 10 {
			n.claims = append(n.claims, claimWith(fmt.Sprint(i)))
		}
		n.run(t)
		time.Sleep(time.Minute)
		n.mu.Lock() // answer is called with it.
		defer n.mu.Unlock()
		if len(times) != 10 || times[9].Sub(times[0]) != 9*statusPause {
			t.Errorf("writes at %v", times)
		}
	})
}
