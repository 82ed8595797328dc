package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// installLimit is how long it may take from the command of the installation to the first running GPU pod.
const installLimit = 60 * time.Second

// installed is a sandbox of two nodes on which the chart is installed with Helm, as users do.
type installed struct {
	*sandbox.Cluster
	// gpus is how many GPUs each node has.
	gpus int64
}

// TestInstallChart installs, upgrades and removes the chart with Helm. The nodes reach no network but the API server's.
func TestInstallChart(t *testing.T) {
	onOwnCluster(t, 2)
	c := ownCluster(t, sandbox.Options{Nodes: 2, Profile: profileName(), NoAgent: true})
	i := &installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}
	prepareRenderings(t, c)
	before, all := i.objects(t), i.everything(t)
	t.Run("Renderings", func(t *testing.T) {
		testRenderings(t, i)
		testRestrictedRefuses(t, i)
	})
	t.Run("Refused", func(t *testing.T) { testInstallRefused(t, i, before) })
	t.Run("Install", func(t *testing.T) { testInstall(t, i) })
	if t.Failed() {
		return
	}
	t.Run("Flood", func(t *testing.T) { testFlood(t, i) })
	t.Run("SecondRelease", func(t *testing.T) { testSecondRelease(t, i) })
	t.Run("Definitions", func(t *testing.T) { testDefinitions(t, i) })
	t.Run("ChangeNothingOfPods", func(t *testing.T) { testChangeNothingOfPods(t, i) })
	t.Run("ChangePods", func(t *testing.T) { testChangePods(t, i) })
	t.Run("Downgrade", func(t *testing.T) { testDowngrade(t, i) })
	if found, err := denials(c, time.Time{}); err != nil || len(found) > 0 {
		t.Errorf("the API server refused %d requests of Berth's programs, %v:\n%s", len(found), err, strings.Join(found, "\n"))
	}
	t.Run("Uninstall", func(t *testing.T) { testUninstall(t, i, before) })
	t.Run("FromPrevious", func(t *testing.T) { testFromPrevious(t, i) })
	t.Run("RemovalAfterHelm", func(t *testing.T) { testRemoval(t, i, all, true) })
}

// chart returns the arguments of Helm for the chart in the release's namespace.
func (i *installed) chart(command string, more ...string) []string {
	return append([]string{command, "berth", i.ChartArchive(), "--namespace", agentNamespace, "--values", "-"}, more...)
}

// merged returns the values that the sandbox needs, with more. A map of more is merged, any other value replaces.
func (i *installed) merged(more map[string]any) map[string]any {
	var merge func(into, from map[string]any) map[string]any
	merge = func(into, from map[string]any) map[string]any {
		for key, value := range from {
			a, isMap := into[key].(map[string]any)
			if b, ok := value.(map[string]any); ok && isMap {
				value = merge(a, b)
			}
			into[key] = value
		}
		return into
	}
	return merge(i.MachineValues(), more)
}

// objects returns the names of all objects of the API server but those that come and go by themselves.
func (i *installed) objects(t *testing.T) map[string]bool {
	t.Helper()
	client, err := dynamic.NewForConfig(i.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	lists, err := i.Client().Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || slices.Contains([]string{"events", "leases", "componentstatuses"}, resource.Name) {
				continue
			}
			all, err := client.Resource(group.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue // a definition that goes away
			}
			if err != nil {
				t.Fatalf("list %s: %v", resource.Name, err)
			}
			for i := range all.Items {
				if o := &all.Items[i]; !ofNamespace(o) {
					found[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = true
				}
			}
		}
	}
	return found
}

// ofNamespace tells whether an object is one that Kubernetes makes in each namespace: in its own ones it can come some time after the
// start.
func ofNamespace(o *unstructured.Unstructured) bool {
	name := o.GetKind() + " " + o.GetName()
	return o.GetNamespace() != agentNamespace && (name == "ConfigMap kube-root-ca.crt" || name == "ServiceAccount default")
}

// more returns the objects of after that before does not have, in order.
func more(before, after map[string]bool) []string {
	var added []string
	for name := range after {
		if !before[name] {
			added = append(added, name)
		}
	}
	slices.Sort(added)
	return added
}

// testInstallRefused checks that Helm makes nothing of what it refuses: wrong values, and a namespace that does not admit the agent.
// There it prints the command that helps.
func testInstallRefused(t *testing.T, i *installed, before map[string]bool) {
	ctx := timeout(t, 2*time.Minute)
	files, err := filepath.Glob(repository("charts", "testdata", "wrong", "*.yaml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d wrong files, %v", len(files), err)
	}
	// The tests of the chart render it with all of them.
	for _, file := range files[:3] {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, ok := strings.CutPrefix(strings.SplitN(string(text), "\n", 2)[0], "# want: ")
		if !ok {
			continue // found by berth values check alone
		}
		if _, err := i.Helm(ctx, i.MachineValues(), i.chart("install", "--create-namespace", "--values", file)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("install with %s: %v, want %q", filepath.Base(file), err, want)
		}
	}
	namespaces := i.Client().CoreV1().Namespaces()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := namespaces.Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const help = "kubectl label --overwrite namespace berth-system pod-security.kubernetes.io/enforce=privileged"
	if _, err := i.Helm(ctx, i.MachineValues(), i.chart("install")...); err == nil || !strings.Contains(err.Error(), help) {
		t.Errorf("install in a restricted namespace: %v, want %q", err, help)
	}
	if added := more(before, i.objects(t)); !slices.Equal(added, []string{
		"ConfigMap " + agentNamespace + "/kube-root-ca.crt", "Namespace /" + agentNamespace, "ServiceAccount " + agentNamespace + "/default"}) {
		t.Errorf("installations that were refused made %v", added)
	}
	// What the message says.
	patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`)
	if _, err := namespaces.Patch(ctx, agentNamespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testInstall installs the chart beside a pod that waits for a GPU, and prints how long it takes until the pod runs.
func testInstall(t *testing.T, i *installed) {
	ctx := timeout(t, 2*time.Minute)
	pod := podWithGPUs("first", 1)
	if _, err := i.CreatePod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := i.Helm(ctx, i.MachineValues(), i.chart("install", "--create-namespace")...); err != nil {
		t.Fatal(err)
	}
	helm := time.Since(began)
	if _, err := i.WaitPhase(ctx, pod.Namespace, pod.Name, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("the first GPU pod runs %.1f s after the command of the installation began; Helm took %.1f s", took.Seconds(), helm.Seconds())
	if took > installLimit {
		t.Errorf("the first GPU pod ran after %v, want at most %v", took, installLimit)
	}
	for _, node := range i.Nodes() {
		i.waitFull(t, node)
	}
	waitUntil(t, 30*time.Second, "the operator is available", func(ctx context.Context) error {
		operator, err := i.Client().AppsV1().Deployments(agentNamespace).Get(ctx, "berth-operator", metav1.GetOptions{})
		if err == nil && operator.Status.AvailableReplicas != 1 {
			err = fmt.Errorf("its status is %+v", operator.Status)
		}
		return err
	})
}

// waitFull waits until the node offers all its GPUs.
func (i *installed) waitFull(t *testing.T, node sandbox.Node) {
	t.Helper()
	waitUntil(t, 30*time.Second, node.Name()+" offers its GPUs", func(ctx context.Context) error {
		got, err := i.allocatable(ctx, node.Name())
		if err == nil && got != i.gpus {
			err = fmt.Errorf("it offers %d of %d", got, i.gpus)
		}
		return err
	})
}

func (i *installed) allocatable(ctx context.Context, node string) (int64, error) {
	object, err := i.Client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	quantity := object.Status.Allocatable[gpuResource]
	return quantity.Value(), nil
}

// testSecondRelease checks that a second release is refused, by name and by what it would take over.
func testSecondRelease(t *testing.T, i *installed) {
	ctx := timeout(t, time.Minute)
	for _, args := range [][]string{
		{"install", "berth", i.ChartArchive(), "--namespace", "another", "--create-namespace", "--values", "-"},
		{"install", "another", i.ChartArchive(), "--namespace", agentNamespace, "--values", "-"},
	} {
		if _, err := i.Helm(ctx, i.MachineValues(), args...); err == nil || !strings.Contains(err.Error(), "as the release berth in the namespace berth-system") {
			t.Errorf("helm %v: %v", args, err)
		}
	}
	if _, err := i.Client().CoreV1().Namespaces().Get(ctx, "another", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace of the second release: %v, want none", err)
	}
}

// definitions is the resource of CustomResourceDefinitions.
func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// testDefinitions checks that the operator made the definitions and the DeviceClasses, undoes an edit, and makes a class again.
func testDefinitions(t *testing.T, i *installed) {
	ctx := timeout(t, time.Minute)
	client, err := dynamic.NewForConfig(i.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	const crd, column = "gpunodes.berth.dev", `[{"op":"replace","path":"/spec/versions/0/additionalPrinterColumns","value":[{"name":"x","type":"string","jsonPath":".x"}]}]`
	columns := func(ctx context.Context) (string, error) {
		object, err := client.Resource(definitions()).Get(ctx, crd, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		versions, _, err := unstructured.NestedSlice(object.Object, "spec", "versions")
		if err != nil || len(versions) == 0 {
			return "", errors.Join(err, errors.New("no versions"))
		}
		text, err := json.Marshal(versions[0].(map[string]any)["additionalPrinterColumns"])
		return string(text), err
	}
	want, err := columns(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(definitions()).Patch(ctx, crd, types.JSONPatchType, []byte(column), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, 20*time.Second, "the operator undoes the edit of "+crd, func(ctx context.Context) error {
		got, err := columns(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("its columns are %s", got)
		}
		return err
	})
	t.Logf("the operator undid an edit of the definition after %v", time.Since(began).Round(time.Millisecond))
	i.deleteDefinition(t, client)
	classes := i.Client().ResourceV1().DeviceClasses()
	all, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) < 2 {
		t.Fatalf("DeviceClasses: %v, %v", all, err)
	}
	name := all.Items[0].Name
	if err := classes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 20*time.Second, "the operator makes the DeviceClass "+name, func(ctx context.Context) error {
		_, err := classes.Get(ctx, name, metav1.GetOptions{})
		return err
	})
}

// deleteDefinition deletes the definition of GPUNode, and checks that the operator makes it again and the agents their objects.
func (i *installed) deleteDefinition(t *testing.T, client dynamic.Interface) {
	t.Helper()
	before, err := client.Resource(v1alpha1.GPUNodes()).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(before.Items) != len(i.Nodes()) {
		t.Fatalf("GPUNodes: %v, %v", before, err)
	}
	began := time.Now()
	if err := client.Resource(definitions()).Delete(t.Context(), "gpunodes.berth.dev", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for j := range before.Items {
		old := &before.Items[j]
		waitUntil(t, 30*time.Second, "the GPUNode "+old.GetName()+" is written again", func(ctx context.Context) error {
			now, err := client.Resource(v1alpha1.GPUNodes()).Get(ctx, old.GetName(), metav1.GetOptions{})
			if err == nil && now.GetUID() == old.GetUID() {
				err = errors.New("it is not deleted yet")
			}
			return err
		})
	}
	t.Logf("the GPUNodes were written again %.1f s after their definition was deleted", time.Since(began).Seconds())
}

// berthPods returns the UID of each pod of the release with how often its containers were restarted.
func (i *installed) berthPods(ctx context.Context) (map[string]int32, error) {
	list, err := i.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]int32{}
	for j := range list.Items {
		pod := &list.Items[j]
		if pod.Labels[v1alpha1.ValidationLabel] != "" {
			continue
		}
		found[pod.Labels["app.kubernetes.io/name"]+" "+string(pod.UID)] = restarts(pod)
	}
	return found, nil
}

// sampleFull reads every 20 ms how many GPUs the nodes offer, until stop is called, which fails the test if it was ever less than all.
func (i *installed) sampleFull(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var samples int
	var below []string
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, node := range i.Nodes() {
				switch got, err := i.allocatable(ctx, node.Name()); {
				case err != nil && ctx.Err() == nil:
					below = append(below, err.Error())
				case err == nil && got != i.gpus:
					below = append(below, fmt.Sprintf("%s offered %d of %d", node.Name(), got, i.gpus))
				}
			}
			samples++
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() {
		t.Helper()
		cancel()
		<-ended
		t.Logf("looked at the nodes' allocatable GPUs %d times", samples)
		if len(below) > 0 || samples < 10 {
			t.Errorf("%d of %d samples: %v", len(below), samples, below[:min(len(below), 5)])
		}
	}
}

// everyOtherValue are values of everything that is not a pod's own.
func everyOtherValue() map[string]any {
	return map[string]any{
		"configs": map[string]any{"default": map[string]any{"pollInterval": "7s", "taintUnhealthy": true, "labels": map[string]any{"noTimestamp": true}},
			"second": map[string]any{"migStrategy": "single"}},
		"gate":          map[string]any{"mode": "report", "timeout": "5m", "onTimeout": "open"},
		"rights":        map[string]any{"dra": false, "nodeFeature": true, "taintUnhealthy": true, "migConfigMap": "default/layouts"},
		"policies":      map[string]any{"ownNode": false, "privilegedPods": false, "operator": false, "claimConfig": false, "quotaNames": false, "shareNames": false},
		"networkPolicy": map[string]any{"enabled": true, "apiServerCIDRs": []any{"10.96.0.1/32"}, "apiServerPorts": []any{443}},
		"criticalPods":  map[string]any{"quota": true, "pods": 50},
		"dashboard":     map[string]any{"enabled": true},
		"podMonitor":    map[string]any{"enabled": true, "interval": "30s"},
		"alerts":        map[string]any{"enabled": true, "labels": map[string]any{"a": "b"}},
	}
}

// testChangeNothingOfPods changes every value that is not a pod's own, and back: no pod is replaced or restarted, no device is missing for
// a moment, and the new configuration reaches the agents.
func testChangeNothingOfPods(t *testing.T, i *installed) {
	ctx := timeout(t, 2*time.Minute)
	before, err := i.berthPods(ctx)
	if err != nil || len(before) != 3 {
		t.Fatalf("the pods are %v, %v; want two agents and the operator", before, err)
	}
	stop := i.sampleFull(t)
	for _, values := range []map[string]any{everyOtherValue(), {}} {
		if _, err := i.Helm(ctx, i.merged(values), i.chart("upgrade")...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // What a restart would need to show.
	}
	stop()
	if after, err := i.berthPods(ctx); err != nil || !maps.Equal(before, after) {
		t.Errorf("the pods were %v and are %v, %v", before, after, err)
	}
}

// testChangePods changes values of the pods: each is replaced, and no device is missing for a moment.
func testChangePods(t *testing.T, i *installed) {
	ctx := timeout(t, 3*time.Minute)
	before, err := i.berthPods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stop := i.sampleFull(t)
	values := map[string]any{"agent": map[string]any{"annotations": map[string]any{"a": "b"}}, "operator": map[string]any{"labels": map[string]any{"a": "b"}}}
	if _, err := i.Helm(ctx, i.merged(values), i.chart("upgrade", "--wait", "--timeout", "2m")...); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, time.Minute, "each pod is replaced", func(ctx context.Context) error {
		after, err := i.berthPods(ctx)
		if err != nil {
			return err
		}
		for uid := range after {
			if _, old := before[uid]; old || len(after) != 3 {
				return fmt.Errorf("the pods are %v", after)
			}
		}
		return nil
	})
	stop()
}

// testUninstall removes the release under a running GPU pod: the pod runs on, and of Berth there is left what has to be, the definitions
// with their objects and the classes.
func testUninstall(t *testing.T, i *installed, before map[string]bool) {
	ctx := timeout(t, time.Minute)
	if _, err := i.Helm(ctx, nil, "uninstall", "berth", "--namespace", agentNamespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 30*time.Second, "the release is gone", func(ctx context.Context) error {
		pods, err := i.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	var left []string
	for _, name := range more(before, i.objects(t)) {
		switch kind, _, _ := strings.Cut(name, " "); kind {
		case "CustomResourceDefinition", "APIService", "GPUNode", "GPUStack", "DeviceClass":
		default:
			left = append(left, name)
		}
	}
	if want := []string{"ConfigMap " + agentNamespace + "/kube-root-ca.crt", "Namespace /" + agentNamespace, "Pod default/first",
		"ServiceAccount " + agentNamespace + "/default"}; !slices.Equal(left, want) {
		t.Errorf("the removal left %v, want %v", left, want)
	}
	pod, err := i.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "first", metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodRunning || restarts(pod) != 0 {
		t.Errorf("the GPU pod is %s after %d restarts, %v", pod.Status.Phase, restarts(pod), err)
	}
}
