package scheduler

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// rendering is the chart with every option; a test of the chart keeps it equal to what Helm renders.
const rendering = "../../../../charts/testdata/golden/everything.yaml"

// document is the part of a KubeSchedulerConfiguration that is compared.
type document struct {
	Profiles []map[string]any `json:"profiles"`
}

// shipped returns the configuration of the chart.
func shipped(t *testing.T) document {
	t.Helper()
	text, err := os.ReadFile(rendering)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yamlstream.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var object corev1.ConfigMap
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			t.Fatal("the rendering has no ConfigMap berth-scheduler")
		} else if err != nil || object.Kind != "ConfigMap" || object.Name != "berth-scheduler" {
			continue // Another object, whose fields may be of other types.
		}
		return read(t, object.Data["config.yaml"])
	}
}

func read(t *testing.T, text string) document {
	t.Helper()
	var d document
	if err := yaml.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOursIsTheProfileOfTheChart: what is measured is what is shipped.
func TestOursIsTheProfileOfTheChart(t *testing.T) {
	ours := read(t, Ours().configuration("/a/kubeconfig"))
	if len(ours.Profiles) != 1 {
		t.Fatalf("%d profiles, want 1", len(ours.Profiles))
	}
	for _, profile := range shipped(t).Profiles {
		if profile["schedulerName"] != ours.Profiles[0]["schedulerName"] {
			continue
		}
		if diff := cmp.Diff(profile, ours.Profiles[0]); diff != "" {
			t.Errorf("the profile differs from the chart's (-chart +ours):\n%s", diff)
		}
		return
	}
	t.Errorf("the chart has no profile %v", ours.Profiles[0]["schedulerName"])
}
