package dra

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/pkg/features" // adds the feature gates of Kubernetes
)

// TestCompatibility compares the table of feature gates in docs/compatibility.md with the defaults that Kubernetes itself has
// for each version.
func TestCompatibility(t *testing.T) {
	text, err := os.ReadFile("../../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	gates := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		switch {
		case cells[0] == "feature gate":
			versions = cells[1 : len(cells)-1]
		case len(versions) > 0 && len(cells) == len(versions)+2 && regexp.MustCompile(`^[A-Z][A-Za-z]+$`).MatchString(cells[0]):
			gates++
			for i, v := range versions {
				if want := onByDefault(t, v, featuregate.Feature(cells[0])); cells[i+1] != want {
					t.Errorf("%s in %s: the document says %s, Kubernetes %s", cells[0], v, cells[i+1], want)
				}
			}
		}
	}
	if len(versions) != 4 || gates < 8 {
		t.Errorf("the table has %d gates and the versions %v", gates, versions)
	}
}

// onByDefault returns "on" or "off" for a feature gate in a version of Kubernetes.
func onByDefault(t *testing.T, kubernetes string, gate featuregate.Feature) string {
	t.Helper()
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetEmulationVersion(version.MustParseGeneric(kubernetes)); err != nil {
		t.Fatal(err)
	}
	if _, known := gates.GetAll()[gate]; !known {
		return "unknown"
	}
	if gates.Enabled(gate) {
		return "on"
	}
	return "off"
}
