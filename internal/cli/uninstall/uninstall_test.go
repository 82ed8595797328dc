package uninstall

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// others are the objects of the cluster that are not Berth's.
const others = `apiVersion: v1
kind: Namespace
metadata: {name: berth-system}
---
apiVersion: v1
kind: Node
metadata: {name: node-plain, labels: {zone: a}}
spec: {taints: [{key: example.com/other, effect: NoSchedule}]}
status: {conditions: [{type: Ready, status: "True"}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: other}
spec: {driver: other.example.com}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: other}
---
apiVersion: v1
kind: ResourceQuota
metadata: {namespace: team, name: gpu-quota-by-hand}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: berth-system, name: other}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.example.com}
spec: {group: example.com}`

// kept are the objects of Berth that a helm uninstall leaves.
const kept = `apiVersion: v1
kind: Node
metadata:
  name: node-a
  uid: node-uid
  labels: {zone: a, nvidia.com/gpu.count: "8", nvidia.com/mig.config.state: success}
  managedFields:
  - {manager: kubelet, operation: Update, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:labels": {"f:zone": {}}}}}
  - {manager: berth-agent-features, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:labels": {"f:nvidia.com/gpu.count": {}}}}}
  - {manager: berth-agent-mig, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config.state": {}}}}}
  - {manager: berth-agent-health, operation: Apply, subresource: status, fieldsType: FieldsV1, fieldsV1: {"f:status": {"f:conditions": {'k:{"type":"GPUsHealthy"}': {}}}}}
spec:
  taints:
  - {key: example.com/other, effect: NoSchedule}
  - {key: example.com/startup, value: gpus-not-validated, effect: NoSchedule}
  - {key: berth.dev/not-validated, value: other, effect: NoSchedule}
  - {key: berth.dev/gpu-unhealthy, value: "true", effect: NoSchedule}
status:
  conditions:
  - {type: Ready, status: "True"}
  - {type: GPUsHealthy, status: "True"}
  - {type: GPUsReady, status: "False"}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gpunodes.berth.dev}
spec: {group: berth.dev}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gpustacks.berth.dev}
spec: {group: berth.dev}
---
apiVersion: berth.dev/v1alpha1
kind: GPUNode
metadata: {name: node-a}
status: {gate: {state: Held, mode: enforce, taintKey: example.com/startup}}
---
apiVersion: berth.dev/v1alpha1
kind: GPUStack
metadata: {name: default, finalizers: [berth.dev/stack]}
spec:
  version: 1.2.0
  namespace: berth-system
  components: [{name: agent, kind: DaemonSet, object: berth-agent, image: "example.com/berth-agent:1.2.0"}]
  pullSecrets: [pull]
  pullPolicy: Always
  host: {kubeletDir: /k, cdiDir: /c, hookDir: /h, draDriverName: gpu.example.com}
---
apiVersion: berth.dev/v1alpha1
kind: GPUQuota
metadata: {name: team}
---
apiVersion: berth.dev/v1alpha1
kind: NodeOperation
metadata: {name: validate-node-a, finalizers: [berth.dev/node-operation]}
spec: {node: node-a, kind: Validate, owner: operator/validation}
status: {phase: Succeeded}
---
apiVersion: v1
kind: Pod
metadata: {namespace: berth-system, name: validate-node-a, labels: {berth.dev/validation: node}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {namespace: berth-system, name: validate-node-a, labels: {berth.dev/validation: node}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {namespace: team, name: gpu-quota-team, labels: {app.kubernetes.io/managed-by: berth-operator}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-gpus}
spec: {driver: gpu.example.com, nodeName: node-a}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.berth.dev, labels: {app.kubernetes.io/part-of: berth}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {namespace: berth-system, name: berth-operator}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {namespace: berth-system, name: berth-scheduler}`

// release are the objects of the Helm release that matter.
const release = `apiVersion: apps/v1
kind: DaemonSet
metadata:
  namespace: berth-system
  name: berth-agent
  labels: {app.kubernetes.io/name: berth-agent, app.kubernetes.io/part-of: berth}
  annotations: {meta.helm.sh/release-name: mine}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: berth-agent}}
  template:
    metadata: {labels: {app.kubernetes.io/name: berth-agent}}
    spec:
      serviceAccountName: berth-agent
      hostPID: true
      priorityClassName: system-node-critical
      imagePullSecrets: [{name: pull}]
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      containers:
      - name: agent
        image: example.com/berth-agent:1.2.0
        imagePullPolicy: Always
        args: [--host-root=/host, --kubelet-dir=/k, --cdi-dir, /c, --hook-dir=/h, --config-map=berth-system/berth-agent-config, --sim=/gpus]
        securityContext: {privileged: true, readOnlyRootFilesystem: true}
      volumes:
      - {name: host, hostPath: {path: /}}
      - {name: plugins, hostPath: {path: /k/plugins/gpu.example.com}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {namespace: berth-system, name: berth-mps, labels: {app.kubernetes.io/name: berth-mps, app.kubernetes.io/part-of: berth}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: berth-system, name: berth-operator, labels: {app.kubernetes.io/name: berth-operator, app.kubernetes.io/part-of: berth}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: berth-system, name: berth-scheduler, labels: {app.kubernetes.io/name: berth-scheduler, app.kubernetes.io/part-of: berth}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: berth-system, name: scheduler-1, labels: {app.kubernetes.io/name: berth-scheduler}}
spec: {nodeName: node-a}
---
apiVersion: v1
kind: Pod
metadata: {namespace: berth-system, name: agent-1, labels: {app.kubernetes.io/name: berth-agent}}
spec: {nodeName: node-a}
---
apiVersion: v1
kind: Pod
metadata: {namespace: berth-system, name: operator-1, labels: {app.kubernetes.io/name: berth-operator}}
spec: {nodeName: node-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: berth-system, name: berth-agent}
---
apiVersion: v1
kind: Secret
metadata: {namespace: berth-system, name: sh.helm.release.v1.mine.v3, labels: {owner: helm}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: berth-privileged-pods, labels: {app.kubernetes.io/part-of: berth}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: berth-privileged-pods, labels: {app.kubernetes.io/part-of: berth}}`

// helmUninstall removes what Helm removes.
func (w *world) helmUninstall() {
	for _, of := range []string{"DaemonSet", "Deployment", "ServiceAccount", "Secret", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		for _, object := range w.all(w.of(of)) {
			if object.GetName() != "other" && object.GetName() != Name {
				w.drop(w.of(of), object.GetNamespace(), object.GetName())
			}
		}
	}
	for _, pod := range w.all(pods()) {
		if name := pod.GetLabels()[labelName]; name == "berth-agent" || name == "berth-operator" || name == "berth-scheduler" {
			w.drop(pods(), pod.GetNamespace(), pod.GetName())
		}
	}
}

// checkClean checks that nothing of Berth is left but what Helm removes, and that nothing of others was changed.
func (w *world) checkClean() {
	w.t.Helper()
	want := newWorld(w.t, others).left()
	want = append(want, "Node node-a")
	slices.Sort(want)
	left := slices.DeleteFunc(w.left(), func(name string) bool {
		return name == "ServiceAccount berth-system/berth-agent" || strings.HasPrefix(name, "Secret ")
	})
	if diff := cmp.Diff(want, left); diff != "" {
		w.t.Errorf("objects (-want +left):\n%s", diff)
	}
	object, err := w.Tracker().Get(nodes(), "", "node-a")
	if err != nil {
		w.t.Fatal(err)
	}
	node := object.(*unstructured.Unstructured)
	taints, _, _ := unstructured.NestedSlice(node.Object, "spec", "taints")
	conditions, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
	wantTaints := []any{map[string]any{"key": "example.com/other", "effect": "NoSchedule"}}
	if diff := cmp.Diff(wantTaints, taints); diff != "" {
		w.t.Errorf("taints (-want +got):\n%s", diff)
	}
	if len(conditions) != 1 || len(node.GetLabels()) != 1 || len(node.GetManagedFields()) != 1 {
		w.t.Errorf("the Node has the labels %v and the conditions %v", node.GetLabels(), conditions)
	}
}

// bubble runs a test in a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T)) { synctest.Test(t, test) }

// TestOrder checks the order of the writes while the release is there, and that a repetition writes nothing.
func TestOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept, release)
		asked := ""
		out, err := w.run(Options{Confirm: func(plan string) error { asked = plan; return nil }})
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		w.checkClean()
		want := []string{
			"create daemonsets berth-uninstall",
			"delete deployments berth-operator",
			"delete pods validate-node-a", "delete resourceclaims validate-node-a",
			"delete daemonsets berth-agent", "delete daemonsets berth-mps",
			"patch daemonsets berth-uninstall",
			"patch nodes node-a", "patch nodes node-a", "patch nodes node-a", "patch nodes node-a", "patch nodes node-a",
			"delete resourceslices node-a-gpus",
			"patch nodeoperations validate-node-a", "delete nodeoperations validate-node-a", "delete gpunodes node-a",
			"delete daemonsets berth-uninstall",
			"delete deployments berth-scheduler",
			"delete gpuquotas team", "delete resourcequotas gpu-quota-team", "patch gpustacks default", "delete gpustacks default",
			"delete deviceclasses gpu.berth.dev", "delete validatingadmissionpolicybindings berth-privileged-pods",
			"delete validatingadmissionpolicies berth-privileged-pods", "delete leases berth-operator",
			"delete leases berth-scheduler",
			"delete customresourcedefinitions gpunodes.berth.dev", "delete customresourcedefinitions gpustacks.berth.dev",
		}
		if diff := cmp.Diff(want, w.writes); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		for _, line := range []string{"node node-a is clean\n", "Berth is removed; now run: helm uninstall mine -n berth-system\n"} {
			if !strings.Contains(out, line) {
				t.Errorf("the output lacks %q:\n%s", line, out)
			}
		}
		if !strings.Contains(asked, "on 1 nodes") {
			t.Errorf("the question is %q", asked)
		}
		w.writes = nil
		if out, err := w.run(Options{}); err != nil || len(w.writes) > 0 {
			t.Errorf("the second run: %v, %v\n%s", w.writes, err, out)
		}
	})
}

// hostSet returns the DaemonSet that cleans the nodes as it was made.
func (w *world) hostSet() *appsv1.DaemonSet {
	w.t.Helper()
	for _, action := range w.Actions() {
		if create, ok := action.(kubetesting.CreateActionImpl); ok && create.Resource == daemonSets() {
			set := &appsv1.DaemonSet{}
			if err := decode(create.Object.(*unstructured.Unstructured), set); err != nil {
				w.t.Fatal(err)
			}
			return set
		}
	}
	w.t.Fatal("no DaemonSet was made")
	return nil
}

// TestHostSet checks the pods that clean the nodes, with the agent's DaemonSet and without it.
func TestHostSet(t *testing.T) {
	for name, installed := range map[string]bool{"with the release": true, "after helm uninstall": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, others, kept, release)
				if !installed {
					w.helmUninstall()
				}
				if out, err := w.run(Options{}); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				spec := w.hostSet().Spec.Template.Spec
				c := spec.Containers[0]
				args := strings.ReplaceAll(strings.Join(c.Args, " "), "--cdi-dir /c", "--cdi-dir=/c")
				for _, want := range []string{"uninstall --standalone --on-host --hold --host-root=/host --dra-driver=gpu.example.com", "--kubelet-dir=/k", "--cdi-dir=/c", "--hook-dir=/h"} {
					if !strings.Contains(args, want) {
						t.Errorf("the arguments are %s, want %s", args, want)
					}
				}
				if strings.Contains(args, "config-map") || strings.Contains(args, "sim") {
					t.Errorf("the arguments are %s", args)
				}
				if c.Image != "example.com/berth-agent:1.2.0" || c.ImagePullPolicy != "Always" || !*c.SecurityContext.Privileged || len(spec.ImagePullSecrets) != 1 || !spec.HostPID ||
					*spec.AutomountServiceAccountToken || len(spec.Tolerations) != 1 || spec.Tolerations[0].Operator != "Exists" || len(spec.Volumes) != 1 || c.VolumeMounts[0].ReadOnly {
					t.Errorf("the pod is %+v", spec)
				}
				if account := spec.ServiceAccountName; (account == "berth-agent") != installed || (spec.Affinity == nil) != installed {
					t.Errorf("the account is %q, the affinity %v", account, spec.Affinity)
				}
			})
		})
	}
}

// TestClass: the pods that clean the nodes have no priority class that goes with the release, also in a DaemonSet that is there already.
func TestClass(t *testing.T) {
	for class, want := range map[string]string{"system-node-critical": "system-node-critical", "berth-critical": ""} {
		t.Run(class, func(t *testing.T) {
			var starts int
			bubble(t, func(t *testing.T) {
				w := newWorld(t, others, kept, strings.Replace(release, "system-node-critical", class, 1))
				if out, err := w.run(Options{}); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if got := w.hostSet().Spec.Template.Spec.PriorityClassName; got != want {
					t.Errorf("the class is %q; want %q", got, want)
				}
				starts = slices.Index(w.writes, "patch daemonsets "+Name)
			})
			bubble(t, func(t *testing.T) {
				w := newWorld(t, others, kept, release)
				w.killAt = starts
				if _, err := w.run(Options{}); !errors.Is(err, errKilled) {
					t.Fatal(err)
				}
				change := []byte(`{"spec": {"template": {"spec": {"priorityClassName": "` + class + `"}}}}`)
				w.killAt = -1
				if _, err := w.Resource(daemonSets()).Namespace("berth-system").Patch(t.Context(), Name, types.MergePatchType, change, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				if out, err := w.run(Options{}); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				cleared := slices.ContainsFunc(w.Actions(), func(action kubetesting.Action) bool {
					patch, is := action.(kubetesting.PatchAction)
					return is && strings.Contains(string(patch.GetPatch()), `"priorityClassName":null`)
				})
				if cleared != (want == "") {
					t.Errorf("the class of a DaemonSet that was there is taken away: %v; want %v", cleared, want == "")
				}
			})
		})
	}
}

// TestKilled kills the command at each write and checks that a repetition ends where an undisturbed run does, also when the release was
// removed before, or was removed or installed again in between.
func TestKilled(t *testing.T) {
	tests := map[string]struct{ before, between func(*world) }{
		"before helm uninstall":     {},
		"after helm uninstall":      {before: (*world).helmUninstall},
		"helm uninstall in between": {between: (*world).helmUninstall},
		"installed again": {between: func(w *world) {
			w.helmUninstall()
			w.add(release)
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for at, killed := 0, true; killed && !t.Failed(); at++ {
				bubble(t, func(t *testing.T) { killed = testKilledAt(t, at, tc.before, tc.between) })
				if !killed && at < 15 {
					t.Errorf("only %d writes were made", at)
				}
			}
		})
	}
}

// testKilledAt kills the command at one write; it returns false when it has fewer.
func testKilledAt(t *testing.T, at int, before, between func(*world)) bool {
	w := newWorld(t, others, kept, release)
	if before != nil {
		before(w)
	}
	w.killAt = at
	_, err := w.run(Options{})
	killed := errors.Is(err, errKilled)
	if !killed && err != nil {
		t.Fatal(err)
	}
	w.killAt = -1
	if between != nil {
		between(w)
	}
	if out, err := w.run(Options{}); err != nil {
		t.Fatalf("killed at write %d (%v): %v\n%s", at, w.writes, err, out)
	}
	w.checkClean()
	return killed
}

// TestWithoutNamespace checks that a namespace that was deleted is made for the pods, and deleted again.
func TestWithoutNamespace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept)
		w.drop(namespaces(), "", "berth-system")
		w.drop(daemonSets(), "berth-system", "other")
		if out, err := w.run(Options{}); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if w.writes[0] != "create namespaces berth-system" || w.writes[len(w.writes)-1] != "delete namespaces berth-system" {
			t.Errorf("the writes are %v", w.writes)
		}
	})
}

// TestRolesOfADeletedRelease checks that the last line names the command that removes the roles, where helm uninstall finds no release.
func TestRolesOfADeletedRelease(t *testing.T) {
	role := func(annotations string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: berth-agent, annotations: {" + annotations + "}}"
	}
	for name, tc := range map[string]struct{ role, want string }{
		"of Helm":      {role("meta.helm.sh/release-name: mine"), "has nothing of the release mine, so helm uninstall does not know it; now run: kubectl delete clusterroles,"},
		"without Helm": {role(""), "Berth is removed\n"},
		"none":         {strings.Replace(role("meta.helm.sh/release-name: mine"), "berth-agent", "other", 1), "Berth is removed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, others, kept, tc.role)
				w.drop(namespaces(), "", "berth-system")
				w.drop(daemonSets(), "berth-system", "other")
				if out, err := w.run(Options{}); err != nil || !strings.Contains(out, tc.want) {
					t.Errorf("%v, want %q:\n%s", err, tc.want, out)
				}
			})
		})
	}
}

const awayNode = `apiVersion: v1
kind: Node
metadata: {name: node-away, labels: {kubernetes.io/os: linux}}
status: {conditions: [{type: Ready, status: Unknown}]}
---
apiVersion: berth.dev/v1alpha1
kind: GPUNode
metadata: {name: node-away}
---
apiVersion: v1
kind: Pod
metadata: {namespace: berth-system, name: agent-away, labels: {app.kubernetes.io/name: berth-agent}}
spec: {nodeName: node-away}`

// TestNodeAway checks that a node that is not ready is named and skipped, that the rest is removed, and that the command of the message
// cleans it later.
func TestNodeAway(t *testing.T) {
	for _, force := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, others, kept, awayNode)
			out, err := w.run(Options{Force: force})
			if (err == nil) != force || err != nil && !strings.Contains(err.Error(), "node-away: the node is not ready") {
				t.Errorf("force %v: %v", force, err)
			}
			for _, want := range []string{"does not wait for the pod agent-away", "warning: skips node node-away", "node node-a is clean"} {
				if !strings.Contains(out, want) {
					t.Errorf("the output lacks %q:\n%s", want, out)
				}
			}
			if len(w.all(v1alpha1.GPUNodes()))+len(w.all(definitions())) != 1 {
				t.Errorf("left: %v", w.left())
			}
			const image = "example.com/berth-agent:1.2.0"
			if fix := "\nfix: when they are ready, run: berth uninstall --all -n berth-system --image " + image; err != nil && !strings.HasSuffix(err.Error(), fix) {
				t.Errorf("the error lacks %q: %v", fix, err)
			}
			w.back = true
			if out, err = w.run(Options{Namespace: "berth-system", Image: image}); err != nil || !strings.Contains(out, "node node-away is clean") {
				t.Errorf("the repetition printed, with the error %v:\n%s", err, out)
			}
		})
	}
}

// TestNodeFails checks that a node that cannot be cleaned ends the command with the reason before the API is changed, and that a
// repetition goes on once it is fixed.
func TestNodeFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept, release)
		w.fails["node-a"] = true
		_, err := w.run(Options{})
		if err == nil || !strings.Contains(err.Error(), "after 1m0s: 1 of 2 nodes are clean\n  node node-a: its pod fails: error: remove ledger") {
			t.Errorf("the error is %v", err)
		}
		if len(w.all(v1alpha1.GPUNodes())) != 1 || len(w.all(daemonSets())) != 2 {
			t.Errorf("left: %v", w.left())
		}
		out, err := w.run(Options{Force: true})
		if err != nil || !strings.Contains(out, "warning: goes on (--force)") {
			t.Errorf("with --force: %v\n%s", err, out)
		}
		w.checkClean()
	})
}

// TestActive checks that operations that have not ended are named and refuse the removal, unless it is forced.
func TestActive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const active = `apiVersion: berth.dev/v1alpha1
kind: NodeOperation
metadata: {name: validate-node-b, finalizers: [berth.dev/node-operation]}
spec: {node: node-b, kind: Validate, owner: operator/validation, restore: [the taint]}
status: {phase: Active, message: the pod runs}`
		w := newWorld(t, others, kept, release, active)
		_, err := w.run(Options{})
		if wrong, ok := errors.AsType[*NotDoneError](err); !ok || !strings.HasPrefix(wrong.Error(), "1 NodeOperations are active:") || !strings.Contains(err.Error(), "validate-node-b: Validate of node node-b, Active the pod runs") {
			t.Errorf("the error is %v", err)
		}
		if len(w.writes) > 0 {
			t.Errorf("the writes are %v", w.writes)
		}
		out, err := w.run(Options{Force: true})
		if err != nil || !strings.Contains(out, "ends without restoring: the taint") {
			t.Errorf("with --force: %v\n%s", err, out)
		}
		w.checkClean()
	})
}

// forbid makes the API server refuse requests.
func (w *world) forbid(verb, of string) {
	w.PrependReactor(verb, of, func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: of}, "", errors.New("no right"))
	})
}

// TestForbidden checks that a user without the rights changes nothing, and that the right to read Secrets is not needed.
func TestForbidden(t *testing.T) {
	tests := map[string]struct{ verb, of string }{
		"to read":           {"list", "nodeoperations"},
		"to make":           {"create", "daemonsets"},
		"to read the nodes": {"list", "gpunodes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, others, kept, release)
				w.forbid(tc.verb, tc.of)
				if _, err := w.run(Options{}); !apierrors.IsForbidden(err) || len(w.writes) > 0 {
					t.Errorf("%v, writes %v", err, w.writes)
				}
			})
		})
	}
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept, release)
		w.forbid("list", "secrets")
		out, err := w.run(Options{})
		if err != nil || !strings.Contains(out, "If it was installed with Helm, now run: helm uninstall mine -n berth-system") {
			t.Errorf("%v\n%s", err, out)
		}
		w.checkClean()
	})
}

// TestRefused checks what is said before anything is written, and when the pods are refused.
func TestRefused(t *testing.T) {
	const label = "kubectl label --overwrite namespace berth-system pod-security.kubernetes.io/enforce=privileged"
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept, release)
		if _, err := w.run(Options{Confirm: func(string) error { return errors.New("no") }}); err == nil || len(w.writes) > 0 {
			t.Errorf("not confirmed: %v, %v", err, w.writes)
		}
		w.refused = `pods "x" is forbidden: violates PodSecurity "baseline:latest"`
		if out, err := w.run(Options{}); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") || !strings.Contains(err.Error(), label) || !strings.Contains(out, label) {
			t.Errorf("refused pods: %v\n%s", err, out)
		}
	})
	bubble(t, func(t *testing.T) {
		w := newWorld(t, strings.Replace(others, "{name: berth-system}", "{name: berth-system, labels: {pod-security.kubernetes.io/enforce: restricted}}", 1), kept, release)
		if _, err := w.run(Options{}); err == nil || !strings.Contains(err.Error(), label) || len(w.writes) > 0 {
			t.Errorf("a restricted namespace: %v, %v", err, w.writes)
		}
	})
	bubble(t, func(t *testing.T) {
		w := newWorld(t, others, kept)
		if err := w.Tracker().Delete(v1alpha1.GPUStacks(), "", "default"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.run(Options{}); err == nil || !strings.Contains(err.Error(), "give --image") || len(w.writes) > 0 {
			t.Errorf("without an image: %v, %v", err, w.writes)
		}
		if out, err := w.run(Options{Image: "example.com/agent"}); err != nil || w.hostSet().Spec.Template.Spec.Containers[0].Image != "example.com/agent" {
			t.Errorf("with an image: %v\n%s", err, out)
		}
	})
}

// TestAllNodes checks that with an image each node is cleaned when nothing of the API says which nodes had an agent.
func TestAllNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, strings.Replace(others, "labels: {zone: a}", "labels: {kubernetes.io/os: linux}", 1))
		out, err := w.run(Options{Image: "example.com/agent"})
		if err != nil || !strings.Contains(out, "node node-plain is clean") || len(w.all(daemonSets())) != 1 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
