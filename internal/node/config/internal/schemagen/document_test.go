package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/node/config"
)

func TestShippedDocumentIsUpToDate(t *testing.T) {
	want, err := document(up + "api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(up + "docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run make generate: docs/configuration.md is stale (-want +shipped):\n%s", diff)
	}
}

// TestExamplesAreRead reads each example as the agent does, and checks that each key of the nested types is in one of
// them.
func TestExamplesAreRead(t *testing.T) {
	g, err := read(up + "api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, field := range g.fields("AgentConfig") {
		key, _, _ := tag(field)
		keys[key] = true
	}
	var all strings.Builder
	for key, example := range examples() {
		if !keys[key] {
			t.Errorf("there is an example for %s, which is not a key", key)
		}
		all.WriteString(example)
		if !strings.Contains(example, key+":") {
			t.Errorf("the example for %s does not use it: %s", key, example)
		}
		text := "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\n" + example + "\n"
		if _, err := config.Parse(key, []byte(text), nil); err != nil {
			t.Errorf("example of %s: %v", key, err)
		}
	}
	for _, name := range []string{"GPURule", "GPUSelector", "MIGDeviceRule", "MIGDeviceSelector", "Sharing",
		"MPSLimits", "Allocation", "MIGSettings", "MIGLayoutEntry", "IMEX", "Labels"} {
		for _, field := range g.fields(name) {
			if key, _, _ := tag(field); !strings.Contains(all.String(), key+":") {
				t.Errorf("no example uses %s of %s", key, name)
			}
		}
	}
}
