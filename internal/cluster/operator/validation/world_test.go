package validation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

const (
	namespace = "berth-system"
	nodeName  = "n"
	opName    = "validate-n"
	podOf     = "berth-validate-n"
)

// world is an API server in memory, with a scheduler, a kubelet and an agent that act one step at a time.
type world struct {
	t *testing.T
	// api is the API server; its writes are not counted.
	api client.WithWatch
	r   *Reconciler
	// objects are those that cannot be brought in line.
	objects *attempts.Objects
	// writes are the writes of the operator that succeeded, requests all that it asked the API server.
	writes   []string
	requests []string
	// cut returns an error for a write, before it is applied or after.
	cut    func(n int, write string) (before, after error)
	wrote  int
	uids   int
	clock  *testclock.FakeClock
	events *events.FakeRecorder
	log    bytes.Buffer
	// outcomes are the results of the pods in order: "" passes, else the code. The last one is that of all others.
	outcomes []string
	// stuck keeps the scheduler from binding.
	stuck bool
	// agentAway keeps the agent from reading the pods' results.
	agentAway bool
}

// knownTypes has only what is needed: the fake API server walks all kinds with each write.
var knownTypes = sync.OnceValues(func() (*runtime.Scheme, error) {
	known := runtime.NewScheme()
	return known, errors.Join(corev1.AddToScheme(known), resourceapi.AddToScheme(known), v1alpha1.AddToScheme(known))
})

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	known, err := knownTypes()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: testclock.NewFakeClock(time.Unix(1e9, 0)), events: events.NewFakeRecorder(1000), outcomes: []string{""},
		cut: func(int, string) (before, after error) { return nil, nil }}
	w.api = fake.NewClientBuilder().WithScheme(known).WithObjects(objects...).WithStatusSubresource(&v1alpha1.NodeOperation{}).Build()
	counted := interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			w.requests = append(w.requests, "get "+kindOf(o))
			return c.Get(ctx, key, o, options...)
		},
		Create: func(_ context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return w.write("create", o, func() error { return w.create(o, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return w.write("delete", o, func() error { return c.Delete(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			return w.write("patch", o, func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			return w.write(sub, o, func() error { return c.SubResource(sub).Patch(ctx, o, p, options...) })
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return errors.New("the operator may not update")
		},
	})
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.objects = attempts.New(w.clock, log)
	w.r = New(Deps{Cached: w.api, Client: counted, Events: w.events, Objects: w.objects, Namespace: namespace, Classes: map[string]string{"nvidia.com/gpu": "gpu.berth.dev", "nvidia.com/mig-1g.5gb": "mig-1g.5gb.gpu.berth.dev"},
		Driver: "gpu.berth.dev", Clock: w.clock, Log: log})
	return w
}

// kindOf returns the kind of an object.
func kindOf(o client.Object) string {
	name := fmt.Sprintf("%T", o)
	return name[strings.LastIndex(name, ".")+1:]
}

// write does a write of the operator, or not.
func (w *world) write(verb string, o client.Object, do func() error) error {
	name := verb + " " + kindOf(o)
	w.requests = append(w.requests, name)
	before, after := w.cut(w.wrote, name)
	w.wrote++
	if before != nil {
		return before
	}
	if err := do(); err != nil {
		return err
	}
	w.writes = append(w.writes, name)
	return after
}

// create creates an object as the API server does: with an UID, and with the finalizer of who ends it.
func (w *world) create(o client.Object, options ...client.CreateOption) error {
	w.uids++
	o.SetUID(types.UID(fmt.Sprint("uid-", w.uids)))
	o.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
	switch o := o.(type) {
	case *corev1.Pod:
		o.Finalizers = []string{"test/kubelet"}
		if err := w.api.Create(w.t.Context(), o, options...); err != nil {
			return err
		}
		o.Status.Phase = corev1.PodPending
		return w.api.Status().Update(w.t.Context(), o)
	case *resourceapi.ResourceClaim:
		o.SetFinalizers([]string{"test/protection"})
	}
	return w.api.Create(w.t.Context(), o, options...)
}

// stack changes the GPUStack.
func (w *world) stack(change func(*v1alpha1.GPUStackSpec)) {
	w.t.Helper()
	s := &v1alpha1.GPUStack{}
	w.do(w.api.Get(w.t.Context(), client.ObjectKey{Name: "default"}, s))
	change(&s.Spec)
	w.do(w.api.Update(w.t.Context(), s))
}

// reconcile reconciles a node, without waiting after an attempt before.
func (w *world) reconcile(node string) (reconcile.Result, error) {
	w.t.Helper()
	return w.r.keep(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
}

// must reconciles a node until it writes nothing, and returns the last result.
func (w *world) must(node string) reconcile.Result {
	w.t.Helper()
	for range 20 {
		before := w.wrote
		result, err := w.reconcile(node)
		if err != nil {
			w.t.Fatal(err)
		}
		if w.wrote == before {
			return result
		}
	}
	w.t.Fatalf("it does not come to rest; writes %v", w.writes)
	return reconcile.Result{}
}

// settle lets operator, kubelet, scheduler and agent act in turns until nothing changes, also not later.
func (w *world) settle() {
	w.t.Helper()
	for quiet := 0; quiet < 3; {
		before := w.wrote
		result, err := w.reconcile(nodeName)
		changed := w.act() || w.wrote != before || err != nil
		if w.wrote > 200 {
			w.t.Fatalf("it does not come to rest; writes %v", w.writes)
		}
		if changed {
			quiet = 0
			continue
		}
		quiet++
		w.clock.Step(max(result.RequeueAfter, time.Second))
	}
}

// act takes each pod and claim one step further. It reports whether anything changed.
func (w *world) act() bool {
	w.t.Helper()
	pod := w.pod()
	claim := w.claim()
	switch {
	case pod != nil && pod.DeletionTimestamp != nil:
		pod.Finalizers = nil
		w.do(w.api.Update(w.t.Context(), pod))
		w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Holders = nil })
	case pod == nil && claim != nil && claim.DeletionTimestamp != nil:
		claim.Finalizers = nil
		w.do(w.api.Update(w.t.Context(), claim))
	case pod == nil || !labelled(pod):
		return false
	case pod.Spec.NodeName == "":
		if w.stuck {
			return false
		}
		if len(pod.Spec.ResourceClaims) > 0 && claim == nil {
			w.t.Errorf("the pod has no ResourceClaim")
		}
		w.bind(pod)
	case pod.Status.Phase == corev1.PodPending:
		pod.Status.Phase = corev1.PodRunning
		w.do(w.api.Status().Update(w.t.Context(), pod))
	case pod.Status.Phase == corev1.PodRunning:
		w.finish(pod, w.outcomes[0])
		w.outcomes = w.outcomes[min(1, len(w.outcomes)-1):]
	default:
		return w.judge(pod)
	}
	return true
}

// bind binds a pod as the scheduler does; the agent then reports that it has the devices.
func (w *world) bind(pod *corev1.Pod) {
	w.t.Helper()
	term := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0]
	pod.Spec.NodeName = term.Values[0]
	w.do(w.api.Update(w.t.Context(), pod))
	pod.Status.Phase = corev1.PodPending
	w.do(w.api.Status().Update(w.t.Context(), pod))
	w.gpus(func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Holders = make([]v1alpha1.Holder, 1) })
}

// finish ends a pod.
func (w *world) finish(pod *corev1.Pod, code string) {
	w.t.Helper()
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodSucceeded, nil
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		r := v1alpha1.ValidationResult{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.ValidationAPIVersion, Kind: v1alpha1.KindValidationResult}, Passed: code == "", Resource: c.Args[2], Code: code}
		ended := &corev1.ContainerStateTerminated{Reason: "Completed"}
		if code != "" {
			r.Evidence, ended.ExitCode, ended.Reason, pod.Status.Phase = "why", 1, "Error", corev1.PodFailed
		}
		text, err := json.Marshal(r)
		w.do(err)
		ended.Message = string(text)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Terminated: ended}})
	}
	w.do(w.api.Status().Update(w.t.Context(), pod))
}

// judge lets the agent read the result of a pod of its key.
func (w *world) judge(pod *corev1.Pod) (changed bool) {
	w.t.Helper()
	if w.agentAway {
		return false
	}
	w.gpus(func(n *v1alpha1.GPUNode) {
		g := n.Status.Gate
		if pod.Annotations[v1alpha1.ValidationKeyAnnotation] != g.Key || g.By == v1alpha1.GateByPod {
			return
		}
		before := *g
		if passed, evidence := result(pod); passed {
			g.State, g.By, g.Code, g.Message = v1alpha1.GateValidated, v1alpha1.GateByPod, "", "pod "+pod.Name
		} else {
			g.Code, _, _ = strings.Cut(evidence, ":")
		}
		changed = *g != before
	})
	return changed
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// gpus changes the GPUNode as the agent does.
func (w *world) gpus(change func(*v1alpha1.GPUNode)) {
	w.t.Helper()
	n := &v1alpha1.GPUNode{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: nodeName}, n); apierrors.IsNotFound(err) {
		return
	} else if err != nil {
		w.t.Fatal(err)
	}
	change(n)
	w.do(w.api.Update(w.t.Context(), n))
}

// get reads an object; it is false when there is none.
func (w *world) get(key client.ObjectKey, o client.Object) bool {
	w.t.Helper()
	err := w.api.Get(w.t.Context(), key, o)
	if !apierrors.IsNotFound(err) {
		w.do(err)
	}
	return err == nil
}

func (w *world) pod() *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{}
	if !w.get(client.ObjectKey{Namespace: namespace, Name: podOf}, pod) {
		return nil
	}
	return pod
}

func (w *world) claim() *resourceapi.ResourceClaim {
	w.t.Helper()
	claim := &resourceapi.ResourceClaim{}
	if !w.get(client.ObjectKey{Namespace: namespace, Name: podOf}, claim) {
		return nil
	}
	return claim
}

func (w *world) op() *v1alpha1.NodeOperation {
	w.t.Helper()
	op := &v1alpha1.NodeOperation{}
	if !w.get(client.ObjectKey{Name: opName}, op) {
		return nil
	}
	return op
}

// gate returns the state of the GPUNode.
func (w *world) gate() string {
	w.t.Helper()
	n := &v1alpha1.GPUNode{}
	if !w.get(client.ObjectKey{Name: nodeName}, n) {
		return "none"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", n.Status.Gate.State, n.Status.Gate.By))
}

// status returns phase, attempt, steps and message of the operation.
func (w *world) status() string {
	w.t.Helper()
	op := w.op()
	if op == nil {
		return "none"
	}
	var steps []string
	for _, s := range op.Status.Steps {
		steps = append(steps, s.Name)
	}
	return fmt.Sprintf("%s %d [%s] %s", op.Status.Phase, op.Status.Attempt, strings.Join(steps, " "), op.Status.Message)
}

func (w *world) checkStatus(want string) {
	w.t.Helper()
	if got := w.status(); got != want {
		w.t.Errorf("the operation is  %q\nwant %q", got, want)
	}
}

// checkNothingLeft expects no operation, pod or claim, and the state of the gate.
func (w *world) checkNothingLeft(gate string) {
	w.t.Helper()
	if w.op() != nil || w.pod() != nil || w.claim() != nil {
		w.t.Errorf("left: operation %v, pod %v, claim %v", w.status(), w.pod() != nil, w.claim() != nil)
	}
	if got := w.gate(); got != gate {
		w.t.Errorf("the node is %s, want %s", got, gate)
	}
}

func gpuStack() *v1alpha1.GPUStack {
	return &v1alpha1.GPUStack{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.GPUStackSpec{Version: "1", Namespace: namespace, PullPolicy: "IfNotPresent", PullSecrets: []string{"pull"},
		Components:  []v1alpha1.StackComponent{{Name: "operator", Image: "operator"}, {Name: "agent", Image: "registry.example/berth-agent:1"}},
		Tolerations: []v1alpha1.StackToleration{{Key: "nvidia.com/gpu", Operator: "Exists"}, {Key: "team", Value: "a", Effect: "NoExecute", TolerationSeconds: new(int64(5))}}}}
}

// held is a GPUNode with two GPUs that waits for its validation.
func held() *v1alpha1.GPUNode {
	return gpuNode(gpu("nvidia.com/gpu"), gpu("nvidia.com/gpu"))
}

func gpuNode(devices ...v1alpha1.GPUDevice) *v1alpha1.GPUNode {
	return &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: v1alpha1.GPUNodeStatus{Devices: devices,
		Gate: &v1alpha1.GateStatus{State: v1alpha1.GateHeld, Mode: v1alpha1.GateEnforce, TaintKey: "example.com/not-validated", Key: "key-1"}}}
}

func gpu(resource string) v1alpha1.GPUDevice {
	return v1alpha1.GPUDevice{Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: resource}}
}
