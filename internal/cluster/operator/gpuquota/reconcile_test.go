package gpuquota_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
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
	kept *attempts.Objects
	// classes are the DeviceClasses by their resource.
	classes map[string]string
	clock   *testclock.FakeClock
	log     bytes.Buffer
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
	w := &world{t: t, events: events.NewFakeRecorder(100), classes: map[string]string{"example.com/gpu": "gpu.berth.dev"}, clock: testclock.NewFakeClock(time.Unix(1e9, 0))}
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
	w.restart()
	return w
}

// restart makes another operator.
func (w *world) restart() {
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.kept = attempts.New(w.clock, log)
	w.r = gpuquota.New(gpuquota.Deps{Cached: w.Client, Client: w.Client, Events: w.events, Objects: w.kept, Classes: w.classes, Clock: w.clock, Log: log})
}

// reconcile reconciles the GPUQuota "team", and returns what was written.
func (w *world) reconcile() ([]string, error) {
	w.t.Helper()
	w.writes = nil
	w.clock.Step(time.Hour)
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

const (
	whole = "gpu.berth.dev.deviceclass.resource.k8s.io/devices=4 requests.deviceclass.resource.kubernetes.io/gpu.berth.dev=4 requests.example.com/gpu=4"
	// all is what a limit of all devices means from the start.
	all = "gpu.berth.dev.deviceclass.resource.k8s.io/devices=4 requests.deviceclass.resource.kubernetes.io/gpu.berth.dev=4 requests.example.com/gpu.shared=4 requests.example.com/gpu=4"
)

func TestReconcile(t *testing.T) {
	gpu := v1alpha1.DeviceOffer{Resource: "example.com/gpu"}
	tests := map[string]struct {
		quota   *v1alpha1.GPUQuota
		objects []client.Object
		// a and b are the quotas of two namespaces, of which the first is selected.
		a     string
		b     string
		ready string
	}{
		"whole GPUs, also through DRA": {quota: gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindWhole, Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu)}, a: whole, b: "none",
			ready: "True Applied 1/3: 3 names are limited"},
		"all, the replicas before there are any": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu)}, a: all, b: "none",
			ready: "True Applied 1/4: 4 names are limited"},
		"by name": {quota: func() *v1alpha1.GPUQuota {
			q := gpuQuota(v1alpha1.GPULimit{Max: 4})
			q.Spec.NamespaceSelector, q.Spec.Namespaces = nil, []string{"b", "missing"}
			return q
		}(), objects: []client.Object{gpuNode("n", "A", gpu)}, a: "none", b: all, ready: "True Applied 1/4: 4 names are limited"},
		"MIG devices": {quota: gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindMIG, Max: 4}),
			objects: []client.Object{gpuNode("n", "A", gpu, v1alpha1.DeviceOffer{Resource: "example.com/mig-1g.5gb"})}, a: "requests.example.com/mig-1g.5gb=4", b: "none",
			ready: "True Applied 1/1: 1 names are limited"},
		"replicas": {quota: gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindTimeSlicing, Max: 4}),
			objects: []client.Object{gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu.shared", Sharing: "timeSlicing"})}, a: "requests.example.com/gpu.shared=4",
			b: "none", ready: "True Applied 1/1: 1 names are limited"},
		"a model that shares its name": {quota: gpuQuota(v1alpha1.GPULimit{Model: "A", Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu), gpuNode("m", "B", gpu)},
			a: "requests.example.com/gpu.shared=4", b: "none", ready: "False NameShared 1/1: a ResourceQuota counts names, and other devices have the same: example.com/gpu is also B (whole), gpu.berth.dev is also B (whole)" +
				"; give them another name (resourceName of a rule), or limit both"},
		"no node": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), a: all, b: "none",
			ready: "True Applied 1/4: 4 names are limited; no node has advertised such a device until now"},
		"no node, of a model": {quota: gpuQuota(v1alpha1.GPULimit{Model: "A*", Max: 4}), a: all, b: "none",
			ready: "True Applied 1/4: 4 names are limited; no node has advertised such a device until now"},
		"another model only": {quota: gpuQuota(v1alpha1.GPULimit{Model: "A*", Max: 4}), objects: []client.Object{gpuNode("n", "B", gpu)}, a: "requests.example.com/gpu.shared=4", b: "none",
			ready: "True Applied 1/1: 1 names are limited; no node has advertised such a device until now"},
		"no node, kinds": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}, v1alpha1.GPULimit{Sharing: v1alpha1.KindMPS, Max: 2}), a: strings.Replace(all, "shared=4", "shared=2", 1), b: "none",
			ready: "True Applied 1/4: 4 names are limited; no node has advertised such a device until now"},
		"no namespace": {quota: func() *v1alpha1.GPUQuota {
			q := gpuQuota(v1alpha1.GPULimit{Max: 4})
			q.Spec.NamespaceSelector.MatchLabels["team"] = "nobody"
			return q
		}(), objects: []client.Object{gpuNode("n", "A", gpu)}, a: "none", b: "none", ready: "False NothingSelected 0/4: no namespace is selected: correct namespaces or namespaceSelector"},
		"a name that is taken": {quota: gpuQuota(v1alpha1.GPULimit{Max: 4}), objects: []client.Object{gpuNode("n", "A", gpu),
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team"}}}, a: "", b: "none",
			ready: "False NameTaken 0/4: somebody else has a ResourceQuota of the name in a: delete it, or rename the GPUQuota"},
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
	if got := w.hard("a"); got != all {
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
	if got := w.hard("a"); got != all {
		t.Errorf("after an edit without labels it is %s", got)
	}
	// A device under another name.
	if err := w.Create(t.Context(), gpuNode("m", "A", v1alpha1.DeviceOffer{Resource: "example.com/mig-1g.5gb"})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != all+" requests.example.com/mig-1g.5gb=4" {
		t.Errorf("with a new name it is %s", got)
	}
	// No node has the name any more, and somebody has added another.
	if err := w.Delete(t.Context(), gpuNode("m", "A")); err != nil {
		t.Fatal(err)
	}
	read()
	rq.Spec.Hard["pods"] = resource.MustParse("3")
	if err := w.Update(t.Context(), rq); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != all+" requests.example.com/mig-1g.5gb=4" {
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
	if result, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "team"}}); err != nil || result.RequeueAfter != 100*time.Millisecond {
		t.Errorf("again after %v, %v; want 100 ms", result.RequeueAfter, err)
	}
	if got := w.ready(); !strings.HasPrefix(got, "False Forbidden 0/4: apply ResourceQuota a/gpu-quota-team: resourcequotas") {
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
	if got := w.hard("a"); got != all {
		t.Errorf("when it is allowed it is %s", got)
	}
}

// TestClasses checks which DeviceClasses a limit of MIG devices counts: those of profiles that a GPU has.
func TestClasses(t *testing.T) {
	node := gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gpu"})
	node.Status.Devices[0].MIGProfiles = []v1alpha1.MIGProfile{{Name: "1g.5gb+me"}}
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Sharing: v1alpha1.KindMIG, Max: 4}), namespace("a", teamA), node)
	w.classes = map[string]string{"example.com/gpu": "gpu.berth.dev", "example.com/mig-1g.5gb.me": "mig-1g.5gb.me.gpu.berth.dev"}
	w.restart()
	w.settle()
	const want = "mig-1g.5gb.me.gpu.berth.dev.deviceclass.resource.k8s.io/devices=4 requests.deviceclass.resource.kubernetes.io/mig-1g.5gb.me.gpu.berth.dev=4 requests.example.com/mig-1g.5gb.me=4"
	if got := w.hard("a"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestStaysLimited: what was limited stays limited when no node advertises it, also after a restart of the operator, where somebody has
// deleted a ResourceQuota or a GPUNode has another model, and in a namespace that is selected then. It follows other limits.
func TestStaysLimited(t *testing.T) {
	const gold = " requests.example.com/gold=4"
	q := gpuQuota(v1alpha1.GPULimit{Max: 16}, v1alpha1.GPULimit{Sharing: v1alpha1.KindMPS, Max: 4}, v1alpha1.GPULimit{Model: "A", Sharing: v1alpha1.KindMIG, Max: 1})
	node := gpuNode("n", "A", v1alpha1.DeviceOffer{Resource: "example.com/gold", Sharing: "mps"}, v1alpha1.DeviceOffer{Resource: "example.com/mig-gold"})
	w := newWorld(t, q, namespace("a", teamA), namespace("b", nil), node)
	w.settle()
	const want = "gpu.berth.dev.deviceclass.resource.k8s.io/devices=16 requests.deviceclass.resource.kubernetes.io/gpu.berth.dev=16" + gold +
		" requests.example.com/gpu.shared=4 requests.example.com/gpu=16 requests.example.com/mig-gold=1"
	check := func(when, name, want string) {
		t.Helper()
		w.settle()
		if got := w.hard(name); got != want {
			t.Errorf("%s, namespace %s\ngot  %s\nwant %s", when, name, got, want)
		}
	}
	check("advertised", "a", want)
	deleted := func(o client.Object) {
		t.Helper()
		if err := w.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	deleted(node)
	check("no node", "a", want)
	w.restart()
	check("no node, restarted", "a", want)
	deleted(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team"}})
	check("no node, deleted by others", "a", want)
	if err := w.Update(t.Context(), namespace("b", teamA)); err != nil {
		t.Fatal(err)
	}
	check("selected then", "b", want)
	w.restart()
	if err := w.Create(t.Context(), gpuNode("m", "B", v1alpha1.DeviceOffer{Resource: "example.com/mig-gold"})); err != nil {
		t.Fatal(err)
	}
	check("another model has the name", "a", strings.Replace(want, "mig-gold=1", "mig-gold=16", 1))

	// Other limits.
	deleted(gpuNode("m", "B"))
	live := &v1alpha1.GPUQuota{}
	if err := w.Get(t.Context(), client.ObjectKey{Name: "team"}, live); err != nil {
		t.Fatal(err)
	}
	live.Spec.Limits, live.Generation = []v1alpha1.GPULimit{{Sharing: v1alpha1.KindMPS, Max: 2}}, 2
	if err := w.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	check("limits of replicas only", "a", "requests.example.com/gold=2 requests.example.com/gpu.shared=2")
}

// TestSharedStays: a name that was limited stays so when a model comes that the limit does not select, and the status says it.
func TestSharedStays(t *testing.T) {
	gpu := v1alpha1.DeviceOffer{Resource: "example.com/gpu"}
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Model: "A", Max: 4}), namespace("a", teamA), gpuNode("n", "A", gpu))
	w.settle()
	if err := w.Create(t.Context(), gpuNode("m", "B", gpu)); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := w.hard("a"); got != all {
		t.Errorf("with another model it is %s", got)
	}
	if got := w.ready(); !strings.HasPrefix(got, "False NameShared 1/4") {
		t.Errorf("the status is %s", got)
	}
}

// TestFormerOperator: of a ResourceQuota of an operator that did not note what stays, all names of devices do.
func TestFormerOperator(t *testing.T) {
	yes := true
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Max: 4}), namespace("a", teamA), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu-quota-team", Annotations: map[string]string{"berth.dev/gpu-quota": "team"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.APIVersion, Kind: "GPUQuota", Name: "team", UID: "uid", Controller: &yes}}},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.example.com/gold": resource.MustParse("4"), "pods": resource.MustParse("3")}}})
	w.settle()
	if got := w.hard("a"); !strings.Contains(got, "requests.example.com/gold=4") || strings.Contains(got, "pods") {
		t.Errorf("it is %s", got)
	}
}

// TestFight: where others edit a ResourceQuota again and again, the writes become fewer, one namespace does not delay another, and the log
// TestRefusedInVain: a ResourceQuota that could never be written is no problem once nobody wants it, and other limits do not wait for what
// kept the last ones away.
func TestRefusedInVain(t *testing.T) {
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Max: 4}), namespace("a", teamA))
	pass := func() {
		t.Helper()
		if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "team"}}); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func() {
		w.fail = errors.New("a webhook refuses it")
		for range 8 {
			w.clock.Step(time.Minute)
			pass()
		}
	}
	change := func(edit func(*v1alpha1.GPUQuota)) {
		t.Helper()
		q := &v1alpha1.GPUQuota{}
		if err := w.Get(t.Context(), client.ObjectKey{Name: "team"}, q); err != nil {
			t.Fatal(err)
		}
		edit(q)
		q.Generation++
		if err := w.Update(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	refuse()
	if kept := w.kept.NotKept(); len(kept) != 1 {
		t.Fatalf("not kept: %v", kept)
	}
	w.fail = nil
	change(func(q *v1alpha1.GPUQuota) { q.Spec.Limits[0].Max = 2 })
	pass()
	if got := w.hard("a"); got == "" || got == all {
		t.Errorf("with other limits it is %q", got)
	}
	w.clock.Step(time.Hour)
	pass()
	// A namespace that never had one.
	if err := w.Create(t.Context(), namespace("b", teamA)); err != nil {
		t.Fatal(err)
	}
	refuse()
	if kept := w.kept.NotKept(); len(kept) != 1 {
		t.Fatalf("not kept: %v", kept)
	}
	if err := w.Delete(t.Context(), namespace("b", nil)); err != nil {
		t.Fatal(err)
	}
	pass()
	if kept := w.kept.NotKept(); len(kept) > 0 {
		t.Errorf("not kept, and wanted by nobody: %v", kept)
	}
}

// has one line for it.
func TestFight(t *testing.T) {
	w := newWorld(t, gpuQuota(v1alpha1.GPULimit{Max: 4}), namespace("a", teamA), namespace("b", teamA))
	w.settle()
	w.log.Reset()
	writes := 0
	for range 120 {
		w.clock.Step(500 * time.Millisecond)
		rq := &corev1.ResourceQuota{}
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "gpu-quota-team"}, rq); err != nil {
			t.Fatal(err)
		}
		rq.Spec.Hard["requests.example.com/gpu"] = resource.MustParse("100")
		if err := w.Update(t.Context(), rq); err != nil {
			t.Fatal(err)
		}
		w.writes = nil
		if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "team"}}); err != nil {
			t.Fatal(err)
		}
		writes += len(w.writes)
	}
	if writes < 6 || writes > 10 {
		t.Errorf("%d writes in a minute", writes)
	}
	if lines := strings.Count(w.log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines in the log, want one of the first edit and one of the others:\n%s", lines, w.log.String())
	}
	if err := w.Delete(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "gpu-quota-team"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "team"}}); err != nil || w.hard("b") != all {
		t.Errorf("another namespace has %s, %v", w.hard("b"), err)
	}
}
