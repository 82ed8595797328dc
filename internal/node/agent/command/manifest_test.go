package command

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
)

// rendered reads the objects of a kind from the chart with every option, which a test of the chart keeps equal to what Helm renders.
func rendered[T any](t *testing.T, kind string) []T {
	t.Helper()
	const file = "everything.yaml"
	f, err := os.Open(filepath.Join("..", "..", "..", "..", "charts", "testdata", "golden", file))
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

// TestBerthToleratesItsOwnTaint: with taintUnhealthy an agent taints its own Node. The pods of the agent,
// which also removes the taint, and of the MPS supervisor must tolerate it, whatever its effect.
func TestBerthToleratesItsOwnTaint(t *testing.T) {
	sets := rendered[appsv1.DaemonSet](t, "DaemonSet")
	if len(sets) != 2 {
		t.Fatalf("the chart has %d DaemonSets, want those of the agent and the MPS supervisor", len(sets))
	}
	for _, set := range sets {
		spec := set.Spec.Template.Spec
		for _, taint := range []corev1.Taint{
			{Key: nodeapi.TaintUnhealthy, Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: nodeapi.TaintUnhealthy, Value: "true", Effect: corev1.TaintEffectNoExecute},
			{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
		} {
			tolerated := slices.ContainsFunc(spec.Tolerations, func(x corev1.Toleration) bool {
				return (x.Key == taint.Key || x.Key == "") && (x.Effect == "" || x.Effect == taint.Effect) && x.Operator == corev1.TolerationOpExists
			})
			if !tolerated {
				t.Errorf("%s does not tolerate %s:%s", set.Name, taint.Key, taint.Effect)
			}
		}
	}
}

// quoted matches the strings of a list in an expression.
var quoted = regexp.MustCompile(`'([^']*)'`)

// TestPolicyAllowsTheAgentsLabels compares the labels that the policy lets an agent write with those of docs/labels.md,
// which another test compares with the code; and with those that the agent reads, which it may not write.
func TestPolicyAllowsTheAgentsLabels(t *testing.T) {
	lists := map[string][]string{}
	for _, policy := range rendered[admissionv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		if policy.Name != "berth-agent-node" {
			continue
		}
		for _, variable := range policy.Spec.Variables {
			for _, match := range quoted.FindAllStringSubmatch(variable.Expression, -1) {
				lists[variable.Name] = append(lists[variable.Name], match[1])
			}
		}
	}
	allowed := func(label string) bool {
		return slices.Contains(lists["ownLabels"], label) ||
			slices.ContainsFunc(lists["ownLabelPrefixes"], func(p string) bool { return strings.HasPrefix(label, p) })
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "labels.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := []string{configwatch.LabelMIGState}
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+/[^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, strings.NewReplacer("<profile>", "1g.10gb", "<model>", "Tesla-T4").Replace(match[1]))
	}
	if len(documented) < 60 {
		t.Fatalf("docs/labels.md has only %d labels", len(documented))
	}
	for _, label := range documented {
		if !allowed(label) {
			t.Errorf("the policy forbids %s, which the agent writes", label)
		}
	}
	for _, label := range lists["ownLabels"] {
		if !slices.Contains(documented, label) {
			t.Errorf("the policy allows %s, which the agent does not write", label)
		}
	}
	for _, label := range []string{
		configwatch.LabelConfig, configwatch.LabelNVIDIAConfig, configwatch.LabelMIG, "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.operands",
		"kubernetes.io/hostname", "node-role.kubernetes.io/control-plane", "topology.kubernetes.io/zone", "nvidia.com/gpu", "berth.dev/anything",
	} {
		if allowed(label) {
			t.Errorf("the policy allows %s, which the agent must not write", label)
		}
	}
}

// TestManifestKeepsWhatOutlivesAReboot checks that the folder that must survive a reboot is one of the host, outside
// /run, which a reboot empties, and that the state that a reboot invalidates is in /run.
func TestManifestKeepsWhatOutlivesAReboot(t *testing.T) {
	sets := rendered[appsv1.DaemonSet](t, "DaemonSet")
	spec := sets[slices.IndexFunc(sets, func(set appsv1.DaemonSet) bool { return set.Name == "berth-agent" })].Spec.Template.Spec
	on := func(dir string) string {
		for _, mount := range spec.Containers[0].VolumeMounts {
			for _, volume := range spec.Volumes {
				if mount.MountPath == dir && volume.Name == mount.Name && volume.HostPath != nil && !mount.ReadOnly {
					return volume.HostPath.Path
				}
			}
		}
		return ""
	}
	if got := on(config.DefaultPersistentDir); got != config.DefaultPersistentDir || strings.HasPrefix(got, "/run/") {
		t.Errorf("%s is the host's %q", config.DefaultPersistentDir, got)
	}
	if got := on(config.DefaultStateDir); got != config.DefaultStateDir || !strings.HasPrefix(got, "/run/") {
		t.Errorf("%s is the host's %q", config.DefaultStateDir, got)
	}
}
