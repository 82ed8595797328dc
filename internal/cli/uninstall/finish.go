package uninstall

import (
	"context"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// deleteNodeState deletes what there is per node: operations, then GPUNodes.
func (r *remover) deleteNodeState(ctx context.Context) error {
	for i := range r.found.operations {
		if o := &r.found.operations[i]; len(o.Spec.Restore) > 0 {
			r.print("warning: the NodeOperation %s ends without restoring: %s", o.Name, strings.Join(o.Spec.Restore, ", "))
		}
	}
	if err := r.removeAll(ctx, v1alpha1.NodeOperations(), "", "", nil); err != nil {
		return err
	}
	return r.removeAll(ctx, v1alpha1.GPUNodes(), "", "", nil)
}

// deleteObjects deletes the other objects of the cluster, and the definitions at last.
func (r *remover) deleteObjects(ctx context.Context) error {
	for _, of := range []struct {
		group     string
		version   string
		resource  string
		namespace string
		selector  string
		ours      func(*unstructured.Unstructured) bool
	}{
		{group: v1alpha1.Group, version: v1alpha1.Version, resource: "gpuquotas"},
		{version: "v1", resource: "resourcequotas", selector: ofOperator, ours: func(o *unstructured.Unstructured) bool {
			return strings.HasPrefix(o.GetName(), "gpu-quota-")
		}},
		{group: v1alpha1.Group, version: v1alpha1.Version, resource: "gpustacks"},
		{group: "resource.k8s.io", version: "v1", resource: "deviceclasses", selector: ofBerth},
		{group: "admissionregistration.k8s.io", version: "v1", resource: "validatingadmissionpolicybindings", selector: ofBerth},
		{group: "admissionregistration.k8s.io", version: "v1", resource: "validatingadmissionpolicies", selector: ofBerth},
		{group: "coordination.k8s.io", version: "v1", resource: "leases", namespace: r.Namespace, ours: named("berth-operator")},
		{group: "coordination.k8s.io", version: "v1", resource: "leases", namespace: r.Namespace, ours: named(schedulerName)},
	} {
		if err := r.removeAll(ctx, resource(of.group, of.version, of.resource), of.namespace, of.selector, of.ours); err != nil {
			return err
		}
	}
	return r.deleteDefinitions(ctx)
}

// deleteDefinitions deletes the definitions of Berth's objects and waits until they are gone.
func (r *remover) deleteDefinitions(ctx context.Context) error {
	all, err := r.list(ctx, definitions(), "", "")
	if err != nil {
		return err
	}
	var left []string
	for i := range all {
		if group, _, _ := unstructured.NestedString(all[i].Object, "spec", "group"); group != v1alpha1.Group {
			continue
		}
		// The finalizer of a definition is the API server's, which deletes the objects.
		if err := r.remove(ctx, definitions(), &all[i]); err != nil {
			return err
		}
		left = append(left, all[i].GetName())
	}
	return r.await(ctx, func(ctx context.Context) (bool, error) {
		for len(left) > 0 {
			if object, err := r.get(ctx, definitions(), "", left[0]); object != nil || err != nil {
				return false, err
			}
			left = left[1:]
		}
		return true, nil
	}, func() string {
		return "these definitions are not deleted yet, maybe since objects of theirs have finalizers of other programs: " + strings.Join(left, ", ")
	})
}

// farewell says what is left to do.
func (r *remover) farewell(ctx context.Context) {
	list, err := r.Client.Resource(resource("", "v1", "secrets")).Namespace(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "owner=helm"})
	if err != nil && !apierrors.IsNotFound(err) {
		r.print("Berth is removed. If it was installed with Helm, now run: helm uninstall %s -n %s", r.releaseOr("berth"), r.Namespace)
		return
	}
	var releases []string
	if err == nil {
		for i := range list.Items {
			name, stored := strings.CutPrefix(list.Items[i].GetName(), "sh.helm.release.v1.")
			if at := strings.LastIndex(name, ".v"); stored && at > 0 {
				releases = append(releases, name[:at])
			}
		}
	}
	slices.Sort(releases)
	releases = slices.Compact(releases)
	name := r.releaseOr("berth")
	switch {
	case slices.Contains(releases, name):
		r.print("Berth is removed; now run: helm uninstall %s -n %s", name, r.Namespace)
	case len(releases) > 0:
		r.print("Berth is removed; the namespace %s has the Helm releases %s: for that of Berth, now run: helm uninstall NAME -n %s", r.Namespace, strings.Join(releases, ", "), r.Namespace)
	default:
		role, _ := r.get(ctx, resource("rbac.authorization.k8s.io", "v1", "clusterroles"), "", "berth-agent") // Without the right to read it nothing is known.
		if role == nil || role.GetAnnotations()[releaseAnnotation] == "" {
			r.print("Berth is removed")
			return
		}
		r.print("Berth is removed but for its roles: the namespace %s has nothing of the release %s, so helm uninstall does not know it; now run: "+
			"kubectl delete clusterroles,clusterrolebindings,roles,rolebindings --all-namespaces --selector app.kubernetes.io/part-of=berth",
			r.Namespace, role.GetAnnotations()[releaseAnnotation])
	}
}

func (r *remover) releaseOr(name string) string {
	if r.found.release != "" {
		return r.found.release
	}
	return name
}
