package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// Namespaces of the test: one for dry runs, one that enforces the Pod Security level restricted.
const (
	dryRunNamespace     = "rendered"
	restrictedNamespace = "restricted"
)

// prepareRenderings makes what the renderings need beside Berth: namespaces, and the definitions of the Prometheus operator, without a
// schema.
func prepareRenderings(t *testing.T, c *sandbox.Cluster) {
	t.Helper()
	ctx := timeout(t, 30*time.Second)
	for _, namespace := range []string{dryRunNamespace, restrictedNamespace, "gpu-operator"} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if namespace == restrictedNamespace {
			object.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
		}
		if _, err := c.Client().CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for kind, plural := range map[string]string{"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"} {
		text := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.monitoring.coreos.com"},
			"spec":{"group":"monitoring.coreos.com","scope":"Namespaced","names":{"kind":%[1]q,"plural":%[2]q,"singular":%[3]q},"versions":[{"name":"v1","served":true,
			"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, kind, plural, strings.ToLower(kind))
		if err := c.ApplyObjects(ctx, decode(t, text)...); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, 20*time.Second, "the namespaces have their accounts", func(ctx context.Context) error {
		_, err := c.Client().CoreV1().ServiceAccounts(restrictedNamespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// decode returns the objects of a text in YAML or JSON.
func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			objects = append(objects, &o)
		}
	}
}

// testRenderings sends what the chart renders of each values file to the API server, which checks it and keeps nothing. The pods of all but
// the agent and the MPS supervisor have to be admitted by the Pod Security level restricted.
func testRenderings(t *testing.T, i *installed) {
	files, err := filepath.Glob(repository("charts", "testdata", "golden", "*.values.yaml"))
	if err != nil || len(files) < 12 {
		t.Fatalf("%d values files, %v", len(files), err)
	}
	objects, pods := 0, 0
	for _, file := range files {
		ctx := timeout(t, time.Minute)
		text, err := i.Helm(ctx, nil, "template", "berth", i.ChartArchive(), "--namespace", dryRunNamespace, "--values", file)
		if err != nil {
			t.Fatal(err)
		}
		all := decode(t, text)
		objects += len(all)
		if err := i.DryRun(ctx, all...); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
		for _, o := range all {
			if o.GetKind() == "Deployment" {
				pods++
				if err := admitted(ctx, i.Cluster, o); err != nil {
					t.Errorf("%s: a pod of %s in a restricted namespace: %v", filepath.Base(file), o.GetName(), err)
				}
			}
		}
	}
	t.Logf("the API server accepts %d objects of %d renderings, and %d pods in a restricted namespace", objects, len(files), pods)
	if pods < len(files) {
		t.Errorf("%d pods were tried in a restricted namespace", pods)
	}
}

// admitted tries to create a pod of a Deployment in the namespace that enforces the level restricted.
func admitted(ctx context.Context, c *sandbox.Cluster, object *unstructured.Unstructured) error {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name = "restricted"
	// The account is of another namespace, and the class of a release that is not installed. The level looks at neither.
	pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName = "default", ""
	_, err := c.Client().CoreV1().Pods(restrictedNamespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// testRestrictedRefuses proves that the namespace of testRenderings refuses what is not restricted.
func testRestrictedRefuses(t *testing.T, i *installed) {
	text, err := i.Helm(timeout(t, time.Minute), nil, "template", "berth", i.ChartArchive(), "--namespace", dryRunNamespace)
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, text)
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetName() == "berth-agent" && o.GetKind() == "DaemonSet"
	})
	if err := admitted(t.Context(), i.Cluster, objects[at]); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("the agent in a restricted namespace: %v", err)
	}
}
