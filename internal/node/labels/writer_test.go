package labels

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster is an API server in memory with managed fields and a Node node-0, which has a label of another program. It
// records each request.
type cluster struct {
	t      *testing.T
	client *dynamicfake.FakeDynamicClient
	// refuse is the response to every request but reads, if it is set.
	refuse error
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	kinds := runtime.NewScheme()
	for _, gv := range []schema.GroupVersion{{Version: "v1"}, {Group: nodeFeatureGroup, Version: "v1alpha1"}} {
		kind := map[string]string{"": "Node", nodeFeatureGroup: "NodeFeature"}[gv.Group]
		kinds.AddKnownTypeWithName(gv.WithKind(kind), &unstructured.Unstructured{})
		kinds.AddKnownTypeWithName(gv.WithKind(kind+"List"), &unstructured.UnstructuredList{})
		metav1.AddToGroupVersion(kinds, gv)
	}
	c := &cluster{t: t, client: dynamicfake.NewSimpleDynamicClient(kinds)}
	tracker := clienttesting.NewFieldManagedObjectTracker(kinds, unstructured.UnstructuredJSONScheme, managedfields.NewDeducedTypeConverter())
	c.client.PrependReactor("*", "*", clienttesting.ObjectReaction(tracker))
	c.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return c.refuse != nil && action.GetVerb() != "get", nil, c.refuse
	})
	c.addNode("uid-1")
	return c
}

func (c *cluster) nodes() dynamic.ResourceInterface {
	return c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
}

func (c *cluster) nodeFeatures() dynamic.ResourceInterface {
	return c.client.Resource(schema.GroupVersionResource{Group: nodeFeatureGroup, Version: "v1alpha1", Resource: "nodefeatures"}).Namespace("berth-system")
}

func (c *cluster) addNode(uid types.UID) {
	c.t.Helper()
	node := &unstructured.Unstructured{}
	node.SetAPIVersion("v1")
	node.SetKind("Node")
	node.SetName("node-0")
	node.SetUID(uid)
	node.SetLabels(map[string]string{"zone": "a"})
	if _, err := c.nodes().Create(c.t.Context(), node, metav1.CreateOptions{FieldManager: "kubelet"}); err != nil {
		c.t.Fatal(err)
	}
}

// labels returns all labels of the Node.
func (c *cluster) labels() Labels {
	c.t.Helper()
	node, err := c.nodes().Get(c.t.Context(), "node-0", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return node.GetLabels()
}

// patch changes labels of the Node as kubectl does.
func (c *cluster) patch(patch string) {
	c.t.Helper()
	if _, err := c.nodes().Patch(c.t.Context(), "node-0", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) writer(output Output) Writer {
	return newWriter(c.t, output, Places{Client: c.client, NodeName: "node-0", Namespace: "berth-system"})
}

func newWriter(t *testing.T, output Output, places Places) Writer {
	t.Helper()
	w, err := NewWriter(output, places)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func write(t *testing.T, w Writer, labels Labels) {
	t.Helper()
	if err := w.Write(t.Context(), labels); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, what string, got, want Labels) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestWriters checks that each place has what was written last, also for a new process, and nothing after Remove.
func TestWriters(t *testing.T) {
	for _, output := range []Output{OutputNode, OutputFile, OutputNodeFeature} {
		t.Run(string(output), func(t *testing.T) {
			c := newCluster(t)
			places := Places{Client: c.client, NodeName: "node-0", Namespace: "berth-system", Dir: filepath.Join(t.TempDir(), "features.d")}
			again := func() Writer { return newWriter(t, output, places) }
			read := func() Labels {
				t.Helper()
				labels, err := again().Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return labels
			}
			if err := again().Remove(t.Context()); err != nil {
				t.Errorf("Remove of nothing: %v", err)
			}
			same(t, "before", read(), nil)
			for _, labels := range []Labels{
				{"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver.rev": "", "berth.dev/gpu.healthy": "8"},
				{"nvidia.com/gpu.count": "7", "berth.dev/gpu.healthy": "7", "nvidia.com/gpu.product": "A"},
				{},
				{"nvidia.com/gpu.count": "1"},
			} {
				write(t, again(), labels)
				same(t, "written", read(), labels)
			}
			for range 2 {
				if err := again().Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			same(t, "after", read(), nil)
			same(t, "the Node", c.labels(), Labels{"zone": "a"})
		})
	}
}

func TestNodeWriterLeavesOthersAlone(t *testing.T) {
	c := newCluster(t)
	w := c.writer(OutputNode)
	c.patch(`{"metadata":{"labels":{"nvidia.com/gpu.present":"true","nvidia.com/gpu.count":"99"}}}`)
	write(t, w, Labels{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "A"})
	same(t, "written", c.labels(), Labels{"zone": "a", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "A"})

	// A label that was changed by another program is not the agent's, and is corrected with the next write.
	c.patch(`{"metadata":{"labels":{"nvidia.com/gpu.product":"B"}}}`)
	got, err := w.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "read", got, Labels{"nvidia.com/gpu.count": "8"})
	write(t, w, Labels{"nvidia.com/gpu.product": "A"})
	same(t, "written again", c.labels(), Labels{"zone": "a", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "A"})
	if err := w.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "removed", c.labels(), Labels{"zone": "a", "nvidia.com/gpu.present": "true"})
}

// TestNodeWriterMakesNoNode checks that a write of labels does not create a Node again that was deleted, because the
// write names the UID of the Node.
func TestNodeWriterMakesNoNode(t *testing.T) {
	c := newCluster(t)
	w := c.writer(OutputNode)
	write(t, w, Labels{"nvidia.com/gpu.count": "8"})
	var applied struct{ fields, body string }
	for _, action := range c.client.Actions() {
		if patch, ok := action.(clienttesting.PatchActionImpl); ok {
			applied.fields, applied.body = patch.PatchOptions.FieldManager, string(patch.Patch)
		}
	}
	if applied.fields != fieldManager || !strings.Contains(applied.body, `"uid":"uid-1"`) {
		t.Errorf("applied %+v; want the field manager %s and the UID", applied, fieldManager)
	}
	if err := c.nodes().Delete(t.Context(), "node-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), Labels{"nvidia.com/gpu.count": "8"}); !apierrors.IsNotFound(err) {
		t.Errorf("Write: %v; want an error that there is no Node", err)
	}
	if err := w.Remove(t.Context()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if _, err := c.nodes().Get(t.Context(), "node-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Node was created: %v", err)
	}
}

func TestNodeFeature(t *testing.T) {
	c := newCluster(t)
	foreign := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"labels": map[string]any{"nvidia.com/gpu.count": "4", "nvidia.com/old": "1"}}}}
	foreign.SetAPIVersion(nodeFeatureGroup + "/v1alpha1")
	foreign.SetKind("NodeFeature")
	foreign.SetName("nvidia-features-for-node-0")
	foreign.SetLabels(map[string]string{nodeNameLabel: "node-0"})
	foreign.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gfd", UID: "x"}})
	if _, err := c.nodeFeatures().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := c.writer(OutputNodeFeature)
	got, err := w.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "what another program wrote", got, nil)
	write(t, w, Labels{"nvidia.com/gpu.count": "8"})
	object, err := c.nodeFeatures().Get(t.Context(), "nvidia-features-for-node-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.SetManagedFields(nil)
	want := map[string]any{
		"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
		"metadata": map[string]any{
			"name": "nvidia-features-for-node-0", "namespace": "berth-system", "labels": map[string]any{"nfd.node.kubernetes.io/node-name": "node-0"},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "uid-1"}},
		},
		"spec": map[string]any{
			"features": map[string]any{"attributes": map[string]any{}, "flags": map[string]any{}, "instances": map[string]any{}},
			"labels":   map[string]any{"nvidia.com/gpu.count": "8"},
		},
	}
	if diff := cmp.Diff(want, object.Object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// The object of a Node that was created again is no longer correct.
	if err := c.nodes().Delete(t.Context(), "node-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.addNode("uid-2")
	if got, err = w.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "of the old Node", got, nil)
}

func TestFileWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "features.d")
	w := newWriter(t, OutputFile, Places{Dir: dir})
	umask := syscall.Umask(0o077)
	write(t, w, Labels{"b": "2", "a": ""})
	syscall.Umask(umask)
	path := filepath.Join(dir, fileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(content) != "a=\nb=2\n" {
		t.Errorf("content %q", content)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o644 {
		t.Errorf("mode %v; want 0644 whatever the umask", info.Mode())
	}
	// A write that was killed leaves a hidden file, and other programs have files here too.
	for _, name := range []string{"." + fileName + "123", "." + fileName + "-mine", "gfd"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x=y\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if diff := cmp.Diff([]string{"." + fileName + "-mine", "gfd"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestErrorsSayTheFix checks that errors contain the fix.
func TestErrorsSayTheFix(t *testing.T) {
	nodeFeatures := schema.GroupResource{Group: nodeFeatureGroup, Resource: "nodefeatures"}
	forbidden := apierrors.NewForbidden(nodeFeatures, "node-0", errors.New("no role"))
	for name, test := range map[string]struct {
		output Output
		refuse error
		want   string
	}{
		"node":                      {OutputNode, forbidden, "get and patch on nodes"},
		"node feature":              {OutputNodeFeature, forbidden, "on nodefeatures.nfd.k8s-sigs.io"},
		"no Node Feature Discovery": {OutputNodeFeature, apierrors.NewNotFound(nodeFeatures, ""), "install Node Feature Discovery"},
		"another trouble":           {OutputNode, errors.New("the line is dead"), "write the labels of Node node-0: the line is dead"},
		"another error, as feature": {OutputNodeFeature, errors.New("the line is dead"), "write NodeFeature berth-system/nvidia-features-for-node-0: the line is dead"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.refuse = test.refuse
			w := c.writer(test.output)
			err := w.Write(context.Background(), Labels{"a": "b"})
			if err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, test.refuse) {
				t.Errorf("got %v; want %q", err, test.want)
			}
		})
	}
	full := Places{Client: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), NodeName: "node-0"}
	for name, test := range map[string]struct {
		output Output
		places Places
		want   string
	}{
		"unknown":      {"stone", full, `"stone" is unknown; choose node, file or nodeFeature`},
		"no client":    {OutputNode, Places{NodeName: "node-0"}, "no connection to an API server"},
		"no node":      {OutputNodeFeature, Places{Client: full.Client}, "set NODE_NAME"},
		"no namespace": {OutputNodeFeature, full, "set NAMESPACE"},
	} {
		if _, err := NewWriter(test.output, test.places); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v; want %q", name, err, test.want)
		}
	}
	if _, err := NewWriter(OutputNode, full); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := newWriter(t, OutputFile, Places{Dir: file})
	if err := broken.Write(t.Context(), Labels{}); err == nil || !strings.Contains(err.Error(), "write file "+file) {
		t.Errorf("a folder that is a file: %v", err)
	}
	if place := newWriter(t, OutputFile, Places{}).Place(); place != "file "+DefaultDir+"/"+fileName {
		t.Errorf("the default place is %s", place)
	}
}
