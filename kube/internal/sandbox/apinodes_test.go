package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func TestAPINodesOption(t *testing.T) {
	for n, ok := range map[int]bool{-1: false, 0: true, 1000: true, maxAPINodes: true, maxAPINodes + 1: false} {
		o := Options{Dir: t.TempDir(), Bin: t.TempDir(), APINodes: n}
		if err := o.complete(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--api-nodes") {
			t.Errorf("%d API nodes: %v, want accepted: %v", n, err, ok)
		}
	}
	if err := checkBinaries(Options{Bin: t.TempDir(), APINodes: 1}); err == nil || !strings.Contains(err.Error(), "/kwok is missing") {
		t.Errorf("without kwok: %v", err)
	}
}

// TestAPINodeObjects: a Node and its GPUNode agree, and the agents' affinity leaves the Node out.
func TestAPINodeObjects(t *testing.T) {
	name := apiNodeName(7)
	node, gpuNode := apiNode(name, plainMachine().gpus()), apiGPUNode(name, plainMachine())
	if name != "api-node-0007" || node.Name != name || gpuNode.Name != name {
		t.Errorf("the names are %s, %s, %s", name, node.Name, gpuNode.Name)
	}
	if got := node.Status.Allocatable[apiNodeResource]; int(got.Value()) != len(gpuNode.Status.Devices) {
		t.Errorf("%v allocatable of %d GPUs", got.Value(), len(gpuNode.Status.Devices))
	}
	gate := gpuNode.Status.Gate
	if gate.State != v1alpha1.GateHeld || gate.Key == "" || !gate.Tainted || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != gate.TaintKey {
		t.Errorf("the gate is %+v, and the taints are %v", gate, node.Spec.Taints)
	}
	terms, _, err := unstructured.NestedSlice(realNodesOnly(), "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if want := "[map[matchExpressions:[map[key:type operator:NotIn values:[kwok]]]]]"; err != nil || fmt.Sprint(terms) != want || node.Labels["type"] != "kwok" {
		t.Errorf("the affinity is %v (%v), and the labels are %v", terms, err, node.Labels)
	}
}

// TestKwokConfig: the file has stages of both kinds, and that of validation pods is for the operator's label.
func TestKwokConfig(t *testing.T) {
	objects, err := decodeStages()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kind, _, _ := unstructured.NestedString(o, "spec", "resourceRef", "kind")
		kinds[kind]++
		if label, _, _ := unstructured.NestedString(o, "spec", "selector", "matchLabels", v1alpha1.ValidationLabel); label == "node" {
			kinds["validation"]++
		}
	}
	if want := map[string]int{"": 1, "Node": 1, "Pod": 4, "validation": 1}; fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("the documents are %v, want %v", kinds, want)
	}
}

func decodeStages() ([]map[string]any, error) {
	// decodeObjects wants names, which a KwokConfiguration has none of.
	head, stages, _ := bytes.Cut(kwokConfig, []byte("\n---\n"))
	objects, err := decodeObjects(bytes.NewReader(stages))
	all := []map[string]any{{"head": string(head)}}
	for _, o := range objects {
		all = append(all, o.Object)
	}
	return all, err
}

func TestWrites(t *testing.T) {
	c := &Cluster{dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(c.dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := func(at, account, verb, resource string) string {
		return fmt.Sprintf(`{"stageTimestamp":%q,"user":{"username":"system:serviceaccount:berth-system:%s"},"verb":%q,"requestURI":"/%s","objectRef":{"resource":%q}}`+"\n",
			at, account, verb, resource, resource)
	}
	const early, late = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:01:00.000000Z"
	text := line(early, "berth-operator", "create", "pods") + line(late, "berth-operator", "patch", "gpustacks") + line(late, "berth-operator", "update", "leases") +
		line(late, "berth-operator", "watch", "pods") + line(late, "berth-agent", "patch", "gpunodes") + line(late, "berth-operator", "delete", "pods")
	if err := os.WriteFile(c.auditLog(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := c.Writes("berth-operator", time.Date(2026, 1, 1, 0, 0, 30, 0, time.UTC))
	if want := []string{"patch /gpustacks", "delete /pods"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
