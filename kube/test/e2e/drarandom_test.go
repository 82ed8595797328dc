package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// use is what the configuration does with a GPU.
type use int

// The uses. GPUs with a layout are allocated through DRA.
const (
	byPlugin use = iota
	byDRA
	onDemand
	smallLayout
	largeLayout
	uses
)

// rule is the rest of the configuration's rule for GPUs of a use.
func (u use) rule() string {
	return map[use]string{
		byPlugin:    "  resourceName: " + wholeResource + "\n  mig: {layout: all-disabled}\n",
		byDRA:       "  allocation: {api: dra}\n  mig: {layout: all-disabled}\n",
		onDemand:    "  allocation: {api: dra}\n  dynamicMIG: true\n",
		smallLayout: "  allocation: {api: dra}\n  mig: {devices: {1g.10gb: 7}}\n",
		largeLayout: "  allocation: {api: dra}\n  mig: {devices: {3g.40gb: 2}}\n",
	}[u]
}

// devices is the number of devices that a GPU of the use has in the slices; on demand, the MIG mode does not change it on an H100.
func (u use) devices() int {
	return map[use]int{byDRA: 1, onDemand: 26, smallLayout: 7, largeLayout: 2}[u]
}

// randomWorld is the state of testDRARandomSteps.
type randomWorld struct {
	*draLab
	random *rand.Rand
	uses   [nodeGPUs]use
	pods   []*corev1.Pod
	made   int
	broken int // the index of the GPU with a fault; -1 for none
}

// testDRARandomSteps does random steps on the first node, and checks after each that no device has two holders, that none is
// advertised through both APIs, and that the ledger has what the containers have.
func testDRARandomSteps(t *testing.T, l *draLab) {
	soakOnly(t)
	w := &randomWorld{draLab: l, random: seeded(t), broken: -1}
	w.uses = [nodeGPUs]use{byPlugin, byPlugin, byPlugin, byDRA, byDRA, onDemand, smallLayout, largeLayout}
	w.configure(t)
	w.waitSettled(t)
	t.Cleanup(func() { w.cleanUp(t, w.pods...) })
	hopper := attribute("architecture", "Hopper")
	steps := []struct {
		name   string
		weight int
		do     func(*testing.T)
	}{
		{"a pod with a claim", 5, func(t *testing.T) { w.create(t, w.claiming(t, gpuRequest("gpu", 1, hopper))) }},
		{"a pod with a claim for a small MIG device", 4, func(t *testing.T) { w.create(t, w.claiming(t, migRequest("gpu", "1g.10gb", 1))) }},
		{"a pod with a claim for large MIG devices", 2, func(t *testing.T) { w.create(t, w.claiming(t, migRequest("gpu", "3g.40gb", 2))) }},
		{"a pod with the extended resource", 3, func(t *testing.T) { w.create(t, podRequesting(w.name(), gpuResource, 1, "sleep")) }},
		{"a pod of the device plugin", 4, func(t *testing.T) { w.create(t, podRequesting(w.name(), wholeResource, 1, "sleep")) }},
		{"delete a pod", 9, w.deleteOne},
		{"change the use of a GPU", 8, func(t *testing.T) { w.uses[w.random.IntN(nodeGPUs)] = use(w.random.IntN(int(uses))); w.configure(t) }},
		{"break or repair a GPU", 2, w.breakOrRepair},
		{"kill the agent", 2, func(t *testing.T) { w.kill(t); w.start(t) }},
		{"restart the kubelet", 1, func(t *testing.T) {
			if err := w.node.RestartKubelet(timeout(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
		}},
	}
	total := 0
	for _, step := range steps {
		total += step.weight
	}
	var done []string
	for range 300 {
		at := w.random.IntN(total)
		for _, step := range steps {
			if at -= step.weight; at >= 0 {
				continue
			}
			done = append(done, step.name)
			step.do(t)
			break
		}
		w.check(t)
		if t.Failed() {
			t.Fatalf("after the steps: %s", strings.Join(done, "; "))
		}
	}
	if err := w.machine.Clear(sim.ClearAll); err != nil {
		t.Fatal(err)
	}
	if err := w.remove(t.Context(), w.pods...); err != nil {
		t.Fatal(err)
	}
	w.pods = nil
	w.waitNothingHeld(t)
	w.waitSettled(t)
	t.Logf("done: %s", strings.Join(done, "; "))
}

// waitSettled waits until every GPU, none of which is held, has its use.
func (w *randomWorld) waitSettled(t *testing.T) {
	t.Helper()
	plugin := 0
	want := map[uint32]int{}
	for i, u := range w.uses {
		if u == byPlugin {
			plugin++
		} else {
			want[uint32(i)] = u.devices()
		}
	}
	waitUntil(t, time.Minute, fmt.Sprintf("each GPU is published as %v says", w.uses), func(ctx context.Context) error {
		all, err := w.published(ctx)
		got := map[uint32]int{}
		for _, minor := range all {
			got[minor]++
		}
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("by GPU there are %v devices, want %v", got, want)
		}
		return err
	})
	w.waitKubelet(t, without0(map[string]int{wholeResource: plugin}))
}

func without0(counts map[string]int) map[string]int {
	for name, n := range counts {
		if n == 0 {
			delete(counts, name)
		}
	}
	return counts
}

func (w *randomWorld) name() string {
	w.made++
	return fmt.Sprint("random-", w.made)
}

func (w *randomWorld) configure(t *testing.T) {
	var indices [uses][]string
	for i, u := range w.uses {
		indices[u] = append(indices[u], fmt.Sprint(i))
	}
	rules := "gpus:\n"
	for u, list := range indices {
		if len(list) > 0 {
			rules += "- select: {index: [" + strings.Join(list, ", ") + "]}\n" + use(u).rule()
		}
	}
	w.setConfigs(t, map[string]string{"default": plainConfig + rules})
}

// claiming returns a pod with a claim of its own.
func (w *randomWorld) claiming(t *testing.T, request resourceapi.DeviceRequest) *corev1.Pod {
	name := w.name()
	claim := claimOf(name, request)
	client := w.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	if _, err := client.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = client.Delete(ctx, name, metav1.DeleteOptions{})
	})
	return podUsing(name, name)
}

// create creates a pod, and does not wait for it: it may have to wait for a GPU.
func (w *randomWorld) create(t *testing.T, pod *corev1.Pod) {
	made, err := w.CreatePod(t.Context(), w.onNode(pod))
	if err != nil {
		t.Fatal(err)
	}
	w.pods = append(w.pods, made)
	time.Sleep(time.Duration(w.random.IntN(1500)) * time.Millisecond)
}

func (w *randomWorld) deleteOne(t *testing.T) {
	if len(w.pods) == 0 {
		return
	}
	at := w.random.IntN(len(w.pods))
	if err := w.remove(t.Context(), w.pods[at]); err != nil {
		t.Fatal(err)
	}
	w.pods = slices.Delete(w.pods, at, at+1)
}

func (w *randomWorld) breakOrRepair(t *testing.T) {
	if w.broken >= 0 {
		w.broken = -1
		if err := w.machine.Clear(sim.ClearAll); err != nil {
			t.Fatal(err)
		}
		return
	}
	w.broken = w.random.IntN(nodeGPUs)
	w.inject(t, w.broken, 79)
}

// check reads the containers, the slices, the kubelet's list and the ledger.
func (w *randomWorld) check(t *testing.T) {
	t.Helper()
	users := map[string]string{} // by GPU, and GPU and capability
	used := map[string][]uint32{}
	for _, pod := range w.pods {
		now, err := w.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if now.Status.Phase != corev1.PodRunning {
			continue
		}
		minors := w.gpusIn(t, now, "main") // It waits until a new kubelet has seen the pod.
		_, capabilities := w.nodesOf(t, now)
		for _, minor := range minors {
			w.use(t, users, minor, capabilities, pod.Name)
		}
		used[holderOf(t, w.Cluster, now)] = minors
	}
	w.checkLedger(t, used)
	// Both lists change by themselves: what is in both must be gone from one of them soon.
	waitUntil(t, 20*time.Second, "no GPU is advertised through both APIs", func(ctx context.Context) error {
		published, err := w.published(ctx)
		if err != nil {
			return err
		}
		advertised, err := w.healthyIDs(ctx)
		if err != nil {
			return err
		}
		for _, id := range advertised[wholeResource] {
			if minor, err := w.minorOf(strings.ToLower(id)); err != nil || slices.Contains(published, minor) {
				return fmt.Errorf("GPU %d (%s) is (%w); published are %v", minor, id, err, published)
			}
		}
		return nil
	})
}

// use notes that a pod has a GPU: alone, or MIG devices of it, which have capabilities that no other pod has.
func (w *randomWorld) use(t *testing.T, users map[string]string, minor uint32, capabilities []string, pod string) {
	t.Helper()
	const parts = "MIG devices"
	whole := users[fmt.Sprint(minor)]
	if whole != "" && (whole != parts || len(capabilities) == 0) {
		t.Errorf("GPU %d is in pod %s, and %s has it", minor, pod, whole)
	}
	users[fmt.Sprint(minor)] = pod
	if len(capabilities) > 0 {
		users[fmt.Sprint(minor)] = parts
	}
	for _, name := range capabilities {
		if other := users["capability "+name]; other != "" {
			t.Errorf("%s of GPU %d is in the pods %s and %s", name, minor, other, pod)
		}
		users["capability "+name] = pod
	}
}

// holderOf returns the holder of a pod's devices as holdings names it. Each pod has one kind of request.
func holderOf(t *testing.T, c *sandbox.Cluster, pod *corev1.Pod) string {
	t.Helper()
	claim := ""
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		claim = status.ResourceClaimName
	}
	for _, one := range pod.Spec.ResourceClaims {
		claim = *one.ResourceClaimName
	}
	if claim == "" {
		return "Pod " + string(pod.UID)
	}
	found, err := c.Client().ResourceV1().ResourceClaims(pod.Namespace).Get(t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "Claim " + string(found.UID)
}

// checkLedger waits until the ledger has the GPUs of each running pod for its holder, and checks that a GPU that is held whole has no
// other holder. A pod may have ended since: only the holders that are given are compared.
func (w *randomWorld) checkLedger(t *testing.T, used map[string][]uint32) {
	t.Helper()
	waitUntil(t, 20*time.Second, "the ledger has what the containers have", func(ctx context.Context) error {
		held, err := w.holdings(ctx)
		if err != nil {
			return err
		}
		got := map[string][]uint32{}
		owners := map[string][]string{} // of each GPU
		for key, holder := range held {
			whole, _, _ := strings.Cut(key, "/")
			minor, err := w.minorOf(strings.ToLower(whole))
			if err != nil {
				return err
			}
			owners[whole] = append(owners[whole], holder)
			if !slices.Contains(got[holder], minor) {
				got[holder] = append(got[holder], minor)
			}
		}
		for key := range held {
			if others := owners[key]; len(others) > 1 {
				t.Errorf("GPU %s is held whole, and its holders are %v", key, others)
			}
		}
		for holder, minors := range used {
			if slices.Sort(got[holder]); !slices.Equal(got[holder], minors) {
				return fmt.Errorf("%s has the GPUs %v, and its containers %v", holder, got[holder], minors)
			}
		}
		return nil
	})
}
