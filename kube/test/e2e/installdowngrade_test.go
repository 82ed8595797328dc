package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/crds"
)

// newerDefinition is the definition that a newer release has changed, and newerVersion the schema version that it wrote.
const (
	newerDefinition = "gpunodes.berth.dev"
	newerVersion    = "1000"
)

// backLimit is how long it may take from the upgrade until the operator acts again: its container may wait for the kubelet's back-off.
const backLimit = time.Minute

// testDowngrade has an operator beside a definition of a newer release. It ends, changes nothing, and its pod and berth
// status say how to go on; the agents go on without it. With the version that it knows it acts again by itself.
func testDowngrade(t *testing.T, i *installed) {
	client, err := dynamic.NewForConfig(i.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, 2*time.Minute)
	object, err := client.Resource(definitions()).Get(ctx, newerDefinition, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version := object.GetAnnotations()[crds.VersionAnnotation]
	set := func(value string) *unstructured.Unstructured {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, crds.VersionAnnotation, value)
		object, err := client.Resource(definitions()).Patch(ctx, newerDefinition, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	stop := i.sampleFull(t)
	// 1. The operator that runs ends; so does one that starts.
	newer := set(newerVersion)
	running := i.waitRefused(t, "", version)
	if err := i.Client().CoreV1().Pods(agentNamespace).Delete(ctx, running, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	i.waitRefused(t, running, version)
	// 2. berth status says so.
	i.waitStatus(t, version)
	// 3. GPU pods run, and are made. What the operator would restore is not.
	classes := i.Client().ResourceV1().DeviceClasses()
	all, err := classes.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=berth"})
	if err != nil || len(all.Items) == 0 {
		t.Fatalf("DeviceClasses: %v, %v", all, err)
	}
	class := all.Items[0].Name
	if err := classes.Delete(ctx, class, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := podWithGPUs("downgraded", 1)
	startPod(t, i.Cluster, pod)
	first, err := i.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "first", metav1.GetOptions{})
	if err != nil || first.Status.Phase != corev1.PodRunning || restarts(first) != 0 {
		t.Errorf("the GPU pod that ran is %s after %d restarts, %v", first.Status.Phase, restarts(first), err)
	}
	if _, err := classes.Get(ctx, class, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DeviceClass that was deleted: %v; want none while the operator refuses to run", err)
	}
	now, err := client.Resource(definitions()).Get(ctx, newerDefinition, metav1.GetOptions{})
	if err != nil || now.GetResourceVersion() != newer.GetResourceVersion() {
		t.Errorf("the newer definition was changed: from %s to %s, %v", newer.GetResourceVersion(), now.GetResourceVersion(), err)
	}
	// 4. With the version that the operator knows it acts again.
	set(version)
	began := time.Now()
	waitUntil(t, backLimit, "the operator makes the DeviceClass "+class, func(ctx context.Context) error {
		_, err := classes.Get(ctx, class, metav1.GetOptions{})
		return err
	})
	t.Logf("the operator acted again %.1f s after the definition had the version that it knows", time.Since(began).Seconds())
	stop()
	if err := i.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil {
		t.Fatal(err)
	}
}

// saysNewer returns an error unless a text names the definition, both versions and the ways to go on.
func saysNewer(text, version string) error {
	var missing []string
	for _, part := range []string{newerDefinition, "has schema version " + newerVersion, "this berth-operator has version " + version, "Nothing was changed",
		"Fix: ", "helm upgrade", "helm rollback", "kubectl delete customresourcedefinition " + newerDefinition} {
		if !strings.Contains(text, part) {
			missing = append(missing, part)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("it lacks %q: %s", missing, text)
	}
	return nil
}

// waitRefused waits until the pod of the operator, which is not the one named before, says that it refuses to run. It returns its name.
func (i *installed) waitRefused(t *testing.T, before, version string) (name string) {
	t.Helper()
	waitUntil(t, 30*time.Second, "the operator refuses to run", func(ctx context.Context) error {
		pods, err := i.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-operator"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Name == before || len(pods.Items[0].Status.ContainerStatuses) != 1 {
			return errors.Join(err, fmt.Errorf("it has %d pods", len(pods.Items)))
		}
		name = pods.Items[0].Name
		status := pods.Items[0].Status.ContainerStatuses[0]
		message := ""
		for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
			if ended != nil {
				message += ended.Message
			}
		}
		return saysNewer(message, version)
	})
	return name
}

// waitStatus waits until berth status says that the operator refuses to run.
func (i *installed) waitStatus(t *testing.T, version string) {
	t.Helper()
	waitUntil(t, 10*time.Second, "berth status says that the operator refuses to run", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, filepath.Join(i.State().Bin, "berth"), "status", "--kubeconfig", i.KubeconfigPath()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		_, note, _ := strings.Cut(string(out), "note: berth-operator: pod "+agentNamespace+"/")
		return saysNewer(note, version)
	})
}
