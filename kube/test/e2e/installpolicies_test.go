package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// daemonSetController is the user that creates the pods of DaemonSets.
const daemonSetController = "system:serviceaccount:kube-system:daemon-set-controller"

// warnings collects the warnings of the API server.
type warnings struct {
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// userConfig returns an administrator's configuration, as another user unless user is "".
func userConfig(c *sandbox.Cluster, user string, w *warnings) *rest.Config {
	config := c.RESTConfig()
	config.QPS, config.WarningHandler = -1, w
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	}
	return config
}

// create creates an object as a dry run, and returns the API server's warnings that are of Berth's policies.
func dryRun(t *testing.T, c *sandbox.Cluster, user string, resource schema.GroupVersionResource, namespace, object string) ([]string, error) {
	t.Helper()
	w := &warnings{}
	client, err := dynamic.NewForConfig(userConfig(c, user, w))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(object), &o.Object); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	_, err = client.Resource(resource).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return slices.DeleteFunc(w.texts, func(text string) bool { return !strings.Contains(text, "'berth-") }), err
}

// TestInstallPolicies tries what the policies of the chart refuse and warn of, and what they must let pass.
func TestInstallPolicies(t *testing.T) {
	onSharedCluster(t)
	c := cluster(t)
	if c.State().Profile == "" {
		t.Skip("skipped: the sandbox has no simulated hardware, and therefore no policies")
	}
	t.Run("PrivilegedPods", func(t *testing.T) { testPrivilegedPods(t, c) })
	t.Run("Debug", func(t *testing.T) { testDebug(t, c) })
	t.Run("QuotaNames", func(t *testing.T) { testQuotaNames(t, c) })
	t.Run("QuotaCounts", func(t *testing.T) { testQuotaCounts(t, newRig(c)) })
	t.Run("ShareNames", func(t *testing.T) { testShareNames(t, c) })
}

// policyPod is a pod with further fields of its spec and of its container, each as JSON that ends in a comma.
func policyPod(spec, container string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{` + spec + `"containers":[{` + container + `"name":"main","image":"example.com/x"}]}}`
}

// testPrivilegedPods checks that the API server has the policy and knows the controllers. kube/test/policies has the table of pods.
func testPrivilegedPods(t *testing.T, c *sandbox.Cluster) {
	privileged := policyPod("", `"securityContext":{"privileged":true},`)
	const profile = `"metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/main":"unconfined"},`
	for name, tc := range map[string]struct {
		user, namespace, pod string
		want                 string // of the refusal; empty if there is none
	}{
		"privileged":               {pod: privileged, want: "privileged container main"},
		"AppArmor's old profile":   {pod: strings.Replace(policyPod("", ""), `"metadata":{`, profile, 1), want: "main;"},
		"the operator's account":   {pod: policyPod(`"serviceAccountName":"berth-operator",`, ""), want: "the account berth-operator;"},
		"a controller":             {user: "system:serviceaccount:kube-system:replicaset-controller", pod: privileged, want: "privileged container main"},
		"plain":                    {pod: policyPod("", "")},
		"another namespace":        {namespace: "kube-system", pod: privileged},
		"the DaemonSet controller": {user: daemonSetController, pod: privileged},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := agentNamespace
			if tc.namespace != "" {
				namespace = tc.namespace
			}
			_, err := dryRun(t, c, tc.user, core("pods"), namespace, tc.pod)
			checkRefusal(t, err, "berth-privileged-pods", tc.want)
		})
	}
}

// checkRefusal compares the API server's answer with the text of a policy's refusal; empty wants the request allowed.
func checkRefusal(t *testing.T, err error, policy, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), policy) || !strings.Contains(err.Error(), want)):
		t.Errorf("the answer is %v, want a refusal by %s with %q", err, policy, want)
	}
}

// testDebug tries to add containers to a running pod of the agent, which is privileged itself, and to change its image.
func testDebug(t *testing.T, c *sandbox.Cluster) {
	node := c.Nodes()[0]
	agents, err := node.AgentPods(t.Context())
	if err != nil || len(agents) == 0 {
		t.Fatalf("pods of the agent: %d, %v", len(agents), err)
	}
	clients, err := kubernetes.NewForConfig(userConfig(c, "", &warnings{}))
	if err != nil {
		t.Fatal(err)
	}
	pods := clients.CoreV1().Pods(agentNamespace)
	add := func(ctx context.Context, pod *corev1.Pod, mounts ...corev1.VolumeMount) error {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: "example.com/x", TerminationMessagePolicy: corev1.TerminationMessageReadFile, VolumeMounts: mounts}})
		_, err := pods.UpdateEphemeralContainers(ctx, pod.Name, pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for name, change := range map[string]func(context.Context, *corev1.Pod) error{
		"a container": func(ctx context.Context, pod *corev1.Pod) error { return add(ctx, pod) },
		"the node's files": func(ctx context.Context, pod *corev1.Pod) error {
			i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
			return add(ctx, pod, corev1.VolumeMount{Name: pod.Spec.Volumes[i].Name, MountPath: "/files"})
		},
		"another image": func(ctx context.Context, pod *corev1.Pod) error {
			pod.Spec.Containers[0].Image = "example.com/x"
			_, err := pods.Update(ctx, pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			waitUntil(t, 10*time.Second, "the pod does not change during the request", func(ctx context.Context) error {
				pod, err := pods.Get(ctx, agents[0].Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if err = change(ctx, pod); apierrors.IsConflict(err) {
					return err
				}
				checkRefusal(t, err, "berth-privileged-pods", "nor its images be changed, and this one has: hostP")
				return nil
			})
		})
	}
}

func testQuotaNames(t *testing.T, c *sandbox.Cluster) {
	for name, tc := range map[string]struct {
		hard string
		want string // in the warning; empty if there is none
	}{
		"GPU":             {`"nvidia.com/gpu":"16"`, "nvidia.com/gpu is never counted, so it limits nothing: write requests.nvidia.com/gpu"},
		"limits":          {`"limits.nvidia.com/gpu":"16"`, "limits.nvidia.com/gpu is never counted, so it limits nothing: write requests.nvidia.com/gpu"},
		"MIG":             {`"nvidia.com/mig-1g.5gb":"7"`, "write requests.nvidia.com/mig-1g.5gb"},
		"AMD":             {`"amd.com/gpu":"8"`, "write requests.amd.com/gpu"},
		"Intel":           {`"gpu.intel.com/i915":"8"`, "write requests.gpu.intel.com/i915"},
		"two":             {`"nvidia.com/mig-1g.5gb":"7","nvidia.com/gpu":"16"`, "write requests.nvidia.com/gpu (and so for 1 more names of this quota)"},
		"one that counts": {`"requests.nvidia.com/gpu":"16"`, ""},
		"other names":     {`"pods":"3","requests.cpu":"4","count/pods":"3","gpu.berth.dev.deviceclass.resource.k8s.io/devices":"4"`, ""},
		"other's domain":  {`"example.com/nvidia.com":"3"`, ""},
		"nothing":         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dryRun(t, c, "", core("resourcequotas"), "default", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"x"},"spec":{"hard":{`+tc.hard+`}}}`)
			checkWarning(t, got, err, tc.want)
		})
	}
}

// testQuotaCounts checks what the warning says: a pod above a quota of that name runs, and is refused under the name that the warning
// proposes. berth doctor finds the quota.
func testQuotaCounts(t *testing.T, r *rig) {
	const namespace = "with-quota"
	clients := r.Client().CoreV1()
	if _, err := clients.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clients.Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	waitUntil(t, 20*time.Second, "the namespace has its account", func(ctx context.Context) error {
		_, err := clients.ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	r.checkDoctor(t, 0)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{gpuResource: resource.MustParse("1")}}}
	if _, err := clients.ResourceQuotas(namespace).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	above := func(name string) *corev1.Pod {
		pod := podWithGPUs(name, 2)
		pod.Namespace = namespace
		return pod
	}
	r.run(t, above("not-counted"))
	r.checkDoctor(t, 0, "QUOTA_NOT_COUNTED")
	quota.Spec.Hard = corev1.ResourceList{"requests." + gpuResource: resource.MustParse("1")}
	if _, err := clients.ResourceQuotas(namespace).Update(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 20*time.Second, "a pod above the quota is refused", func(ctx context.Context) error {
		_, err := clients.Pods(namespace).Create(ctx, above("counted"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	})
	r.checkDoctor(t, 0)
}

// checkWarning wants one warning with a text, or none for "", and no error.
func checkWarning(t *testing.T, got []string, err error, want string) {
	t.Helper()
	if err != nil {
		t.Errorf("refused: %v", err)
	}
	if (want == "" && len(got) != 0) || (want != "" && (len(got) != 1 || !strings.Contains(got[0], want))) {
		t.Errorf("the warnings are %q, want %q", got, want)
	}
}

func testShareNames(t *testing.T, c *sandbox.Cluster) {
	withLimit := func(name string) string {
		return `{"containers":[{"name":"main","image":"example.com/x","resources":{"limits":{"` + name + `":"1"}}}],"restartPolicy":"Never"}`
	}
	pod := func(annotations, spec string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","annotations":{` + annotations + `}},"spec":` + spec + `}`
	}
	const selector = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":`
	apps := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
	}
	batch := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: resource}
	}
	always := strings.Replace(withLimit("nvidia.com/gpumem"), `,"restartPolicy":"Never"`, "", 1)
	for name, tc := range map[string]struct {
		user     string
		resource schema.GroupVersionResource
		object   string
		want     string
	}{
		"HAMi":       {"", core("pods"), pod("", withLimit("nvidia.com/gpumem")), "nvidia.com/gpumem is a request of HAMi, Volcano or KAI for a share of a GPU"},
		"Volcano":    {"", core("pods"), pod("", withLimit("volcano.sh/vgpu-number")), "volcano.sh/vgpu-number is a request"},
		"KAI":        {"", core("pods"), pod(`"gpu-fraction":"0.5"`, withLimit("cpu")), "annotation gpu-fraction is a request"},
		"several":    {"", core("pods"), pod(`"gpu-memory":"500"`, withLimit("nvidia.com/gpucores")), "nvidia.com/gpucores, annotation gpu-memory are requests"},
		"controller": {"system:serviceaccount:kube-system:replicaset-controller", core("pods"), pod("", withLimit("nvidia.com/gpumem")), ""},
		"GPU":        {"", core("pods"), pod("", withLimit("nvidia.com/gpu")), ""},
		"Deployment": {"", apps("deployments"), `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{` + selector + always + `}}}`, "nvidia.com/gpumem is a request"},
		"DaemonSet":  {"", apps("daemonsets"), `{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"x"},"spec":{` + selector + always + `}}}`, "nvidia.com/gpumem is a request"},
		"Job":        {"", batch("jobs"), `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"x"},"spec":{"template":{"spec":` + withLimit("nvidia.com/gpumem") + `}}}`, "nvidia.com/gpumem is a request"},
		"CronJob": {"", batch("cronjobs"), `{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"x"},"spec":{"schedule":"0 * * * *","jobTemplate":{"spec":{"template":{"spec":` +
			withLimit("nvidia.com/gpumem") + `}}}}}`, "nvidia.com/gpumem is a request"},
		"Job with GPUs": {"", batch("jobs"), `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"x"},"spec":{"template":{"spec":` + withLimit("nvidia.com/gpu") + `}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dryRun(t, c, tc.user, tc.resource, "default", tc.object)
			checkWarning(t, got, err, tc.want)
		})
	}
}
