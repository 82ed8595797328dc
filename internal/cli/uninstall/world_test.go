package uninstall

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// kinds are the kinds that the fake API server has.
var kinds = map[schema.GroupVersionResource]string{
	nodes(): "Node", pods(): "Pod", namespaces(): "Namespace", daemonSets(): "DaemonSet", deployments(): "Deployment", definitions(): "CustomResourceDefinition",
	resource("", "v1", "serviceaccounts"):                                               "ServiceAccount",
	resource("", "v1", "secrets"):                                                       "Secret",
	resource("", "v1", "events"):                                                        "Event",
	resource("", "v1", "resourcequotas"):                                                "ResourceQuota",
	resource("resource.k8s.io", "v1", "resourceclaims"):                                 "ResourceClaim",
	resource("resource.k8s.io", "v1", "resourceslices"):                                 "ResourceSlice",
	resource("resource.k8s.io", "v1", "deviceclasses"):                                  "DeviceClass",
	resource("coordination.k8s.io", "v1", "leases"):                                     "Lease",
	resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"):       "ValidatingAdmissionPolicy",
	resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"): "ValidatingAdmissionPolicyBinding",
	resource("rbac.authorization.k8s.io", "v1", "clusterroles"):                         "ClusterRole",
	resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures"):                             "NodeFeature",
	v1alpha1.GPUNodes():       "GPUNode",
	v1alpha1.GPUStacks():      "GPUStack",
	v1alpha1.NodeOperations(): "NodeOperation",
	resource(v1alpha1.Group, v1alpha1.Version, "gpuquotas"): "GPUQuota",
}

// errKilled is the response to each write after the one at which the command is killed.
var errKilled = errors.New("killed")

// world is a cluster with the controllers that a removal depends on.
type world struct {
	t *testing.T
	*fake.FakeDynamicClient
	// writes are the writes of the command; from the one with the number killAt on they fail, if it is not negative.
	writes []string
	killAt int
	// back means that node-away is ready again.
	back bool
	// fails are the nodes on which the pod that cleans the node ends with an error.
	fails map[string]bool
	// refused is the event of the DaemonSet controller, which then makes no pods.
	refused string
}

func newWorld(t *testing.T, texts ...string) *world {
	lists := map[schema.GroupVersionResource]string{}
	for of, kind := range kinds {
		lists[of] = kind + "List"
	}
	w := &world{t: t, FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists), killAt: -1, fails: map[string]bool{}}
	w.add(texts...)
	w.PrependReactor("*", "*", w.react)
	return w
}

// add adds the objects of YAML documents.
func (w *world) add(texts ...string) {
	w.t.Helper()
	for document := range strings.SplitSeq(strings.Join(texts, "\n---\n"), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			w.t.Fatalf("%v:\n%s", err, document)
		}
		if err := w.Tracker().Create(w.of(object.GetKind()), object, object.GetNamespace()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) of(kind string) schema.GroupVersionResource {
	for of, one := range kinds {
		if one == kind {
			return of
		}
	}
	w.t.Fatalf("unknown kind %q", kind)
	return schema.GroupVersionResource{}
}

// all lists the objects of a resource.
func (w *world) all(of schema.GroupVersionResource) []unstructured.Unstructured {
	w.t.Helper()
	list, err := w.Tracker().List(of, of.GroupVersion().WithKind(kinds[of]), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return list.(*unstructured.UnstructuredList).Items
}

// left lists the names of all objects.
func (w *world) left() []string {
	var names []string
	for of, kind := range kinds {
		for _, object := range w.all(of) {
			names = append(names, kind+" "+strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "/"))
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) react(action kubetesting.Action) (bool, runtime.Object, error) {
	verb := action.GetVerb()
	if slices.Contains([]string{"get", "list", "watch"}, verb) {
		return false, nil, nil
	}
	if w.killAt >= 0 && len(w.writes) >= w.killAt {
		return true, nil, errKilled
	}
	name, patch := "", kubetesting.PatchActionImpl{}
	switch a := action.(type) {
	case kubetesting.DeleteActionImpl:
		name = a.Name
	case kubetesting.PatchActionImpl:
		name, patch = a.Name, a
	case kubetesting.CreateActionImpl:
		name = a.Object.(*unstructured.Unstructured).GetName()
	}
	w.writes = append(w.writes, verb+" "+action.GetResource().Resource+" "+name)
	if patch.PatchType == types.ApplyPatchType {
		return true, w.disown(patch), nil
	}
	if object, err := w.Tracker().Get(action.GetResource(), action.GetNamespace(), name); err == nil && verb == "delete" && w.keeps(object.(*unstructured.Unstructured)) {
		return true, nil, nil
	}
	handled, object, err := kubetesting.ObjectReaction(w.Tracker())(action)
	if err == nil {
		w.follow(verb, action.GetResource(), action.GetNamespace(), name)
	}
	return handled, object, err
}

// keeps reports whether the deletion of an object has to wait for a finalizer.
func (w *world) keeps(object *unstructured.Unstructured) bool { return len(object.GetFinalizers()) > 0 }

// disown removes from a Node what a field manager owns, as an apply of an object without fields does.
func (w *world) disown(patch kubetesting.PatchActionImpl) *unstructured.Unstructured {
	found, err := w.Tracker().Get(nodes(), "", patch.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	node := found.(*unstructured.Unstructured).DeepCopy()
	var kept []metav1.ManagedFieldsEntry
	manager := patch.PatchOptions.FieldManager
	for _, entry := range node.GetManagedFields() {
		if entry.Manager != manager || entry.Subresource != patch.Subresource {
			kept = append(kept, entry)
			continue
		}
		var owned struct {
			Metadata struct {
				Labels map[string]any `json:"f:labels"`
			} `json:"f:metadata"`
			Status struct {
				Conditions map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned); err != nil {
			w.t.Fatal(err)
		}
		labels := node.GetLabels()
		for key := range owned.Metadata.Labels {
			delete(labels, strings.TrimPrefix(key, "f:"))
		}
		node.SetLabels(labels)
		conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
		conditions = slices.DeleteFunc(conditions, func(one any) bool {
			_, ok := owned.Status.Conditions[`k:{"type":"`+one.(map[string]any)["type"].(string)+`"}`]
			return ok
		})
		if err := unstructured.SetNestedSlice(node.Object, conditions, "status", "conditions"); err != nil {
			w.t.Fatal(err)
		}
	}
	node.SetManagedFields(kept)
	if err := w.Tracker().Update(nodes(), node, ""); err != nil {
		w.t.Fatal(err)
	}
	return node
}

// follow does what the controllers of the cluster do after a write.
func (w *world) follow(verb string, of schema.GroupVersionResource, namespace, name string) {
	switch {
	case verb == "delete" && (of == daemonSets() || of == deployments()):
		for _, pod := range w.all(pods()) {
			if pod.GetNamespace() == namespace && pod.GetLabels()[labelName] == name {
				w.drop(pods(), namespace, pod.GetName())
			}
		}
	case verb == "delete" && of == definitions():
		plural, _, _ := strings.Cut(name, ".")
		for _, object := range w.all(resource(v1alpha1.Group, v1alpha1.Version, plural)) {
			w.t.Errorf("the definition %s is deleted with its object %s", name, object.GetName())
		}
	case verb == "delete" && of == namespaces():
		for _, object := range w.all(daemonSets()) {
			w.t.Errorf("the namespace is deleted with the DaemonSet %s", object.GetName())
		}
	case of == daemonSets() && name == Name:
		w.startPods(namespace)
	}
}

func (w *world) drop(of schema.GroupVersionResource, namespace, name string) {
	w.t.Helper()
	if err := w.Tracker().Delete(of, namespace, name); err != nil {
		w.t.Fatal(err)
	}
}

// startPods is the DaemonSet controller with the kubelets.
func (w *world) startPods(namespace string) {
	found, err := w.Tracker().Get(daemonSets(), namespace, Name)
	if err != nil {
		w.t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := decode(found.(*unstructured.Unstructured), &set); err != nil {
		w.t.Fatal(err)
	}
	if account := set.Spec.Template.Spec.ServiceAccountName; account != "" {
		if _, err := w.Tracker().Get(resource("", "v1", "serviceaccounts"), namespace, account); err != nil {
			return
		}
	}
	chosen := map[string]bool{}
	for _, node := range w.all(nodes()) {
		fits := true
		for key, value := range set.Spec.Template.Spec.NodeSelector {
			fits = fits && node.GetLabels()[key] == value
		}
		if a := set.Spec.Template.Spec.Affinity; a != nil {
			fits = fits && slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
				return slices.Equal(t.MatchFields[0].Values, []string{node.GetName()})
			})
		}
		if fits {
			chosen[node.GetName()] = true
		}
	}
	for _, one := range w.all(pods()) {
		if name := one.GetLabels()[labelName]; len(chosen) > 0 && one.GetName() != "agent-away" && (name == "berth-agent" || name == "berth-operator" || name == "berth-mps") {
			w.t.Errorf("nodes are cleaned while the pod %s runs", one.GetName())
		}
	}
	changed := found.(*unstructured.Unstructured).DeepCopy()
	if err := unstructured.SetNestedField(changed.Object, int64(len(chosen)), "status", "desiredNumberScheduled"); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Tracker().Update(daemonSets(), changed, namespace); err != nil {
		w.t.Fatal(err)
	}
	if w.refused != "" {
		if len(w.all(resource("", "v1", "events"))) > 0 {
			return
		}
		w.add("apiVersion: v1\nkind: Event\nmetadata: {namespace: " + namespace + ", name: e}\nreason: FailedCreate\ninvolvedObject: {name: " + Name + "}\nmessage: '" + w.refused + "'")
		return
	}
	for _, node := range slices.Sorted(maps.Keys(chosen)) {
		status := "{phase: Running, conditions: [{type: Ready, status: 'True'}]}"
		switch {
		case node == "node-away" && !w.back:
			status = "{phase: Pending}"
		case w.fails[node]:
			status = "{phase: Running, containerStatuses: [{name: uninstall, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1, message: 'error: remove ledger'}}}]}"
		}
		if _, err := w.Tracker().Get(pods(), namespace, Name+"-"+node); err == nil {
			continue
		}
		w.add("apiVersion: v1\nkind: Pod\nmetadata: {namespace: " + namespace + ", name: " + Name + "-" + node + ", labels: {" + labelName + ": " + Name +
			"}, ownerReferences: [{kind: DaemonSet, name: " + Name + ", uid: ''}]}\nspec: {nodeName: " + node + "}\nstatus: " + status)
	}
}

// run runs the command.
func (w *world) run(options Options) (string, error) {
	var out strings.Builder
	if options.Timeout == 0 {
		options.Timeout = time.Minute
	}
	err := Run(w.t.Context(), Deps{Client: w.FakeDynamicClient, Clock: clock.RealClock{}, Out: &out}, options)
	return out.String(), err
}
