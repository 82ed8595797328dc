package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// randomWorld is the state of testDRARandomSteps.
type randomWorld struct {
	*draLab
	random *rand.Rand
	// plugin are the indices of the GPUs that the configuration gives to the device plugin, as wholeResource.
	plugin [nodeGPUs]bool
	pods   []*corev1.Pod
	made   int
	broken int // the index of the GPU with a fault; -1 for none
}

// testDRARandomSteps does random steps on the first node, and checks after each that no GPU has two holders, and that none is
// advertised through both APIs.
func testDRARandomSteps(t *testing.T, l *draLab) {
	w := &randomWorld{draLab: l, random: seeded(t), broken: -1}
	for i := range 4 {
		w.plugin[i] = true
	}
	w.configure(t)
	l.waitPublished(t, 4, 5, 6, 7)
	t.Cleanup(func() { w.cleanUp(t, w.pods...) })
	steps := []struct {
		name   string
		weight int
		do     func(*testing.T)
	}{
		{"a pod with a claim", 5, func(t *testing.T) { w.create(t, w.claiming(t)) }},
		{"a pod with the extended resource", 3, func(t *testing.T) { w.create(t, podRequesting(w.name(), gpuResource, 1, "sleep")) }},
		{"a pod of the device plugin", 5, func(t *testing.T) { w.create(t, podRequesting(w.name(), wholeResource, 1, "sleep")) }},
		{"delete a pod", 6, w.deleteOne},
		{"switch the API of a GPU", 6, func(t *testing.T) { i := w.random.IntN(nodeGPUs); w.plugin[i] = !w.plugin[i]; w.configure(t) }},
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
	for range killRounds(30, 300) {
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
	var plugin, rest int
	for _, is := range w.plugin {
		if is {
			plugin++
		} else {
			rest++
		}
	}
	w.waitKubelet(t, without0(map[string]int{wholeResource: plugin}))
	waitUntil(t, 40*time.Second, fmt.Sprintf("%d GPUs are published", rest), func(ctx context.Context) error {
		got, err := w.published(ctx)
		if err == nil && len(got) != rest {
			err = fmt.Errorf("they are %v", got)
		}
		return err
	})
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
	var indices []string
	for i, is := range w.plugin {
		if is {
			indices = append(indices, fmt.Sprint(i))
		}
	}
	rules := "gpus:\n"
	if len(indices) > 0 {
		rules += "- select: {index: [" + strings.Join(indices, ", ") + "]}\n  resourceName: " + wholeResource + "\n"
	}
	if len(indices) < nodeGPUs {
		rules += "- select: {}\n  allocation: {api: dra}\n"
	}
	w.setConfigs(t, map[string]string{"default": plainConfig + rules})
}

// claiming returns a pod with a claim of its own for one GPU.
func (w *randomWorld) claiming(t *testing.T) *corev1.Pod {
	name := w.name()
	claim := claimOf(name, gpuRequest("gpu", 1, attribute("architecture", "Hopper")))
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

// check reads the containers, the slices and the kubelet's list.
func (w *randomWorld) check(t *testing.T) {
	t.Helper()
	users := map[uint32]string{}
	for _, pod := range w.pods {
		now, err := w.Client().CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if now.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, minor := range w.gpusIn(t, now, "main") {
			if other := users[minor]; other != "" {
				t.Errorf("GPU %d is in pods %s and %s", minor, other, pod.Name)
			}
			users[minor] = pod.Name
		}
	}
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
