package sandbox

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestComponentFlags(t *testing.T) {
	o := Options{FeatureGates: map[string]bool{"B": true, "A": false}, RuntimeConfig: map[string]string{"x/v1": "true", "api/all": "false"}}
	if got := o.gateFlags(); !slices.Equal(got, []string{"--feature-gates=A=false,B=true"}) {
		t.Errorf("the flags of a component are %q", got)
	}
	if got := o.runtimeFlags(); !slices.Equal(got, []string{"--runtime-config=api/all=false,x/v1=true"}) {
		t.Errorf("the flags of the API server are %q", got)
	}
	none := Options{}
	if len(none.gateFlags())+len(none.runtimeFlags()) > 0 {
		t.Errorf("without options the flags are %q and %q", none.gateFlags(), none.runtimeFlags())
	}
}

func TestParseGates(t *testing.T) {
	for text, want := range map[string]map[string]bool{
		"": {}, "A=true": {"A": true}, "A=true,B=false": {"A": true, "B": false}, "A": nil, "A=maybe": nil, "=true": nil,
	} {
		got, err := ParseGates(text)
		if (err != nil) != (want == nil) || !maps.Equal(got, want) {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
}

func TestProfilesOfNodes(t *testing.T) {
	o := Options{Dir: t.TempDir(), Bin: t.TempDir(), Nodes: 2, Hollow: 1, Profile: "a100x8-40g", NodeProfiles: map[string]string{"node-1": "h100x8", "hollow-0": ""}}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range o.nodeNames() {
		got = append(got, name+"="+o.profileOf(name))
	}
	if want := "node-0=a100x8-40g node-1=h100x8 hollow-0="; strings.Join(got, " ") != want {
		t.Errorf("the nodes have %q, want %s", got, want)
	}
	o.NodeProfiles["node-2"] = "h100x8"
	if err := o.complete(); err == nil || !strings.Contains(err.Error(), "node-0, node-1, hollow-0") {
		t.Errorf("a profile of a node that does not exist: %v, want an error with the nodes", err)
	}
	delete(o.NodeProfiles, "node-2")
	for name, ok := range map[string]bool{"node-1": true, "hollow-0": false, "node-2": false} {
		o.NodeCliques = map[string]string{name: "7f3c1ab2-5d6e-4c91-9a44-3b0e6f2d8c57.1"}
		if err := o.complete(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--node-clique "+name) {
			t.Errorf("a clique of %s: %v", name, err)
		}
	}
}
