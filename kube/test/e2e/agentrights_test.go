package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// otherNode is a Node with a GPUNode that is not the agent's. No agent is scheduled there.
const otherNode = "strange-node"

// attempt is one request with an agent's token. All are dry runs, which go through authorization and admission.
type attempt struct {
	name string
	// allowed is the expected answer of the API server; policy means that a policy refuses the request, not RBAC.
	allowed, policy bool
	do              func(a *attacker) error
}

// attacker has an agent's token.
type attacker struct {
	t    *testing.T
	api  dynamic.Interface
	node string
}

func withToken(t *testing.T, c *sandbox.Cluster, token string) dynamic.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(c.RESTConfig())
	config.BearerToken, config.QPS = token, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func gpuNodes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "berth.dev", Version: "v1alpha1", Resource: "gpunodes"}
}

// patch sends a strategic merge patch of a Node as a dry run.
func (a *attacker) patch(name, text string, subresource ...string) error {
	_, err := a.api.Resource(core("nodes")).Patch(a.t.Context(), name, types.StrategicMergePatchType, []byte(text),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresource...)
	return err
}

func (a *attacker) patchGPUNode(name string) error {
	_, err := a.api.Resource(gpuNodes()).Patch(a.t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (a *attacker) create(resource schema.GroupVersionResource, namespace, object string) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(object), &o.Object); err != nil {
		a.t.Fatal(err)
	}
	_, err := a.api.Resource(resource).Namespace(namespace).Create(a.t.Context(), o,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (a *attacker) delete(resource schema.GroupVersionResource, namespace, name string) error {
	return a.api.Resource(resource).Namespace(namespace).Delete(a.t.Context(), name,
		metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
}

// event creates an event from an agent, about any object.
func (a *attacker) event(namespace, kind, name string) error {
	return a.create(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}, namespace, fmt.Sprintf(
		`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"x.1","namespace":%q},"eventTime":"2026-01-01T00:00:00.000000Z",
		"reportingController":"berth.dev/agent","reportingInstance":"x","action":"X","reason":"X","regarding":{"apiVersion":"v1","kind":%q,"name":%q},"note":"x","type":"Normal"}`,
		namespace, kind, name))
}

// attempts returns what an intruder could try with an agent's token, and what the agent must be able to do.
func attempts() []attempt {
	own := func(text string, sub ...string) func(*attacker) error {
		return func(a *attacker) error { return a.patch(a.node, text, sub...) }
	}
	other := func(text string, sub ...string) func(*attacker) error {
		return func(a *attacker) error { return a.patch(otherNode, text, sub...) }
	}
	taint := func(key, effect string) string {
		return fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"value":"true","effect":%q}]}}`, key, effect)
	}
	condition := func(kind string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"X","message":"x"}]}}`, kind)
	}
	const ownLabel, otherLabel = `{"metadata":{"labels":{"nvidia.com/gpu.count":"77"}}}`, `{"metadata":{"labels":{"pool":"x"}}}`
	return []attempt{
		{"own label about GPUs", true, false, own(ownLabel)},
		{"own label of a MIG profile", true, false, own(`{"metadata":{"labels":{"nvidia.com/mig-1g.5gb.count":"7"}}}`)},
		{"own MIG state", true, false, own(`{"metadata":{"labels":{"nvidia.com/mig.config.state":"pending"}}}`)},
		{"own condition", true, false, own(condition("GPUsHealthy"), "status")},
		{"own taint", true, false, own(taint("berth.dev/gpu-unhealthy", "NoSchedule"))},
		{"own condition of the gate", true, false, own(condition("GPUsReady"), "status")},
		{"own GPUNode", true, false, func(a *attacker) error { return a.patchGPUNode(a.node) }},
		{"event about own Node", true, false, func(a *attacker) error { return a.event("default", "Node", a.node) }},

		{"another Node's label", false, true, other(ownLabel)},
		{"another Node's condition", false, true, other(condition("GPUsHealthy"), "status")},
		{"another Node's taint", false, true, other(taint("berth.dev/gpu-unhealthy", "NoSchedule"))},
		{"another Node's foreign label", false, true, other(otherLabel)},
		{"another Node's allocatable", false, true, other(`{"status":{"allocatable":{"nvidia.com/gpu":"0"}}}`, "status")},

		{"own foreign label", false, true, own(otherLabel)},
		{"own foreign label by the status", false, true, own(otherLabel, "status")},
		{"own role", false, true, own(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)},
		{"remove own host name", false, true, own(`{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`)},
		{"own MIG layout", false, true, own(`{"metadata":{"labels":{"nvidia.com/mig.config":"all-1g.5gb"}}}`)},
		{"own choice of configuration", false, true, own(`{"metadata":{"labels":{"berth.dev/config":"x"}}}`)},
		{"own label that disables NVIDIA's operands", false, true, own(`{"metadata":{"labels":{"nvidia.com/gpu.deploy.device-plugin":"false"}}}`)},
		{"own annotation", false, true, own(`{"metadata":{"annotations":{"a":"b"}}}`)},
		{"own annotation by the status", false, true, own(`{"metadata":{"annotations":{"a":"b"}}}`, "status")},
		{"own finalizer", false, true, own(`{"metadata":{"finalizers":["example.com/x"]}}`)},
		{"own owner", false, true, own(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"x"}]}}`)},
		{"cordon own Node", false, true, own(`{"spec":{"unschedulable":true}}`)},
		{"own provider", false, true, own(`{"spec":{"providerID":"x"}}`)},
		{"a foreign taint", false, true, own(taint("example.com/x", "NoSchedule"))},
		// The cluster of the tests is rendered with gate.mode disabled.
		{"the gate's taint where the gate is disabled", false, true, own(`{"spec":{"taints":[{"key":"berth.dev/not-validated","value":"gpus-not-validated","effect":"NoSchedule"}]}}`)},
		{"the gate's taint that evicts", false, true, own(taint("berth.dev/not-validated", "NoExecute"))},
		{"the gate's value with another key", false, true, own(`{"spec":{"taints":[{"key":"example.com/x","value":"gpus-not-validated","effect":"NoSchedule"}]}}`)},
		{"another Node's condition of the gate", false, true, other(condition("GPUsReady"), "status")},
		{"own taint that evicts", false, true, own(taint("berth.dev/gpu-unhealthy", "NoExecute"))},
		{"own condition Ready", false, true, own(condition("Ready"), "status")},
		{"own allocatable", false, true, own(`{"status":{"allocatable":{"nvidia.com/gpu":"99"}}}`, "status")},
		{"own capacity", false, true, own(`{"status":{"capacity":{"example.com/x":"99"}}}`, "status")},
		{"own addresses", false, true, own(`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, "status")},

		{"another GPUNode", false, true, func(a *attacker) error { return a.patchGPUNode(otherNode) }},
		{"create another GPUNode", false, true, func(a *attacker) error {
			return a.create(gpuNodes(), "", `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUNode","metadata":{"name":"invented"}}`)
		}},
		{"event about another Node", false, true, func(a *attacker) error { return a.event("default", "Node", otherNode) }},
		{"event about a pod", false, true, func(a *attacker) error { return a.event("default", "Pod", a.node) }},
		{"event in another namespace", false, true, func(a *attacker) error { return a.event("kube-system", "Pod", "any") }},
		{"event about a claim with another reason", false, true, func(a *attacker) error { return a.event("kube-system", "ResourceClaim", "any") }},

		{"delete own GPUNode", false, false, func(a *attacker) error { return a.delete(gpuNodes(), "", a.node) }},
		{"delete another GPUNode", false, false, func(a *attacker) error { return a.delete(gpuNodes(), "", otherNode) }},
		{"delete own Node", false, false, func(a *attacker) error { return a.delete(core("nodes"), "", a.node) }},
		{"delete another Node", false, false, func(a *attacker) error { return a.delete(core("nodes"), "", otherNode) }},
		{"create a Node", false, false, func(a *attacker) error {
			return a.create(core("nodes"), "", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"invented"}}`)
		}},
		{"delete a pod", false, false, func(a *attacker) error { return a.delete(core("pods"), "default", "any") }},
		{"create a ConfigMap", false, false, func(a *attacker) error {
			return a.create(core("configmaps"), agentNamespace, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`)
		}},
		{"read a Secret", false, false, func(a *attacker) error {
			_, err := a.api.Resource(core("secrets")).Namespace("default").Get(a.t.Context(), "any", metav1.GetOptions{})
			return err
		}},
		{"delete the policy", false, false, func(a *attacker) error {
			return a.delete(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
				Resource: "validatingadmissionpolicies"}, "", "berth-agent-node")
		}},
		{"delete the policy's binding", false, false, func(a *attacker) error {
			return a.delete(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
				Resource: "validatingadmissionpolicybindings"}, "", "berth-agent-node")
		}},
	}
}

// TestAgentWritesOnlyItsOwn uses the token of an agent that runs as a host process, bound to its Node.
func TestAgentWritesOnlyItsOwn(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	if c.State().Profile == "" {
		t.Skip("skipped: the sandbox has no simulated hardware, and therefore no account for agents")
	}
	node := c.Nodes()[0]
	argv := node.AgentArgv()
	config, err := clientcmd.LoadFromFile(argv[slices.Index(argv, "--kubeconfig")+1])
	if err != nil {
		t.Fatal(err)
	}
	testAgentWrites(t, c, node.Name(), config.AuthInfos[agentName].Token)
}

// testAgentWrites tries all attempts with a token.
func testAgentWrites(t *testing.T, c *sandbox.Cluster, node, token string) {
	t.Helper()
	makeOtherNode(t, c)
	a := &attacker{t: t, api: withToken(t, c, token), node: node}
	for _, attempt := range attempts() {
		err := attempt.do(a)
		switch {
		case attempt.allowed && err != nil:
			t.Errorf("%s: %v, want it allowed", attempt.name, err)
		case !attempt.allowed && !apierrors.IsForbidden(err):
			t.Errorf("%s: %v, want it forbidden", attempt.name, err)
		case !attempt.allowed && attempt.policy != strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
			t.Errorf("%s: refused with %v, want a refusal by the policy: %v", attempt.name, err, attempt.policy)
		}
	}
	testUnboundToken(t, c, node)
	testTaintOption(t, c, a)
}

// makeOtherNode creates another Node with a GPUNode until the test ends; nothing is scheduled there.
func makeOtherNode(t *testing.T, c *sandbox.Cluster) {
	t.Helper()
	admin, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: otherNode},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/strange", Effect: corev1.TaintEffectNoExecute}}},
	}
	if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Client().CoreV1().Nodes().Delete(ctx, otherNode, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := admin.Resource(gpuNodes()).Delete(ctx, otherNode, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "berth.dev/v1alpha1", "kind": "GPUNode",
		"metadata": map[string]any{"name": otherNode}}}
	if _, err := admin.Resource(gpuNodes()).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testUnboundToken checks that a token of the account that names no Node may write nothing.
func testUnboundToken(t *testing.T, c *sandbox.Cluster, node string) {
	t.Helper()
	token, err := c.Client().CoreV1().ServiceAccounts(agentNamespace).CreateToken(t.Context(), agentName,
		&authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, api: withToken(t, c, token.Status.Token), node: node}
	for _, attempt := range attempts() {
		if err := attempt.do(a); attempt.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s with a token that names no Node: %v, want it forbidden", attempt.name, err)
		}
	}
}

// testTaintOption checks that the agent may not even add its own taint without rights.taintUnhealthy.
func testTaintOption(t *testing.T, c *sandbox.Cluster, a *attacker) {
	t.Helper()
	const binding = "berth-agent-taint"
	bindings := c.Client().RbacV1().ClusterRoleBindings()
	if err := bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.ApplyObjects(ctx, rendered(t, c, binding)...); err != nil {
			t.Error(err)
		}
	}()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := a.patch(a.node, `{"spec":{"taints":[{"key":"berth.dev/gpu-unhealthy","value":"true","effect":"NoSchedule"}]}}`)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "rights.taintUnhealthy") {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("own taint without the option: %v, want a refusal that names the value", err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// podToken returns the token that the agent's pod has.
func (r *rig) podToken(t *testing.T) string {
	t.Helper()
	token, err := os.ReadFile("/proc/" + strconv.Itoa(r.agent(t).PID) + "/root/var/run/secrets/kubernetes.io/serviceaccount/token")
	if err != nil {
		t.Fatal(err)
	}
	return string(token)
}
