package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/hack/images/image"
	"github.com/berth-gpu/berth/hack/images/program"
)

// testFromPrevious installs the last release, and upgrades it to this version with the values that it was installed with. No pod is
// restarted, and no device is missing for a moment. With BERTH_SOAK=1 it goes back too. The release is removed again.
func testFromPrevious(t *testing.T, i *installed) {
	built := filepath.Join(i.State().Bin, "previous")
	archive := filepath.Join(built, "berth-0.0.0-previous.tgz")
	if _, err := os.Stat(archive); err != nil {
		if ci := os.Getenv("CI"); ci != "" && ci != "false" { // As in hack/lib.sh.
			t.Fatalf("the last release is not built: %v", err)
		}
		t.Skipf("SKIPPED: the upgrade from the last release: it is not built, since Git does not have its commit (hack/previous-version): %v", err)
	}
	ctx := timeout(t, 4*time.Minute)
	i.importPrevious(t, built)
	// As for a downgrade: definitions of this version may be newer than those of the last release.
	i.deleteDefinitions(t)
	if _, err := i.Helm(ctx, i.MachineValues(), "install", "berth", archive, "--namespace", agentNamespace, "--values", "-", "--wait", "--timeout", "1m"); err != nil {
		t.Fatal(err)
	}
	i.waitVersion(t, true)
	move := func(what string, back bool, args ...string) {
		t.Helper()
		before, err := i.berthPods(ctx)
		if err != nil || len(before) != len(i.Nodes())+1 {
			t.Fatalf("the pods are %v, %v; want the agents and the operator", before, err)
		}
		for _, node := range i.Nodes() {
			i.waitFull(t, node) // Also after the pod of the move before.
		}
		stop, began := i.sampleFull(t), time.Now()
		if _, err := i.Helm(ctx, nil, args...); err != nil {
			t.Fatal(err)
		}
		i.waitVersion(t, back)
		t.Logf("%s took %.1f s", what, time.Since(began).Seconds())
		first, err := i.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "first", metav1.GetOptions{})
		if err != nil || first.Status.Phase != corev1.PodRunning || restarts(first) != 0 {
			t.Errorf("%s: the GPU pod that ran is %s after %d restarts, %v", what, first.Status.Phase, restarts(first), err)
		}
		pod := podWithGPUs("moved", 1)
		startPod(t, i.Cluster, pod)
		stop()
		if err := i.DeletePodAndWait(ctx, pod.Namespace, pod.Name, 0); err != nil {
			t.Fatal(err)
		}
	}
	move("the upgrade", false, "upgrade", "berth", i.ChartArchive(), "--namespace", agentNamespace, "--reuse-values", "--wait", "--timeout", "2m")
	if os.Getenv(envSoak) != "" {
		// Without --wait: an operator does not run beside newer definitions.
		move("the way back", true, "rollback", "berth", "--namespace", agentNamespace)
	}
	if _, err := i.Helm(ctx, nil, "uninstall", "berth", "--namespace", agentNamespace, "--wait"); err != nil {
		t.Fatal(err)
	}
}

// importPrevious imports the images of the last release into the nodes.
func (i *installed) importPrevious(t *testing.T, built string) {
	t.Helper()
	for _, p := range program.All() {
		if !slices.Contains([]string{"berth-agent", "berth-operator"}, p.Name) {
			continue
		}
		spec, err := p.Spec(built)
		if err != nil {
			t.Fatal(err)
		}
		img, err := image.Make("berth.dev/"+p.Name+":previous", spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := i.ImportImage(timeout(t, time.Minute), img); err != nil {
			t.Fatal(err)
		}
	}
}

// deleteDefinitions deletes Berth's definitions with their objects.
func (i *installed) deleteDefinitions(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(i.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	all, err := client.Resource(definitions()).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=berth"})
	if err != nil || len(all.Items) == 0 {
		t.Fatalf("definitions: %v, %v", all, err)
	}
	for j := range all.Items {
		name := all.Items[j].GetName()
		if err := client.Resource(definitions()).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, 30*time.Second, "the definition "+name+" is deleted", func(ctx context.Context) error {
			_, err := client.Resource(definitions()).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	}
}

// waitVersion waits until the agent of the last release, or that of this version, is alone on each node and offers all its GPUs.
func (i *installed) waitVersion(t *testing.T, previous bool) {
	t.Helper()
	client, err := dynamic.NewForConfig(i.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{installed: i, api: client}
	for _, node := range i.Nodes() {
		waitUntil(t, 90*time.Second, "the new agent of "+node.Name()+" is alone", func(ctx context.Context) error {
			object, err := g.gpuNode(ctx, node.Name())
			if err != nil {
				return err
			}
			agents, err := i.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{
				LabelSelector: "app.kubernetes.io/name=berth-agent", FieldSelector: "spec.nodeName=" + node.Name()})
			if err != nil || len(agents.Items) != 1 || (object.Status.AgentVersion == "previous") != previous {
				return errors.Join(err, fmt.Errorf("the GPUNode is of the version %q, and the node has %d pods of the agent", object.Status.AgentVersion, len(agents.Items)))
			}
			return nil
		})
		i.waitFull(t, node)
	}
}
