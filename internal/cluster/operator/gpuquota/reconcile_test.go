package gpuquota_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/gpuquota"
)

// world is an API server in memory that counts what is written.
type world struct {
	client.Client
	t      *testing.T
	writes []string
	events *events.FakeRecorder
	// fail is the error of the writes of ResourceQuotas.
	fail error
	r    *gpuquota.Reconciler
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, events: events.NewFakeRecorder(100)}
	count := func(verb string, o client.Object, err error) error {
		if err == nil {
			w.writes = append(w.writes, verb+" "+o.GetNamespace()+"/"+o.GetName())
		}
		return err
	}
	w.Client = fake.NewClientBuilder().WithScheme(known).WithObjects(objects...).WithStatusSubresource(&v1alpha1.GPUQuota{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
				if w.fail != nil {
					return w.fail
				}
				err := c.Apply(ctx, o, options...)
				if err == nil {
					w.writes = append(w.writes, "apply")
				}
				return err
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
				return count("delete", o, c.Delete(ctx, o, options...))
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
				return count(sub, o, c.SubResource(sub).Patch(ctx, o, p, options...))
			},
		}).Build()
	w.r = gpuquota.New(gpuquota.Deps{Cached: w.Client, Client: w.Client, Events: w.events, Classes: []string{"gpu.berth.dev", "mig-1g.5gb.gpu.berth.dev", "mig-1g.5gb.me.gpu.berth.dev"},
		Clock: testclock.NewFakeClock(time.Unix(1e9, 0)), Log: slog.New(slog.DiscardHandler)})
	return w
}

// reconcile reconciles the GPUQuota "team", and returns what was written.
func (w *world) reconcile() ([]string, error) {
	w.t.Helper()
	w.writes = nil
	_, err := w.r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "team"}})
	return w.writes, err
}

// settle reconciles twice: the second time has nothing to write.
func (w *world) settle() {
	w.t.Helper()
	if _, err := w.reconcile(); err != nil {
		w.t.Fatal(err)
	}
	if writes, err := w.reconcile(); err != nil || len(writes) > 0 {
		w.t.Errorf("at rest it wrote %v, %v", writes, err)
	}
}

// hard returns the names that a namespace's ResourceQuota limits, as NAME=MAX; "none" without one.
func (w *world) hard(namespace string) string {
	w.t.Helper()
	rq := &corev1.ResourceQuota{}
	err := w.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: "gpu-quota-team"}, rq)
	if apierrors.IsNotFound(err) {
		return "none"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for name, most := range rq.Spec.Hard {
		all = append(all, fmt.Sprintf("%s=%s", name, most.String()))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// ready returns status, reason and message of the condition.
func (w *world) ready() string {
	w.t.Helper()
	q := &v1alpha1.GPUQuota{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: "team"}, q); err != nil {
		w.t.Fatal(err)
	}
	c := meta.FindStatusCondition(q.Status.Conditions, "Ready")
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %d/%d: %s", c.Status, c.Reason, q.Status.Namespaces, q.Status.Limited, c.Message)
}

func gpuQuota(limits ...v1alpha1.GPULimit) *v1alpha1.GPUQuota {
	return &v1alpha1.GPUQuota{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: "uid", Generation: 1},
		Spec: v1alpha1.GPUQuotaSpec{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}, Limits: limits}}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func gpuNode(name, product string, offers ...v1alpha1.DeviceOffer) *v1alpha1.GPUNode {
	node := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, o := range offers {
		d := v1alpha1.GPUDevice{UUID: name, Product: product}
		if strings.Contains(o.Resource, "mig-") {
			d.MIGDevices = []v1alpha1.MIGDevice{{Offered: &o}}
		} else {
			d.Offered = &o
		}
		node.Status.Devices = append(node.Status.Devices, d)
	}
	return node
}

var teamA = map[string]string{"team": "a"}

const whole = "gpu.berth.dev.deviceclass.resource.k8s.io/devices=4 requests.deviceclass.resource.kubernetes.io/gpu.berth.dev=4 requests.example.com/gpu=4"

func TestReconcile(t *testing.T) {
	gpu := v1alpha1.DeviceOffer{Resource: "example.com/gpu"}
	tests := map[string]struct {
		quota   *v1alpha1.GPUQuota
		objects []client.Object
		// a and b are the quotas of two namespaces, of which the first is selected.
		a, b, ready string
	}{
		"whole GPUs, also through DRA": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu)}, a: whole, b: "none",
			ready: "True Applied 1/3: 3 names are limited"},
		"by name": {quota: func() *v1alpha1.GPUQuota {
			q := gpuQuota(v1alpha1.GPULimit{Max: 4})
			q.Spec.NamespaceSelector, q.Spec.Namespaces = nil, []string{"b", "missing"}
			return q
		}(), objects: []client.Object{gpuNode("n", "A", gpu)}, a: "none", b: whole, ready: "True Applied 1/3: 3 names are limited"},
		"MIG devices": {quota: gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindMIG, Max: 4}),
			objects: []client.Object{gpuNode("n", "A", gpu, v1alpha1.DeviceOffer{Resource: "example.com/mig-1g.5gb"})}, a: "requests.example.com/mig-1g.5gb=4", b: "none",
			ready: "True Applied 1/1: 1 names are limited"},
		"replicas": {quota: gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindTimeSlicing, Max: 4}),
			objects: []client.Object{gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu.shared", Sharing: "timeSlicing"})}, a: "requests.example.com/gpu.shared=4",
			b: "none", ready: "True Applied 1/1: 1 names are limited"},
		"a model that shares its name": {quota: gpuQuota(v1alpha1.GPULimit{Model: "A", Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu), gpuNode("m", "B", gpu)},
			a: "none", b: "none", ready: "False NameShared 0/0: a ResourceQuota counts names, and other devices have the same: example.com/gpu is also B (whole), gpu.berth.dev is also B (whole)" +
				"; give them another name (resourceName of a rule), or limit both"},
		"no device": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), a: "none", b: "none", ready: "False NoDevices 0/0: no node advertises such a device: names are limited as soon as one does"},
		"no namespace": {quota: func() *v1alpha1.GPUQuota {
			q := gpuQuota(v1alpha1.GPULimit{Max: 4})
			q.Spec.NamespaceSelector.MatchLabels["team"] = "nobody"
			return q
		}(), objects: []client.Object{gpuNode("n", "A", gpu)}, a: "none", b: "none", ready: "False NothingSelected 0/3: no namespace is selected: correct namespaces or namespaceSelector"},
		"a name that is taken": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu),
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team"}}}, a: "", b: "none",
			ready: "False NameTaken 0/3: somebody else has a ResourceQuota of the name in a: delete it, or rename the GPUQuota"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(tc.objects, tc.quota, namespace("a", teamA), namespace("b", nil))...)
			w.settle()
			if got := [3]string{w.hard("a"), w.hard("b"), w.ready()}; got != [3]string{tc.a, tc.b, tc.ready} {
				t.Errorf("got  %q\nwant %q", got, [3]string{tc.a, tc.b, tc.ready})
			}
		})
	}
}

// TestFollows checks that the ResourceQuota follows names, edits and labels.
func TestFollows(t *testing.T) {
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Max: 4}), namespace("a", teamA), namespace("b", teamA), gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu"}))
	w.settle()
	rq := &corev1.ResourceQuota{}
	read := func() {
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "gpu-quota-team"}, rq); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if len(rq.OwnerReferences) != 1 || rq.OwnerReferences[0].Name != "team" || rq.OwnerReferences[0].Kind != "GPUQuota" {
		t.Errorf("its owners are %+v: it would stay without the GPUQuota", rq.OwnerReferences)
	}
	// An edit of somebody else.
	rq.Spec.Hard["requests.example.com/gpu"] = resource.MustParse("100")
	if err := w.Update(t.Context(), rq); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != whole {
		t.Errorf("after an edit it is %s", got)
	}
	// An edit that hides it from the operator's caches.
	read()
	rq.Labels, rq.Annotations = nil, nil
	rq.Spec.Hard["requests.example.com/gpu"] = resource.MustParse("100")
	if err := w.Update(t.Context(), rq); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != whole {
		t.Errorf("after an edit without labels it is %s", got)
	}
	// A device under another name.
	if err := w.Create(t.Context(), gpuNode("m", "A", v1alpha1.DeviceOffer{Resource: "example.com/mig-1g.5gb"})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != whole+" requests.example.com/mig-1g.5gb=4" {
		t.Errorf("with a new name it is %s", got)
	}
	// The name is gone, and somebody has added another.
	if err := w.Delete(t.Context(), gpuNode("m", "A")); err != nil {
		t.Fatal(err)
	}
	read()
	rq.Spec.Hard["pods"] = resource.MustParse("3")
	if err := w.Update(t.Context(), rq); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != whole {
		t.Errorf("without the name it is %s", got)
	}
	// A namespace that is not selected any more.
	b := namespace("b", nil)
	if err := w.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("b"); got != "none" {
		t.Errorf("the namespace without the label has %s", got)
	}
}

// TestForbidden checks that a refused write is reported and tried again.
func TestForbidden(t *testing.T) {
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Max: 4}), namespace("a", teamA), gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu"}))
	w.fail = apierrors.NewForbidden(schema.GroupResource{Resource: "resourcequotas"}, "gpu-quota-team", nil)
	if _, err := w.reconcile(); err == nil {
		t.Error("no error: it would not be tried again")
	}
	if got := w.ready(); !strings.HasPrefix(got, "False Forbidden 0/3: apply ResourceQuota a/gpu-quota-team: resourcequotas") {
		t.Errorf("the status is %s", got)
	}
	select {
	case event := <-w.events.Events:
		if !strings.Contains(event, "Forbidden") {
			t.Errorf("the event is %s", event)
		}
	default:
		t.Error("there is no event")
	}
	w.fail = nil
	w.settle()
	if got := w.hard("a"); got != whole {
		t.Errorf("when it is allowed it is %s", got)
	}
}

// TestClasses checks which DeviceClasses a limit of MIG devices counts: those of profiles that a GPU has.
func TestClasses(t *testing.T) {
	node := gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu"})
	node.Status.Devices[0].MIGProfiles = []v1alpha1.MIGProfile{{Name: "1g.5gb+me"}}
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindMIG, Max: 4}), namespace("a", teamA), node)
	w.settle()
	const want = "mig-1g.5gb.me.gpu.berth.dev.deviceclass.resource.k8s.io/devices=4 requests.deviceclass.resource.kubernetes.io/mig-1g.5gb.me.gpu.berth.dev=4"
	if got := w.hard("a"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
