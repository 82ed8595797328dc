package agent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// manifest reads the objects of a kind from a file of deploy/.
func manifest[T any](t *testing.T, file, kind string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []T
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		var o unstructured.Unstructured
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if o.GetKind() != kind {
			continue
		}
		var object T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &object, true); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found = append(found, object)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %s", file, kind)
	}
	return found
}

// TestTheOwnTaintKeepsNoProgramOfBerthAway: with taintUnhealthy an agent taints its own Node. Neither the agent, which takes the
// taint off again, nor the MPS supervisor may be kept away by it, whatever its effect.
func TestTheOwnTaintKeepsNoProgramOfBerthAway(t *testing.T) {
	for _, file := range []string{"agent.yaml", "mps.yaml"} {
		spec := manifest[appsv1.DaemonSet](t, file, "DaemonSet")[0].Spec.Template.Spec
		for _, taint := range []corev1.Taint{
			{Key: taintUnhealthy, Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: taintUnhealthy, Value: "true", Effect: corev1.TaintEffectNoExecute},
			{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
		} {
			tolerated := slices.ContainsFunc(spec.Tolerations, func(x corev1.Toleration) bool {
				return (x.Key == taint.Key || x.Key == "") && (x.Effect == "" || x.Effect == taint.Effect) && x.Operator == corev1.TolerationOpExists
			})
			if !tolerated {
				t.Errorf("deploy/%s does not tolerate %s:%s", file, taint.Key, taint.Effect)
			}
		}
	}
}

