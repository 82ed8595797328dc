package validation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/nodeop"
)

// TestSuccess follows one validation, write by write.
func TestSuccess(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.settle()
	w.checkNothingLeft("Validated pod")
	want := []string{
		"create NodeOperation",
		"status NodeOperation", // Started
		"create Pod",
		"status NodeOperation", // PodCreated
		"status NodeOperation", // PodScheduled
		"status NodeOperation", // it runs
		"status NodeOperation", // PodFinished
		"status NodeOperation", // Accepted
		"delete NodeOperation",
		"delete Pod",
		"patch NodeOperation",
	}
	if diff := cmp.Diff(want, w.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	before := w.wrote
	w.settle()
	if w.wrote != before {
		t.Errorf("at rest it writes %v", w.writes[before:])
	}
}

// TestSteps checks what the operation shows while it is under way.
func TestSteps(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.stuck, w.agentAway = true, true
	w.must(nodeName)
	op := w.op()
	if diff := cmp.Diff(v1alpha1.NodeOperationSpec{Node: "n", Kind: "Validate", Owner: "operator/validation", Key: "key-1", Restore: []string{"Pod berth-system/berth-validate-n"}}, op.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	w.checkStatus("Active 1 [Started PodCreated] pod berth-system/berth-validate-n waits for the scheduler")
	if got := op.Status.Steps[1].Evidence; got != string(w.pod().UID) {
		t.Errorf("the evidence of PodCreated is %q, want the UID", got)
	}
	pod := w.pod()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available"}}
	w.do(w.api.Status().Update(t.Context(), pod))
	w.must(nodeName)
	w.checkStatus("Active 1 [Started PodCreated] pod berth-system/berth-validate-n is not scheduled: Unschedulable: 0/2 nodes are available")
	w.bind(w.pod())
	w.must(nodeName)
	w.checkStatus("Active 1 [Started PodCreated PodScheduled] pod berth-system/berth-validate-n starts")
	pod = w.pod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "validate-0", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	w.do(w.api.Status().Update(t.Context(), pod))
	w.must(nodeName)
	w.checkStatus("Active 1 [Started PodCreated PodScheduled] container validate-0 of pod berth-system/berth-validate-n does not start: ImagePullBackOff: no such image")
	w.finish(w.pod(), "")
	w.must(nodeName)
	w.checkStatus("Active 1 [Started PodCreated PodScheduled PodFinished] the pod has passed; waits until the agent of the node has read its result")
	w.agentAway = false
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// TestFailure: the result stays, the pod goes, and the next attempt comes after a pause that doubles.
func TestFailure(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.outcomes = []string{"VALIDATE_CUDA"}
	for attempt, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 300 * time.Second, 300 * time.Second} {
		for range 20 {
			if _, err := w.reconcile(nodeName); err != nil {
				t.Fatal(err)
			}
			w.act()
		}
		w.checkStatus(fmt.Sprintf("Failed %d [Started PodCreated PodScheduled PodFinished] VALIDATE_CUDA: why", attempt+1))
		if w.pod() != nil {
			t.Error("the pod of the failed attempt stays")
		}
		if got := w.must(nodeName).RequeueAfter; got != pause {
			t.Errorf("attempt %d: again after %v, want %v", attempt+1, got, pause)
		}
		if e := <-w.events.Events; !strings.Contains(e, fmt.Sprintf("Warning ValidationFailed attempt %d on node n: VALIDATE_CUDA: why", attempt+1)) {
			t.Errorf("event %q", e)
		}
		w.clock.Step(pause)
	}
	w.outcomes = []string{""}
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// TestOtherClock: the time of the next attempt may be that of an operator whose clock is ahead: the attempt is not made later for that.
func TestOtherClock(t *testing.T) {
	for back, want := range map[time.Duration]time.Duration{0: nodeop.Pause(1), time.Hour: 0} {
		w := newWorld(t, held(), gpuStack())
		w.outcomes = []string{"VALIDATE_CUDA", ""}
		for range 20 {
			w.must(nodeName)
			w.act()
		}
		if w.pod() != nil || !strings.HasPrefix(w.status(), "Failed 1 ") {
			t.Fatalf("got %s", w.status())
		}
		w.clock.SetTime(w.clock.Now().Add(-back))
		if got := w.must(nodeName).RequeueAfter; got != want {
			t.Errorf("with a clock that is %v behind, again after %v; want %v", back, got, want)
		}
	}
}

// TestFailedWaitsForFreeDevices: also when its time has come.
func TestFailedWaitsForFreeDevices(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.outcomes = []string{"VALIDATE_CUDA", ""}
	w.settleUntil(func() bool { return strings.HasPrefix(w.status(), "Failed") })
	w.must(nodeName)
	w.act()
	w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Holders = make([]v1alpha1.Holder, 1) })
	w.settle()
	w.checkStatus("Failed 1 [Started PodCreated PodScheduled PodFinished] VALIDATE_CUDA: why")
	w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Holders = nil })
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// settleUntil lets all act in turns until the condition holds.
func (w *world) settleUntil(condition func() bool) {
	w.t.Helper()
	for range 100 {
		if condition() {
			return
		}
		if _, err := w.reconcile(nodeName); err != nil {
			w.t.Fatal(err)
		}
		if condition() {
			return
		}
		w.act()
	}
	w.t.Fatalf("it does not come: %s, %v", w.status(), w.writes)
}

// TestWanted: which nodes are validated.
func TestWanted(t *testing.T) {
	change := func(f func(*v1alpha1.GPUNode)) *v1alpha1.GPUNode {
		n := held()
		f(n)
		return n
	}
	tests := map[string]struct {
		node *v1alpha1.GPUNode
		want bool
	}{
		"held":             {held(), true},
		"held, had failed": {change(func(n *v1alpha1.GPUNode) { n.Status.Gate.Code = "VALIDATE_CUDA" }), true},
		"validated by the agent": {change(func(n *v1alpha1.GPUNode) {
			n.Status.Gate.State, n.Status.Gate.By = v1alpha1.GateValidated, v1alpha1.GateByAgent
		}), true},
		"in use": {change(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Holders = make([]v1alpha1.Holder, 1) }), false},
		"a MIG device in use": {change(func(n *v1alpha1.GPUNode) {
			n.Status.Devices[1].MIGDevices = []v1alpha1.MIGDevice{{Holders: make([]v1alpha1.Holder, 1)}}
		}), false},
		"validated by a pod": {change(func(n *v1alpha1.GPUNode) {
			n.Status.Gate.State, n.Status.Gate.By = v1alpha1.GateValidated, v1alpha1.GateByPod
		}), false},
		"after the time": {change(func(n *v1alpha1.GPUNode) {
			n.Status.Gate.State, n.Status.Gate.By = v1alpha1.GateValidated, v1alpha1.GateByTimeout
		}), true},
		"not held yet":       {change(func(n *v1alpha1.GPUNode) { n.Status.Gate.State = v1alpha1.GateSpecReady }), false},
		"without a key":      {change(func(n *v1alpha1.GPUNode) { n.Status.Gate.Key = "" }), false},
		"without a gate":     {change(func(n *v1alpha1.GPUNode) { n.Status.Gate = nil }), false},
		"nothing advertised": {gpuNode(), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.node, gpuStack())
			w.stuck = true
			w.must(nodeName)
			if got := w.pod() != nil; got != tc.want {
				t.Errorf("a pod: %v, want %v; the operation is %s", got, tc.want, w.status())
			}
		})
	}
}

// TestCancel: what ends an operation, while the pod waits for the scheduler and while it runs. In the end nothing is left, or the next
// validation has passed.
func TestCancel(t *testing.T) {
	tests := map[string]struct {
		change func(*world)
		// gate is the state in the end.
		gate string
		// scheduled is false where it ends only a pod that is not scheduled.
		scheduled bool
	}{
		"the key changed": {func(w *world) { w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Gate.Key = "key-2" }) }, "Validated pod", true},
		"the node is gone": {func(w *world) {
			w.do(w.api.Delete(w.t.Context(), held()))
		}, "none", true},
		"the node lost its driver": {func(w *world) {
			w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Gate.State, n.Status.Gate.Key = v1alpha1.GateFound, "" })
		}, "Found", true},
		"somebody deletes the operation": {func(w *world) { w.do(w.api.Delete(w.t.Context(), w.op())) }, "Validated pod", true},
		"somebody deletes the pod":       {func(w *world) { w.do(w.api.Delete(w.t.Context(), w.pod())) }, "Validated pod", true},
		"somebody else has a device": {func(w *world) {
			w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Holders = make([]v1alpha1.Holder, 1) })
		}, "Held", false},
	}
	for name, tc := range tests {
		for _, at := range []string{stepStarted, stepCreated, stepScheduled, stepFinished} {
			t.Run(name+" after "+at, func(t *testing.T) {
				if at != stepStarted && at != stepCreated && !tc.scheduled {
					t.Skip("the pod has the devices")
				}
				w := newWorld(t, held(), gpuStack())
				w.stuck = at == stepCreated
				w.agentAway = true
				w.settleUntil(func() bool { op := w.op(); return op != nil && step(&op.Status, at) != nil })
				if at == stepStarted && name == "somebody deletes the pod" {
					t.Skip("there is none")
				}
				tc.change(w)
				w.stuck, w.agentAway = false, false
				w.settle()
				w.checkNothingLeft(tc.gate)
			})
		}
	}
}

// TestCutOff ends the operator at each write, before the API server has applied it and after: the next one goes on, and nothing is left.
func TestCutOff(t *testing.T) {
	dra := gpuNode(gpu("nvidia.com/gpu"), gpu("nvidia.com/gpu"))
	for i := range dra.Status.Devices {
		dra.Status.Devices[i].Offered.API = "dra"
	}
	tests := map[string]struct {
		node     *v1alpha1.GPUNode
		outcomes []string
		// during is done when the pod is there for the first time.
		during func(*world)
		gate   string
	}{
		"success with DRA": {dra, []string{""}, nil, "Validated pod"},
		"failure, success": {dra, []string{"VALIDATE_CUDA", ""}, nil, "Validated pod"},
		"the key changes":  {dra, []string{""}, func(w *world) { w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Gate.Key = "key-2" }) }, "Validated pod"},
		"another uses a GPU": {held(), []string{""}, func(w *world) {
			w.stuck = true
			w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Holders = make([]v1alpha1.Holder, 1) })
		}, "Held"},
		"the node goes": {dra, []string{""}, func(w *world) { w.do(w.api.Delete(w.t.Context(), held())) }, "none"},
		"it is deleted": {dra, []string{""}, func(w *world) { w.do(w.api.Delete(w.t.Context(), w.op())) }, "Validated pod"},
		"another image": {dra, []string{""}, func(w *world) {
			w.stack(func(s *v1alpha1.GPUStackSpec) { s.Components[1].Image = "berth-agent:2" })
		}, "Validated pod"},
	}
	for name, tc := range tests {
		run := func(t *testing.T, cut func(n int, write string) (before, after error)) *world {
			w := newWorld(t, tc.node.DeepCopy(), gpuStack())
			w.outcomes, w.cut = tc.outcomes, cut
			if tc.during != nil {
				w.stuck = true
				for i := 0; w.pod() == nil && i < 50; i++ {
					_, _ = w.reconcile(nodeName) // It is cut off.
				}
				w.stuck = false
				tc.during(w)
			}
			w.settle()
			w.checkNothingLeft(tc.gate)
			return w
		}
		clean := run(t, func(int, string) (before, after error) { return nil, nil })
		if len(clean.writes) < 5 {
			t.Fatalf("%s: only %v", name, clean.writes)
		}
		for at, write := range clean.writes {
			t.Run(fmt.Sprintf("%s/before write %d, %s", name, at, write), func(t *testing.T) {
				t.Parallel()
				run(t, func(n int, _ string) (before, after error) {
					if n == at {
						return errors.New("cut off"), nil
					}
					return nil, nil
				})
			})
			t.Run(fmt.Sprintf("%s/after write %d, %s", name, at, write), func(t *testing.T) {
				t.Parallel()
				run(t, func(n int, _ string) (before, after error) {
					if n == at {
						return nil, errors.New("cut off")
					}
					return nil, nil
				})
			})
		}
	}
}

// TestTwoOperations: the older one acts; the other one says for whom it waits.
func TestTwoOperations(t *testing.T) {
	other := &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: "another", UID: "other", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))},
		Spec: v1alpha1.NodeOperationSpec{Node: nodeName, Kind: v1alpha1.OperationValidate, Owner: "somebody"}}
	elsewhere := other.DeepCopy()
	elsewhere.Name, elsewhere.Spec.Node = "elsewhere", "m"
	w := newWorld(t, held(), gpuStack(), other, elsewhere)
	w.settle()
	w.checkStatus("Waiting 0 [] waits for NodeOperation another")
	if w.pod() != nil {
		t.Error("two operations act")
	}
	w.do(w.api.Delete(t.Context(), other))
	w.settle()
	w.checkNothingLeft("Validated pod")

	// A younger one does not stop it; an older one that appears late does.
	w = newWorld(t, held(), gpuStack())
	w.stuck = true
	w.must(nodeName)
	younger := other.DeepCopy()
	younger.Name, younger.CreationTimestamp, younger.ResourceVersion = "younger", metav1.NewTime(time.Unix(2e9, 0)), ""
	w.do(w.api.Create(t.Context(), younger))
	w.must(nodeName)
	w.checkStatus("Active 1 [Started PodCreated] pod berth-system/berth-validate-n waits for the scheduler")
	older := other.DeepCopy()
	older.ResourceVersion = ""
	w.do(w.api.Create(t.Context(), older))
	w.settle()
	w.checkStatus("Waiting 1 [] waits for NodeOperation another")
	if w.pod() != nil {
		t.Error("two operations act")
	}
	w.do(w.api.Delete(t.Context(), older))
	w.stuck = false
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// TestOperationOfOthers: one that has the name and is somebody else's is left alone.
func TestOperationOfOthers(t *testing.T) {
	theirs := &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: opName}, Spec: v1alpha1.NodeOperationSpec{Node: nodeName, Kind: v1alpha1.OperationValidate, Owner: "somebody"}}
	w := newWorld(t, held(), gpuStack(), theirs)
	if _, err := w.reconcile(nodeName); len(w.writes) > 0 || err == nil || !strings.Contains(err.Error(), `is of owner "somebody"; delete it`) {
		t.Errorf("writes %v, error %v", w.writes, err)
	}
	// One of another key, made by hand with the operator's name and without the finalizer, is replaced.
	w = newWorld(t, held(), gpuStack(), &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: opName, UID: "hand"},
		Spec: v1alpha1.NodeOperationSpec{Node: nodeName, Kind: v1alpha1.OperationValidate, Owner: "operator/validation", Key: "old"}})
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// TestDeletedByOthers: an operation that others delete again and again is made with growing delays, and is reported.
func TestDeletedByOthers(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	made := 0
	for range 600 {
		w.clock.Step(100 * time.Millisecond)
		w.writes = nil
		if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: nodeName}}); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(w.writes, "create NodeOperation") {
			made++
			op := &v1alpha1.NodeOperation{}
			w.do(w.api.Get(t.Context(), client.ObjectKey{Name: opName}, op))
			op.Finalizers = nil
			w.do(w.api.Update(t.Context(), op))
			w.do(w.api.Delete(t.Context(), op))
		}
	}
	if problems := w.objects.NotKept(); made < 6 || made > 12 || len(problems) != 1 || !strings.Contains(problems[0].Reason, "it was deleted") {
		t.Errorf("made %d times in a minute; not kept are %v", made, problems)
	}
}

// TestHostilePods: pods and claims of the name that are not the operation's.
func TestHostilePods(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podOf, UID: "theirs", Labels: map[string]string{v1alpha1.ValidationLabel: "node"},
			Annotations: map[string]string{v1alpha1.ValidationKeyAnnotation: "key-1"}},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "validate-0", Args: []string{"validate", "--resource", "x"}}}}}
		change(p)
		p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "validate-0", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: `{"kind":"ValidationResult","passed":true,"resource":"x"}`}}}}}
		return p
	}
	unlabelled := func(p *corev1.Pod) { p.Labels = nil }
	tests := map[string]*corev1.Pod{
		"with our label and key": pod(func(*corev1.Pod) {}),
		"with another key":       pod(func(p *corev1.Pod) { p.Annotations[v1alpha1.ValidationKeyAnnotation] = "key-0" }),
		"of another operation": pod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.APIVersion, Kind: "NodeOperation", Name: opName, UID: "before", Controller: new(true)}}
		}),
	}
	for name, theirs := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, held(), gpuStack(), theirs)
			w.agentAway = true
			w.settleUntil(func() bool { p := w.pod(); return p == nil || p.UID != "theirs" })
			w.agentAway = false
			w.settle()
			w.checkNothingLeft("Validated pod")
		})
	}
	t.Run("without our label", func(t *testing.T) {
		w := newWorld(t, held(), gpuStack(), pod(unlabelled))
		result := w.must(nodeName)
		w.checkStatus("Active 1 [Started] pod berth-system/berth-validate-n exists, and Berth did not make it; fix: delete it")
		if result.RequeueAfter != time.Minute || w.pod().UID != "theirs" {
			t.Errorf("again after %v, pod %v", result.RequeueAfter, w.pod().UID)
		}
		w.do(w.api.Delete(t.Context(), w.pod()))
		w.settle()
		w.checkNothingLeft("Validated pod")
	})
	t.Run("in place of ours", func(t *testing.T) {
		w := newWorld(t, held(), gpuStack())
		w.stuck, w.agentAway = true, true
		w.must(nodeName)
		ours := w.pod()
		theirs := pod(func(p *corev1.Pod) { p.OwnerReferences = ours.OwnerReferences })
		ours.Finalizers = nil
		w.do(w.api.Update(t.Context(), ours))
		w.do(w.api.Delete(t.Context(), ours))
		w.do(w.api.Create(t.Context(), theirs))
		w.must(nodeName)
		w.checkStatus("Failed 1 [Started PodCreated] somebody deleted the pod before its result was seen")
	})
	t.Run("a claim", func(t *testing.T) {
		node := held()
		node.Status.Devices[0].Offered.API, node.Status.Devices[1].Offered.API = "dra", "dra"
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podOf}}
		w := newWorld(t, node, gpuStack(), claim)
		w.must(nodeName)
		w.checkStatus("Active 1 [Started] ResourceClaim berth-system/berth-validate-n exists, and Berth did not make it; fix: delete it")
		w.do(w.api.Delete(t.Context(), w.claim()))
		w.settle()
		w.checkNothingLeft("Validated pod")
	})
}

// TestReplaces: a pod that has not started is made again from other settings; one that runs is not.
func TestReplaces(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	w.stuck = true
	w.must(nodeName)
	first := w.pod()
	w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Health.State = "Unhealthy" })
	w.settle()
	second := w.pod()
	if second.UID == first.UID || second.Spec.Containers[0].Args[4] != "1" {
		t.Errorf("pod %s with %v, want another one for one device", second.UID, second.Spec.Containers[0].Args)
	}
	w.bind(second)
	second = w.pod()
	second.Status.Phase = corev1.PodRunning
	w.do(w.api.Status().Update(t.Context(), second))
	w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[1].Health.State = "Healthy" })
	w.must(nodeName)
	if got := w.pod().UID; got != second.UID {
		t.Error("a pod that runs was replaced")
	}
	w.settle()
	w.checkNothingLeft("Validated pod")
}

// TestRefused: what the API server refuses is a failed attempt; without a GPUStack it waits.
func TestRefused(t *testing.T) {
	w := newWorld(t, held(), gpuStack())
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, podOf, errors.New("exceeded quota"))
	w.cut = func(_ int, write string) (before, after error) {
		if write == "create Pod" {
			return refusal, nil
		}
		return nil, nil
	}
	if got := w.must(nodeName).RequeueAfter; got != 10*time.Second || !strings.HasPrefix(w.status(), "Failed 1 [Started] the API server refuses the pod: pods") {
		t.Errorf("again after %v; %s", got, w.status())
	}
	w.cut = func(int, string) (before, after error) { return nil, nil }
	w.clock.Step(10 * time.Second)
	w.settle()
	w.checkNothingLeft("Validated pod")

	w = newWorld(t, held())
	w.must(nodeName)
	w.checkStatus("Active 1 [Started] waits: there is no GPUStack default, which has the image")
	empty := gpuStack()
	empty.Spec.Components = empty.Spec.Components[:1]
	w.do(w.api.Create(t.Context(), empty))
	w.must(nodeName)
	w.checkStatus("Active 1 [Started] waits: the GPUStack default has no image of the component agent")
	w.stack(func(s *v1alpha1.GPUStackSpec) { s.Components = gpuStack().Spec.Components })
	w.settle()
	w.checkNothingLeft("Validated pod")
}
