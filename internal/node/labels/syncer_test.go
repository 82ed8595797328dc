package labels_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia/gpulabels"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	count    = "nvidia.com/gpu.count"
	strategy = "nvidia.com/mig.strategy"
)

// world has the inputs of the labels, and an API server.
type world struct {
	*fakeapi.Server
	config   v1alpha1.AgentConfig
	snapshot gpu.Snapshot
	facts    labels.SyncFacts
	hardware signal.Broadcast
	settings signal.Broadcast
	outcome  error
}

func newWorld(t *testing.T) *world {
	w := &world{Server: fakeapi.New(t)}
	w.config.NodeName, w.config.Labels.Output, w.config.Labels.Dir = fakeapi.NodeName, v1alpha1.LabelsNode, filepath.Join(t.TempDir(),
		"features.d")
	w.facts.ResourceName, w.facts.MIGStrategy = "nvidia.com/gpu", "none"
	w.setGPUs(2)
	return w
}

func (w *world) setGPUs(n int) {
	w.snapshot = gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.1"}}}}
	for i := range n {
		w.snapshot.GPUs = append(w.snapshot.GPUs, gpu.GPU{Vendor: gpu.NVIDIA, UUID: gpu.UUID(rune('a' + i)), Index: i,
			Product: "NVIDIA T4"})
	}
}

// start runs an actor until the test ends.
func (w *world) start(t *testing.T) {
	t.Helper()
	places, err := labels.OutputsOf(&w.config, w)
	if err != nil {
		t.Fatal(err)
	}
	s := labels.NewSyncer(labels.SyncerDeps{
		Outputs: places, Hardware: func() *gpu.Snapshot { return &w.snapshot }, Facts: func() labels.SyncFacts { return w.facts },
		Changed: []func() *signal.Subscription{w.hardware.Subscribe, w.settings.Subscribe},
		Vendors: []labels.Vendor{gpulabels.Vendor{}},
		Sys:     t.TempDir(), Report: func(err error) { w.outcome = err },
		Retry: nodeapi.Retry{Clock: clock.RealClock{}, NodeName: fakeapi.NodeName}, Log: slog.New(slog.DiscardHandler),
	})
	go s.Run(t.Context())
	time.Sleep(100 * time.Millisecond) // Changes within a moment are computed once.
	synctest.Wait()
}

// expect checks the Node's labels and how often they were written since the last call.
func (w *world) expect(t *testing.T, when string, writes int, want map[string]string) {
	t.Helper()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	if got := w.Writes("nodes"); got != writes {
		t.Errorf("%s: %d writes, want %d", when, got, writes)
	}
	for key, value := range want {
		if got := w.Node().GetLabels()[key]; got != value {
			t.Errorf("%s: label %s is %q, want %q", when, key, got, value)
		}
	}
	w.ClearActions()
}

// TestLabelsFollow counts: one change leads to one write, and no change to none.
func TestLabelsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.ClearActions()
		w.start(t)
		w.expect(t, "at the start", 1, map[string]string{count: "2", "zone": "a"})
		w.hardware.Set()
		w.settings.Set()
		w.expect(t, "with nothing changed", 0, map[string]string{count: "2"})
		w.setGPUs(3)
		w.hardware.Set()
		w.expect(t, "another GPU", 1, map[string]string{count: "3"})
		w.facts.MIGStrategy = "mixed"
		w.settings.Set()
		w.expect(t, "another configuration", 1, map[string]string{strategy: "mixed"})

		w.facts.Changing = true
		w.setGPUs(1)
		w.hardware.Set()
		w.expect(t, "while a GPU is repartitioned", 0, map[string]string{count: "3"})
		w.facts.Changing = false
		w.settings.Set()
		w.expect(t, "after that", 1, map[string]string{count: "1"})

		w.snapshot = gpu.Snapshot{}
		w.hardware.Set()
		w.expect(t, "without a driver", 0, map[string]string{count: "1"})
		w.setGPUs(0)
		w.hardware.Set()
		w.expect(t, "without GPUs", 1, map[string]string{count: ""})
	})
}

// TestLabelsAreWrittenAgain checks that the labels are restored after a manual edit and for a new Node.
func TestLabelsAreWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		w.Edit(`{"metadata":{"labels":{"nvidia.com/gpu.count":"9"}}}`)
		w.ClearActions()
		time.Sleep(11 * time.Minute)
		w.expect(t, "after an edit", 1, map[string]string{count: "2"})
		w.ReplaceNode("uid-2")
		w.ClearActions()
		time.Sleep(11 * time.Minute)
		w.expect(t, "on a new Node", 1, map[string]string{count: "2", "zone": "a"})
	})
}

// TestOutcomeIsReported checks that an error is reported while the API server does not respond, and success after that.
func TestOutcomeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Intercept(func(fakeapi.Request) error { return errors.New("no route") })
		w.start(t)
		if w.outcome == nil || !strings.Contains(w.outcome.Error(), "write the labels of Node node-0: no route") {
			t.Errorf("reported %v", w.outcome)
		}
		w.Intercept(nil)
		w.ClearActions()
		w.expect(t, "after the repair", 1, map[string]string{count: "2"})
		if w.outcome != nil {
			t.Errorf("after the repair: reported %v", w.outcome)
		}
	})
}

// TestOutputs checks that labels of an earlier choice are removed at the start, that nothing is removed at the end, and
// that Remove removes all.
func TestOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		file := filepath.Join(w.config.Labels.Dir, "berth-gpu")
		w.config.Labels.Output = v1alpha1.LabelsFile
		w.start(t)
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), count+"=2\n") {
			t.Errorf("the feature file has %q, %v", text, err)
		}
		features := w.Resource(schema.GroupVersionResource{Group: "nfd.k8s-sigs.io", Version: "v1alpha1",
			Resource: "nodefeatures"}).Namespace("berth-system")
		feature := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
			"metadata": map[string]any{
				"name": "nvidia-features-for-node-0", "namespace": "berth-system", "labels": map[string]any{"nfd.node.kubernetes.io/node-name": "node-0"},
				"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "uid-1"}},
			},
			"spec": map[string]any{"labels": map[string]any{count: "2"}},
		}}
		if _, err := features.Create(t.Context(), feature, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}

		w.config.Labels.Output = v1alpha1.LabelsNode
		w.start(t)
		if _, err := os.Stat(file); err == nil {
			t.Error("the feature file is left")
		}
		if _, err := features.Get(t.Context(), "nvidia-features-for-node-0", metav1.GetOptions{}); err == nil {
			t.Error("the NodeFeature is left")
		}
		w.config.Labels.Output = v1alpha1.LabelsNone
		w.start(t)
		if got := w.Node().GetLabels(); got[count] != "" || got["zone"] != "a" {
			t.Errorf("with the output none the Node has the labels %v", got)
		}
	})
}

func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(t)
		places, err := labels.OutputsOf(&w.config, w)
		if err != nil {
			t.Fatal(err)
		}
		w.Intercept(func(request fakeapi.Request) error {
			if request.Verb == "apply" {
				return errors.New("no route")
			}
			return nil
		})
		if err := places.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "Node node-0") {
			t.Errorf("an API server that is away: %v", err)
		}
		w.Intercept(nil)
		for range 2 {
			if err := places.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.Node().GetLabels(); len(got) != 1 || got["zone"] != "a" {
			t.Errorf("the Node has the labels %v, want only the one of others", got)
		}
	})
}

// TestOutputsWithoutAPI checks that only the feature file can be written; another choice is refused.
func TestOutputsWithoutAPI(t *testing.T) {
	config := v1alpha1.AgentConfig{NodeName: "node-0"}
	for output, want := range map[v1alpha1.LabelOutput]bool{v1alpha1.LabelsFile: true, v1alpha1.LabelsNode: false,
		v1alpha1.LabelsNone: false} {
		config.Labels.Output = output
		places, err := labels.OutputsOf(&config, nil)
		if err != nil || (places.Chosen != nil) != want {
			t.Errorf("output %s: chosen %v, %v", output, places.Chosen, err)
		}
	}
	config.NodeName = ""
	if _, err := labels.OutputsOf(&config, fakeapi.New(t)); err == nil || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("without the name of the node: %v", err)
	}
}
