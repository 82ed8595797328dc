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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// TestDRA allocates GPUs through Dynamic Resource Allocation.
func TestDRA(t *testing.T) {
	onOwnCluster(t, 2)
	l := newDRALab(t, sandbox.Options{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *draLab)
	}{
		{"Claims", testDRAClaims},
		{"Config", testDRAConfig},
		{"Handover", testDRAHandover},
		{"Refused", testDRARefused},
		{"Auto", testDRAAuto},
		{"Together", testDRATogether},
		{"Faults", testDRAFaults},
		{"PluginStops", testDRAPluginStops},
		{"TwoAPIs", testDRATwoAPIs},
		{"Kills", testDRAKills},
		{"DynamicMIG", testDRADynamicMIG},
		{"Steps", testDRASteps},
		{"Upgrade", testDRAUpgrade},
		{"RandomSteps", testDRARandomSteps},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			test.run(t, l)
			l.checkNoConflict(t)
			t.Logf("%s took %s", test.name, ms(time.Since(start)))
		})
	}
}

func upTo(n uint32) (all []uint32) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// testDRAClaims checks the kinds of claims for whole GPUs.
func testDRAClaims(t *testing.T, l *draLab) {
	start := l.setConfigs(t, map[string]string{"default": allByDRA})
	published := l.waitPublished(t, upTo(8)...)
	l.other.waitPublished(t, upTo(8)...)
	t.Logf("both nodes have published 8 GPUs %s after the edit", ms(published.Sub(start)))
	l.waitKubelet(t, map[string]int{})

	t.Run("ByCEL", func(t *testing.T) {
		memory := fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("40Gi")) >= 0`, pool.DefaultDriver)
		l.claim(t, claimOf("hopper", gpuRequest("gpu", 1, memory, attribute("architecture", "Hopper"), attribute("productName", "NVIDIA H100 80GB HBM3"))),
			claimOf("ampere", gpuRequest("gpu", 1, memory, attribute("architecture", "Ampere"))))
		pods := l.run(t, podUsing("hopper", "hopper"), podUsing("ampere", "ampere"))
		l.checkClaimed(t, pods[0], 1)
		l.other.checkClaimed(t, pods[1], 1)
	})
	t.Run("LinkedGPUs", func(t *testing.T) {
		claim := claimOf("linked", gpuRequest("gpus", 4))
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(pool.DefaultDriver + "/nvlinkIsland"))}}
		l.claim(t, claim)
		pod := l.run(t, podUsing("linked", "linked"))[0]
		l.on(t, pod).checkClaimed(t, pod, 4)
	})
	t.Run("PrioritizedList", func(t *testing.T) {
		choice := func(name string) *resourceapi.ResourceClaim {
			first := func(name, architecture string) resourceapi.DeviceSubRequest {
				exact := gpuRequest(name, 1, attribute("architecture", architecture)).Exactly
				return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: exact.DeviceClassName, AllocationMode: exact.AllocationMode, Count: 1, Selectors: exact.Selectors}
			}
			return claimOf(name, resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{first("h100", "Hopper"), first("a100", "Ampere")}})
		}
		l.claim(t, claimOf("all-h100", gpuRequest("gpus", 7, attribute("architecture", "Hopper"))), choice("last-h100"), choice("an-a100"))
		most := l.run(t, podUsing("all-h100", "all-h100"))[0]
		last := l.run(t, podUsing("last-h100", "last-h100"))[0]
		more := l.run(t, podUsing("an-a100", "an-a100"))[0]
		seven, one := l.checkClaimed(t, most, 7), l.checkClaimed(t, last, 1)
		if both := slices.Sorted(slices.Values(append(slices.Clone(seven), one...))); !slices.Equal(both, upTo(8)) {
			t.Errorf("the claims have the GPUs %v and %v, want all of them once", seven, one)
		}
		l.other.checkClaimed(t, more, 1)
	})
	t.Run("SharedByTwoPods", func(t *testing.T) {
		l.claim(t, claimOf("shared", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
		first := l.run(t, podUsing("shared-a", "shared"))[0]
		second := l.run(t, podUsing("shared-b", "shared"))[0]
		if a, b := l.checkClaimed(t, first, 1), l.gpusIn(t, second, "main"); !slices.Equal(a, b) {
			t.Errorf("the pods have the GPUs %v and %v, want the same", a, b)
		}
		time.Sleep(5 * time.Second) // The ledger is compared with the containers every 2 s.
		if err := l.remove(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		l.checkClaimed(t, second, 1)
	})
	t.Run("TwoClaims", func(t *testing.T) {
		l.claim(t, claimOf("one", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), claimOf("two", gpuRequest("gpu", 2, attribute("architecture", "Hopper"))))
		pod := l.run(t, podUsing("two-claims", "one", "two"))[0]
		l.checkClaimed(t, pod, 3)
	})
	t.Run("AdminAccess", func(t *testing.T) {
		patch := []byte(`{"metadata":{"labels":{"resource.kubernetes.io/admin-access":"true"}}}`)
		if _, err := l.Client().CoreV1().Namespaces().Patch(t.Context(), metav1.NamespaceDefault, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		monitor := gpuRequest("gpus", 8, attribute("architecture", "Hopper"))
		monitor.Exactly.AdminAccess = new(true)
		l.claim(t, claimOf("user", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))), claimOf("monitor", monitor))
		user := l.run(t, podUsing("user", "user"))[0]
		pod := l.run(t, podUsing("monitor", "monitor"))[0]
		l.checkClaimed(t, pod, 8)
		l.checkClaimed(t, user, 1)
		held, err := l.holdings(t.Context())
		if err != nil || len(held) != 1 {
			t.Errorf("the ledger has %v (%v), want the user's GPU only", held, err)
		}
		time.Sleep(5 * time.Second) // The ledger is compared with the containers every 2 s.
	})
	l.waitNothingHeld(t)
}

// on returns the node that a pod runs on.
func (l *draLab) on(t testing.TB, pod *corev1.Pod) *rig {
	t.Helper()
	for _, r := range []*rig{l.rig, l.other} {
		if r.node.Name() == pod.Spec.NodeName {
			return r
		}
	}
	t.Fatalf("pod %s runs on %q", pod.Name, pod.Spec.NodeName)
	return nil
}

// testDRAHandover changes the API of GPUs while pods hold them: a GPU is advertised by one API at a time, and never by
// any while the other one's pod runs.
func testDRAHandover(t *testing.T, l *draLab) {
	byPlugin := func(indices string) string {
		return plainConfig + "gpus:\n- select: {index: [" + indices + "]}\n  resourceName: " + wholeResource + "\n- select: {}\n  allocation: {api: dra}\n"
	}
	l.setConfigs(t, map[string]string{"default": byPlugin("0, 1, 2, 3")})
	l.waitPublished(t, 4, 5, 6, 7)
	l.waitAllocatableOf(t, map[string]int{wholeResource: 4})

	l.claim(t, claimOf("claimed", gpuRequest("gpu", 1, attribute("architecture", "Hopper"))))
	claimed := l.run(t, podUsing("claimed", "claimed"))[0]
	own := l.checkClaimed(t, claimed, 1)
	plain := podRequesting("plain", wholeResource, 1)
	plain.Spec.NodeSelector = map[string]string{corev1.LabelHostname: l.node.Name()}
	requested := l.run(t, plain)[0]
	held := l.gpusIn(t, requested, "main")
	if len(held) != 1 || held[0] > 3 || own[0] < 4 {
		t.Fatalf("the claim has GPU %v and the device plugin's pod %v", own, held)
	}

	stop := l.watchAPIs(t)
	defer stop()
	// Every GPU changes sides, besides the two that are held.
	l.setConfigs(t, map[string]string{"default": byPlugin("4, 5, 6, 7")})
	left := slices.DeleteFunc(upTo(4), func(n uint32) bool { return n == held[0] })
	l.waitPublished(t, slices.Sorted(slices.Values(append(slices.Clone(left), own...)))...)
	l.waitKubelet(t, map[string]int{wholeResource: 3}) // Besides the one that the claim has; the one of the old rule drains.
	l.waitTaint(t, own[0], pool.DefaultDriver+"/draining")

	l.claim(t, claimOf("rest", gpuRequest("gpus", 3, attribute("architecture", "Hopper"))))
	rest := l.run(t, podUsing("rest", "rest"))[0]
	if got := l.checkClaimed(t, rest, 3); !slices.Equal(got, left) {
		t.Errorf("the claim has the GPUs %v, want %v", got, left)
	}
	l.checkClaimed(t, claimed, 1)

	if err := l.remove(t.Context(), requested); err != nil {
		t.Fatal(err)
	}
	l.waitPublished(t, slices.Sorted(slices.Values(append(upTo(4), own...)))...)
	if err := l.remove(t.Context(), claimed); err != nil {
		t.Fatal(err)
	}
	l.waitPublished(t, upTo(4)...)
	l.waitKubelet(t, map[string]int{wholeResource: 4})
	if err := l.remove(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	l.waitNothingHeld(t)

	// All of them, back and forth.
	for range 2 {
		l.setConfigs(t, map[string]string{"default": byPlugin("0, 1, 2, 3")})
		l.waitPublished(t, 4, 5, 6, 7)
		l.waitKubelet(t, map[string]int{wholeResource: 4})
		l.setConfigs(t, map[string]string{"default": byPlugin("4, 5, 6, 7")})
		l.waitPublished(t, upTo(4)...)
		l.waitKubelet(t, map[string]int{wholeResource: 4})
	}
}

// waitTaint waits until the device of a GPU has a taint.
func (r *rig) waitTaint(t testing.TB, minor uint32, key string) time.Time {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("GPU %d has the taint %s", minor, key), func(ctx context.Context) error {
		all, err := r.slices(ctx)
		if err != nil {
			return err
		}
		for i := range all {
			for _, device := range all[i].Spec.Devices {
				if number, err := r.minorOf(device.Name); err != nil || number != minor {
					continue
				}
				if slices.ContainsFunc(device.Taints, func(taint resourceapi.DeviceTaint) bool { return strings.HasPrefix(taint.Key, key) }) {
					return nil
				}
				return fmt.Errorf("it has %v", device.Taints)
			}
		}
		return fmt.Errorf("it is not published")
	})
	return time.Now()
}
