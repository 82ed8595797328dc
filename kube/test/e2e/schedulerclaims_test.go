package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestSchedulerClaims checks where berth-scheduler puts pods with ResourceClaims, and which devices they get, on nodes that run containers:
// node-0 has two pairs of linked GPUs, node-1 four GPUs without NVLinks.
func TestSchedulerClaims(t *testing.T) {
	onOwnCluster(t, 2)
	l := newDRALab(t, sandbox.Options{Profile: "a30x4", NodeProfiles: map[string]string{"node-1": "t4x4"},
		Scheduler: "berth-scheduler", SchedulerConfig: schedulerConfig(t, placesConfig)})
	l.setConfigs(t, map[string]string{"default": allByDRA})
	l.waitPublished(t, upTo(4)...)
	l.other.waitPublished(t, upTo(4)...)
	t.Run("Linked", func(t *testing.T) { l.testClaimsLinked(t) })
	t.Run("Degraded", func(t *testing.T) { l.testClaimsDegraded(t) })
}

// testClaimsLinked: a claim for two GPUs of one island gets a pair that NVLinks connect, also when a GPU of the first pair is taken.
// Without the constraint the pod goes to the node where the two are linked.
func (l *draLab) testClaimsLinked(t *testing.T) {
	linked := func(pod *corev1.Pod) {
		t.Helper()
		on := l.on(t, pod)
		got := on.checkClaimed(t, pod, 2)
		if len(got) != 2 {
			return
		}
		shown := hardware(t, on.node.SimDir())
		at := func(minor uint32) int {
			return slices.IndexFunc(shown.GPUs, func(g sim.GPUDescription) bool { return uint32(g.Minor) == minor })
		}
		if link := shown.Topology[at(got[0])][at(got[1])]; !strings.HasPrefix(link, "NV") {
			t.Errorf("pod %s has the GPUs %v of %s, which %s connects; want NVLinks", pod.Name, got, on.node.Name(), link)
		}
	}
	l.claim(t, claimOf("plain", gpuRequest("gpus", 2)))
	plain := l.run(t, podUsing("plain", "plain"))[0]
	linked(plain)
	if err := l.remove(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	pair := claimOf("pair", gpuRequest("gpus", 2))
	pair.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(pool.DefaultDriver + "/nvlinkIsland"))}}
	l.claim(t, claimOf("one", gpuRequest("gpu", 1, attribute("productName", "NVIDIA A30"))), pair)
	one := l.run(t, podUsing("one", "one"))[0]
	two := l.run(t, podUsing("two", "pair"))[0]
	linked(two)
	for _, pod := range []*corev1.Pod{one, two} {
		if err := l.remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	l.waitNothingHeld(t)
}

// testClaimsDegraded degrades the GPU of each node that would be allocated first. Claims for one GPU each get the six healthy GPUs of both
// nodes before the degraded ones.
func (l *draLab) testClaimsDegraded(t *testing.T) {
	degraded := map[string]uint32{}
	for _, r := range []*rig{l.rig, l.other} {
		machine, err := sim.Open(r.node.SimDir())
		if err != nil {
			t.Fatal(err)
		}
		first := hardware(t, r.node.SimDir()).GPUs[0]
		degraded[r.node.Name()] = uint32(first.Minor)
		if err := machine.Inject(sim.Fault{GPU: first.UUID, Throttle: "thermal"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := machine.Clear(sim.ClearAll); err != nil {
				t.Error(err)
			}
		})
	}
	for _, r := range []*rig{l.rig, l.other} {
		waitUntil(t, 60*time.Second, "the GPU is degraded in the GPUNode and the ResourceSlice of "+r.node.Name(), func(ctx context.Context) error {
			object, err := r.gpuNode(ctx) // By it the scheduler chooses the node; it is written at most once per second.
			if err != nil {
				return err
			}
			all, err := r.slices(ctx)
			if err != nil {
				return err
			}
			if state := object.Status.Devices[0].Health.State; state != "Degraded" {
				return fmt.Errorf("in the GPUNode it is %s", state)
			}
			for i := range all {
				for _, d := range all[i].Spec.Devices {
					if health := d.Attributes[pool.AttributeHealth].StringValue; health != nil && *health == "Degraded" {
						return nil
					}
				}
			}
			return fmt.Errorf("no device of %d slices is", len(all))
		})
	}
	for i, count := range []int{6, 2} {
		var pods []*corev1.Pod
		for k := range count {
			name := fmt.Sprintf("claims-one-%d-%d", i, k)
			l.claim(t, claimOf(name, gpuRequest("gpu", 1)))
			pods = append(pods, podUsing(name, name))
		}
		for _, pod := range l.run(t, pods...) {
			got := l.on(t, pod).checkClaimed(t, pod, 1)
			if bad := len(got) == 1 && got[0] == degraded[pod.Spec.NodeName]; bad != (i == 1) {
				t.Errorf("pod %s has GPU %v of %s; degraded: %v, want that only of the last two", pod.Name, got, pod.Spec.NodeName, bad)
			}
		}
	}
}
