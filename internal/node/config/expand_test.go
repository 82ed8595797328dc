package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAnchorsAreRead checks that an alias or a merge key is read like the text that it refers to.
func TestAnchorsAreRead(t *testing.T) {
	tests := map[string]struct{ file, same string }{
		"an alias": {
			"gpus:\n- {select: {index: [0]}, sharing: &s {mode: timeSlicing, replicas: 2}}\n- {select: {index: [1]}, sharing: *s}\n",
			"gpus:\n- {select: {index: [0]}, sharing: {mode: timeSlicing, replicas: 2}}\n- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 2}}\n",
		},
		"a merge key, of which a given key wins": {
			"gpus:\n- {select: {index: [0]}, sharing: &s {mode: timeSlicing, replicas: 2}}\n- {select: {index: [1]}, sharing: {<<: *s, replicas: 3}}\n",
			"gpus:\n- {select: {index: [0]}, sharing: {mode: timeSlicing, replicas: 2}}\n- {select: {index: [1]}, sharing: {mode: timeSlicing, replicas: 3}}\n",
		},
		"NVIDIA's file": {
			"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - &a {name: nvidia.com/gpu, replicas: 4}\n    - {<<: [*a], name: nvidia.com/mig-1g.5gb}\nflags: {migStrategy: mixed}\n",
			"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 4}\n    - {name: nvidia.com/mig-1g.5gb, replicas: 4}\nflags: {migStrategy: mixed}\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NODE_NAME", "node-0")
			got, err := Parse("agent.yaml", []byte(tc.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Parse("agent.yaml", []byte(tc.same), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-written out +with anchors):\n%s", diff)
			}
		})
	}
}

func TestAnchorsRefused(t *testing.T) {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for last, next := 'a', 'b'; next < 'j'; last, next = next, next+1 {
		bomb += string(next) + ": &" + string(next) + " [" + strings.Repeat("*"+string(last)+", ", 9) + "*" + string(last) + "]\n"
	}
	tests := map[string]struct{ file, want string }{
		"a bomb":          {bomb, "the file has more than 100000 values after its aliases are expanded"},
		"a loop":          {"gpus: &a [*a]\n", "agent.yaml:1: the anchor a contains itself (write the value without an anchor)"},
		"a merged text":   {"<<: x\n", "<< needs keys and values, or a list of those"},
		"an unknown one":  {"gpus: *a\n", "unknown anchor"},
		"a wrong content": {"x: &a {replicas: 2}\ngpus: [{sharing: *a}]\n", "agent.yaml:1: x: unknown key"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("agent.yaml", []byte(tc.file), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse returned %v, want %s", err, tc.want)
			}
		})
	}
}

// TestIgnoredFieldsAreNoted checks that each field that NVIDIA's plugin ignores and Berth follows is named.
func TestIgnoredFieldsAreNoted(t *testing.T) {
	const file = `flags: {migStrategy: mixed}
resources:
  gpus: [{pattern: "*A100*", name: a100}]
  mig: [{pattern: "1g.5gb", name: small}]
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {name: nvidia.com/a100, replicas: 4, rename: nvidia.com/slow}
    - {name: nvidia.com/gpu, replicas: 4, devices: [0]}
    - {name: nvidia.com/small, replicas: 4, rename: nvidia.com/small.shared, devices: all}
`
	t.Setenv("NODE_NAME", "node-0")
	got, err := Read("nvidia.yaml", []byte(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, note := range got.Notes {
		at, _, _ := strings.Cut(strings.TrimPrefix(note, "nvidia.yaml"), " ")
		fields = append(fields, at)
	}
	want := []string{
		":", ":3:", ":4:", ":9:", ":10:",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("notes %q (-want +got):\n%s", got.Notes, diff)
	}
	for i, name := range []string{"version: is missing", "resources.gpus: is followed", "resources.mig: is followed",
		"resources[0].rename: is followed", "resources[1].devices: is followed"} {
		if len(got.Notes) > i && !strings.Contains(got.Notes[i], name) {
			t.Errorf("note %q, want %s in it", got.Notes[i], name)
		}
	}
}
