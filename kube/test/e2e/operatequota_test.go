package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The namespace and the ResourceQuota of the test.
const (
	quotaNamespace = "team-a"
	quotaName      = "gpu-quota-team"
)

// TestOperateQuota limits a namespace by a GPUQuota on a cluster on which the chart is installed. What seed 001's quota does not stop, the
// GPUQuota does: whole GPUs, MIG devices, replicas and claims, each under the name that the API server counts.
func TestOperateQuota(t *testing.T) {
	onOwnCluster(t, 1)
	c := ownCluster(t, sandbox.Options{Nodes: 1, Profile: profileName(), Helm: true})
	i := &installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}
	i.waitFull(t, c.Nodes()[0])
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: quotaNamespace}}
	if _, err := c.Client().CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	i.waitDefinition(t, "gpuquotas.berth.dev")
	gpuQuota := `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUQuota","metadata":{"name":"team"},"spec":{"namespaces":["team-a"],"limits":[{"max":2}]}}`
	began := time.Now()
	if err := c.ApplyObjects(timeout(t, time.Minute), decode(t, gpuQuota)...); err != nil {
		t.Fatal(err)
	}
	i.waitLimited(t, "requests."+gpuResource, 2)
	t.Logf("the ResourceQuota was there %v after the GPUQuota", time.Since(began).Round(time.Millisecond))
	t.Run("WholeGPUs", func(t *testing.T) { i.testQuotaStops(t, gpuResource) })
	t.Run("Claims", func(t *testing.T) { testQuotaOfClaims(t, i) })
	t.Run("EditUndone", func(t *testing.T) { testQuotaEdit(t, i) })
	t.Run("Wrong", func(t *testing.T) { testWrongQuota(t, i) })
	t.Run("OperatorsToken", func(t *testing.T) { testOperatorWritesOnlyItsOwn(t, i) })
	t.Run("NewNames", func(t *testing.T) { testQuotaFollows(t, i) })
	t.Run("Deleted", func(t *testing.T) {
		if err := c.Client().Discovery().RESTClient().Delete().AbsPath("/apis/berth.dev/v1alpha1/gpuquotas/team").Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, 30*time.Second, "the ResourceQuota goes with its GPUQuota", func(ctx context.Context) error {
			_, err := i.quota(ctx)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %w", err)
		})
	})
}

// waitDefinition waits until the operator has applied a definition, and the API server serves it.
func (i *installed) waitDefinition(t *testing.T, name string) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the API server serves "+name, func(ctx context.Context) error {
		plural, _, _ := strings.Cut(name, ".")
		return i.Client().Discovery().RESTClient().Get().AbsPath("/apis/berth.dev/v1alpha1/" + plural).Do(ctx).Error()
	})
}

func (i *installed) quota(ctx context.Context) (*corev1.ResourceQuota, error) {
	return i.Client().CoreV1().ResourceQuotas(quotaNamespace).Get(ctx, quotaName, metav1.GetOptions{})
}

// waitLimited waits until the ResourceQuota limits a name, and the API server enforces that. A max of -1 waits until it does not.
func (i *installed) waitLimited(t *testing.T, name string, most int64) {
	t.Helper()
	waitUntil(t, time.Minute, fmt.Sprintf("%s is limited to %d", name, most), func(ctx context.Context) error {
		quota, err := i.quota(ctx)
		if err != nil {
			return err
		}
		for _, hard := range []corev1.ResourceList{quota.Spec.Hard, quota.Status.Hard} {
			got, ok := hard[corev1.ResourceName(name)]
			if ok != (most >= 0) || ok && got.Value() != most {
				return fmt.Errorf("it limits %v", hard)
			}
		}
		return nil
	})
}

// testQuotaStops checks that pods get two of a resource and no third, and that the refusal names the quota.
func (i *installed) testQuotaStops(t *testing.T, name string) {
	pod := func(n int, count int64) *corev1.Pod {
		p := workloadPod(fmt.Sprintf("pod-%d", n))
		p.Namespace = quotaNamespace
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(count, resource.DecimalSI)}
		return p
	}
	for n := range 2 {
		startPod(t, i.Cluster, pod(n, 1))
	}
	_, err := i.Client().CoreV1().Pods(quotaNamespace).Create(t.Context(), pod(2, 1), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "exceeded quota: "+quotaName) || !strings.Contains(err.Error(), "requests."+name) {
		t.Errorf("a third pod with %s: %v", name, err)
	}
	out, err := exec.Command(filepath.Join(i.State().Bin, "berth"), "quota", "--namespace", quotaNamespace, "--kubeconfig", i.KubeconfigPath()).CombinedOutput()
	row := regexp.MustCompile(`(?m)^team-a +gpu-quota-team +team +` + regexp.QuoteMeta("requests."+name) + ` +2 +2 +pod-0 \(1\), pod-1 \(1\)$`)
	if err != nil || !row.Match(out) {
		t.Errorf("berth quota: %v; want the row %s in\n%s", err, row, out)
	}
}

// testQuotaOfClaims checks that a claim of more devices than the limit is refused.
func testQuotaOfClaims(t *testing.T, i *installed) {
	claim := func(count int64) *resourceapi.ResourceClaim {
		c := claimOf("claim", gpuRequest("gpus", count))
		c.Namespace = quotaNamespace
		return c
	}
	claims := i.Client().ResourceV1().ResourceClaims(quotaNamespace)
	if _, err := claims.Create(t.Context(), claim(3), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "exceeded quota: "+quotaName) {
		t.Errorf("a claim of three GPUs: %v", err)
	}
	if _, err := claims.Create(t.Context(), claim(2), metav1.CreateOptions{}); err != nil {
		t.Errorf("a claim of two GPUs: %v", err)
	}
}

// testQuotaEdit checks that an edit of the ResourceQuota is undone, also of a name that Berth does not limit.
func testQuotaEdit(t *testing.T, i *installed) {
	patch := fmt.Appendf(nil, `{"spec":{"hard":{"requests.%s":"100","pods":"1"}}}`, gpuResource)
	if _, err := i.Client().CoreV1().ResourceQuotas(quotaNamespace).Patch(t.Context(), quotaName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	i.waitLimited(t, "requests."+gpuResource, 2)
	i.waitLimited(t, "pods", -1)
}

// testWrongQuota checks that the API server refuses a GPUQuota that says nothing, or two things, and accepts the example of the documents.
func testWrongQuota(t *testing.T, i *installed) {
	example, err := os.ReadFile(repository("docs", "examples", "gpuquota.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.DryRun(timeout(t, 10*time.Second), decode(t, string(example))...); err != nil {
		t.Errorf("the example: %v", err)
	}
	for spec, want := range map[string]string{
		`{"limits":[{"max":1}]}`: "give either namespaces or namespaceSelector",
		`{"namespaces":["a"],"namespaceSelector":{},"limits":[{"max":1}]}`: "give either namespaces or namespaceSelector",
		`{"namespaces":["a"],"limits":[]}`:                                 "spec.limits",
		`{"namespaces":["a"],"limits":[{"max":-1}]}`:                       "spec.limits[0].max",
		`{"namespaces":["a"],"limits":[{"sharing":"half","max":1}]}`:       `Unsupported value: "half"`,
	} {
		text := `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUQuota","metadata":{"name":"wrong"},"spec":` + spec + `}`
		if err := i.DryRun(timeout(t, 10*time.Second), decode(t, text)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

// testQuotaFollows gives GPUs other names, by MIG, by sharing and by a rule: the quota limits those too, and still when they are gone.
func testQuotaFollows(t *testing.T, i *installed) {
	const mig, shared, named = "nvidia.com/mig-3g.20gb", gpuResource + ".shared", "example.com/named-gpu"
	configs := map[string]any{"configs": map[string]any{"default": map[string]any{"gpus": []any{
		map[string]any{"select": map[string]any{"index": []any{7}}, "mig": map[string]any{"devices": map[string]any{"3g.20gb": 2}}},
		map[string]any{"select": map[string]any{"index": []any{6}}, "sharing": map[string]any{"mode": "timeSlicing", "replicas": 3, "renameByDefault": true}},
		map[string]any{"select": map[string]any{"index": []any{5}}, "resourceName": named},
	}}}}
	ctx := timeout(t, 2*time.Minute)
	if _, err := i.Helm(ctx, i.merged(configs), i.chart("upgrade")...); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{mig, shared, named} {
		i.waitLimited(t, "requests."+name, 2)
	}
	t.Run("Shared", func(t *testing.T) { i.testQuotaStops(t, shared) })
	t.Run("MIG", func(t *testing.T) { i.testQuotaStops(t, mig) })
	if _, err := i.Helm(ctx, i.MachineValues(), i.chart("upgrade")...); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "the node has no "+named, func(ctx context.Context) error {
		node, err := i.Client().CoreV1().Nodes().Get(ctx, i.Nodes()[0].Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if quantity := node.Status.Allocatable[corev1.ResourceName(named)]; !quantity.IsZero() {
			return fmt.Errorf("it has %s", quantity.String())
		}
		return nil
	})
	i.waitLimited(t, "requests."+named, 2)
}
