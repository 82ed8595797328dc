package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// everything returns what an installation could leave: the objects of the API server, labels, taints, conditions and annotations of the
// Nodes, and the files on the nodes.
func (i *installed) everything(t *testing.T) map[string]bool {
	t.Helper()
	all := i.objects(t)
	nodes, err := i.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for j := range nodes.Items {
		node := &nodes.Items[j]
		for key, value := range node.Labels {
			all[fmt.Sprintf("label %s: %s=%s", node.Name, key, value)] = true
		}
		for key := range node.Annotations {
			all[fmt.Sprintf("annotation %s: %s", node.Name, key)] = true
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
				continue // Of a kubelet that has no time on a busy machine.
			}
			all[fmt.Sprintf("taint %s: %s", node.Name, taint.ToString())] = true
		}
		for _, condition := range node.Status.Conditions {
			all[fmt.Sprintf("condition %s: %s", node.Name, condition.Type)] = true
		}
	}
	for _, node := range i.Nodes() {
		for _, file := range filesOf(t, node) {
			all["file "+node.Name()+": "+file] = true
		}
	}
	return all
}

// filesOf lists the files and folders below the directories of a node that Berth writes to.
func filesOf(t *testing.T, node sandbox.Node) []string {
	t.Helper()
	var files []string
	for _, dir := range []string{"run/berth", "var/lib/berth", "opt/berth", "var/run/cdi", "etc/cdi", "var/lib/kubelet/device-plugins", "var/lib/kubelet/plugins", "var/lib/kubelet/plugins_registry"} {
		top := filepath.Join(node.Root(), dir)
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if path != top && err == nil {
				files = append(files, strings.TrimPrefix(path, node.Root()))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// testRemoval removes Berth before or after helm uninstall, and compares everything with what there was before.
func testRemoval(t *testing.T, i *installed, before map[string]bool, afterHelm bool) {
	ctx := timeout(t, 3*time.Minute)
	helm := func() {
		t.Helper()
		if _, err := i.Helm(ctx, nil, "uninstall", "berth", "--namespace", agentNamespace, "--wait"); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	out, err := exec.CommandContext(ctx, filepath.Join(i.State().Bin, "berth"), "uninstall", "--all", "--yes", "--kubeconfig", i.KubeconfigPath()).CombinedOutput()
	if err != nil {
		t.Fatalf("berth uninstall --all: %v\n%s", err, out)
	}
	t.Logf("berth uninstall --all took %.1f s:\n%s", time.Since(began).Seconds(), out)
	if !afterHelm {
		helm()
	}
	waitUntil(t, time.Minute, "everything is as before", func(context.Context) error {
		var left []string
		for _, name := range more(before, i.everything(t)) {
			if !ofUsers(name) {
				left = append(left, name)
			}
		}
		if gone := more(i.everything(t), before); len(left)+len(gone) > 0 {
			return fmt.Errorf("left: %v; gone: %v", left, gone)
		}
		return nil
	})
	if err := i.Client().CoreV1().Namespaces().Delete(ctx, agentNamespace, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// ofUsers reports whether something is left because users made it: the namespace, which Helm does not remove, and the tests' own pod; or
// because the kubelet keeps it.
func ofUsers(name string) bool {
	return slices.Contains([]string{"ConfigMap " + agentNamespace + "/kube-root-ca.crt", "Namespace /" + agentNamespace, "Pod default/first",
		"ServiceAccount " + agentNamespace + "/default"}, name) || strings.HasSuffix(name, "/kubelet_internal_checkpoint") ||
		strings.HasPrefix(name, "PodTemplate ") || strings.HasPrefix(name, "ControllerRevision ")
}
