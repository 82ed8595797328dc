package crds

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestAll compares the definitions with the files of this folder.
func TestAll(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, file := range files {
		group, plural, _ := strings.Cut(strings.TrimSuffix(file, ".yaml"), "_")
		want = append(want, plural+"."+group)
	}
	slices.Sort(want)
	for _, d := range All() {
		got = append(got, d.Name)
		var object struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal(d.YAML, &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != "CustomResourceDefinition" || object.Metadata.Name != d.Name || Version(object.Metadata.Annotations) < 1 {
			t.Errorf("%s is a %s of the name %s and version %d, want a CustomResourceDefinition with a version", d.Name, object.Kind,
				object.Metadata.Name, Version(object.Metadata.Annotations))
		}
	}
	if len(got) == 0 || !slices.Equal(got, want) {
		t.Errorf("All() has %v, want the definitions of this folder, sorted: %v", got, want)
	}
}

func TestVersion(t *testing.T) {
	tests := map[string]struct {
		annotations map[string]string
		want        int
	}{
		"a version":     {map[string]string{VersionAnnotation: "12"}, 12},
		"no version":    {nil, 0},
		"not a version": {map[string]string{VersionAnnotation: "v2"}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Version(tc.annotations); got != tc.want {
				t.Errorf("Version = %d, want %d", got, tc.want)
			}
		})
	}
}
