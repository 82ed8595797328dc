package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (w *gangWorld) addGang(t *testing.T) {
	w.number++
	g := &randomGang{name: fmt.Sprintf("g%d", w.number), gpus: w.random.IntN(5), size: 1 + w.random.IntN(6)}
	g.least = 1 + w.random.IntN(g.size)
	switch w.random.IntN(8) {
	case 0, 1:
		g.required = true
	case 2:
		g.preferred = true
	case 3:
		g.segment = 2
		g.least = max(2, g.least/2*2)
		g.size = max(g.size, g.least)
	case 4:
		g.apart = true
	}
	if w.random.IntN(3) == 0 {
		g.priority = new(int32(10))
	}
	w.say("add gang %s: %d of %d members with %d GPUs; required %v, preferred %v, segments %d, apart %v", g.name, g.least, g.size, g.gpus, g.required, g.preferred, g.segment, g.apart)
	w.mu.Lock()
	w.gangs[g.name] = g
	w.mu.Unlock()
	for i := range g.size {
		w.add(t, g.pod(i))
	}
}

func (w *gangWorld) remove(name string) {
	_ = w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ml", name)
}

// update writes a pod, or does nothing if it does not exist any more.
func (w *gangWorld) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.version++
	pod.ResourceVersion = fmt.Sprint(w.version)
	w.mu.Unlock()
	_, _ = w.client.CoreV1().Pods("ml").Update(context.Background(), pod, metav1.UpdateOptions{})
}

// fresh returns a pod as it is now, or nil.
func (w *gangWorld) fresh(pod *corev1.Pod) *corev1.Pod {
	object, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "ml", pod.Name)
	if err != nil || object.(*corev1.Pod).UID != pod.UID {
		return nil
	}
	return object.(*corev1.Pod).DeepCopy()
}

// delete deletes a pod at once or in a while. The controller of a gang makes another one, but not always.
func (w *gangWorld) delete(t *testing.T, pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	w.say("delete %s on %q", pod.Name, pod.Spec.NodeName)
	if w.random.IntN(3) == 0 {
		if pod = w.fresh(pod); pod != nil {
			pod.DeletionTimestamp = new(metav1.Now())
			w.update(pod)
			w.terminating = append(w.terminating, pod.Name)
		}
		return
	}
	w.remove(pod.Name)
	w.replace(t, pod)
}

// replace creates the pod that takes the place of one that was deleted.
func (w *gangWorld) replace(t *testing.T, pod *corev1.Pod) {
	g := w.gangs[pod.Labels["berth.dev/pod-group"]]
	if g == nil || w.random.IntN(4) == 0 {
		return
	}
	index := 0
	if _, err := fmt.Sscanf(strings.TrimPrefix(pod.Name, g.name+"-"), "%d", &index); err != nil {
		t.Fatal(err)
	}
	w.add(t, g.pod(index))
}

// end has a pod that is on a node succeed.
func (w *gangWorld) end(_ *testing.T, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || w.random.IntN(2) == 0 {
		return
	}
	if pod = w.fresh(pod); pod == nil {
		return
	}
	w.say("%s succeeds", pod.Name)
	if g := w.gangs[pod.Labels["berth.dev/pod-group"]]; g != nil {
		w.mu.Lock()
		g.done++
		w.mu.Unlock()
	}
	pod.Status.Phase = corev1.PodSucceeded
	w.update(pod)
	w.remove(pod.Name)
}

func (w *gangWorld) dropGang(t *testing.T, pods []*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	g := w.gangs[pods[w.random.IntN(len(pods))].Labels["berth.dev/pod-group"]]
	if g == nil {
		return
	}
	w.say("delete gang %s", g.name)
	w.mu.Lock()
	delete(w.gangs, g.name)
	w.mu.Unlock()
	for _, pod := range w.pods() {
		if pod.Labels["berth.dev/pod-group"] == g.name {
			w.remove(pod.Name)
		}
	}
}

// unlabel takes a pod from its gang.
func (w *gangWorld) unlabel(_ *testing.T, pod *corev1.Pod) {
	g := w.gangs[pod.Labels["berth.dev/pod-group"]]
	if g == nil || g.apart {
		return
	}
	if pod = w.fresh(pod); pod == nil {
		return
	}
	w.say("take the label of %s on %q", pod.Name, pod.Spec.NodeName)
	w.mu.Lock()
	g.edited = true
	w.mu.Unlock()
	delete(pod.Labels, "berth.dev/pod-group")
	w.update(pod)
}

// fail makes bindings fail for a while.
func (w *gangWorld) fail() {
	once, lose, every := map[string]bool{}, w.random.IntN(2) == 0, 1+w.random.IntN(3)
	always := w.random.IntN(2) == 0
	w.say("bindings fail: each %d., always %v, bound nevertheless %v", every, always, lose)
	count := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = func(b *corev1.Binding) (bool, bool) {
		count++
		if count%every != 0 || !always && once[b.Name] {
			return false, false
		}
		once[b.Name] = true
		return !lose, lose
	}
}

// changeNode changes a node, or adds one that was deleted.
func (w *gangWorld) changeNode(t *testing.T) {
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := w.random.IntN(len(list.Items) + 1)
	if i == len(list.Items) {
		for i := range 8 {
			name := fmt.Sprintf("n%d", i)
			if slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Name == name }) {
				continue
			}
			w.say("add node %s", name)
			n := makeNode(name)
			n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", i/2)
			if _, err := w.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.report(makeGPUNode(name, "nvlink", healthy, nil))
			return
		}
		return
	}
	n := list.Items[i].DeepCopy()
	switch dice := w.random.IntN(10); {
	case dice < 3:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
		w.say("cordon %s: %v", n.Name, n.Spec.Unschedulable)
	case dice < 6 && len(n.Spec.Taints) > 0:
		n.Spec.Taints = nil
		w.say("%s is ready", n.Name)
	case dice < 6:
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		w.say("%s is not ready", n.Name)
	case dice < 8 && len(list.Items) > 2:
		w.say("delete node %s", n.Name)
		if err := w.client.CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, pod := range w.pods() {
			if pod.Spec.NodeName == n.Name {
				w.remove(pod.Name)
				w.replace(t, pod)
			}
		}
		return
	default:
		n.Labels["topology.kubernetes.io/rack"] = fmt.Sprintf("rack-%d", w.random.IntN(4))
		w.say("%s is in %s", n.Name, n.Labels["topology.kubernetes.io/rack"])
	}
	if _, err := w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// collect deletes the pods on nodes that do not exist: a binding can come after the deletion of its node.
func (w *gangWorld) collect(t *testing.T) {
	pods, nodes := w.pods(), map[string]bool{"": true}
	for _, n := range w.spares(t, nil) {
		nodes[n.name] = true
	}
	for _, pod := range pods {
		if !nodes[pod.Spec.NodeName] {
			w.say("delete %s, whose node %s is gone", pod.Name, pod.Spec.NodeName)
			w.remove(pod.Name)
			w.replace(t, pod)
		}
	}
}
