package metrics_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// TestCatalogueHasTheLabels compares the labels of the catalogue with those of the series on the pages.
func TestCatalogueHasTheLabels(t *testing.T) {
	found := map[string]map[string]bool{}
	for _, make := range worlds() {
		in := make(t)
		in.DCGMFields = givenFields()
		for _, page := range [][]byte{metrics.Berth(in), metrics.DCGM(in)} {
			for name, family := range parse(t, page) {
				if found[name] == nil {
					found[name] = map[string]bool{}
				}
				for _, m := range family.GetMetric() {
					for _, pair := range m.GetLabel() {
						found[name][pair.GetName()] = true
					}
				}
			}
		}
	}
	known := map[string]bool{}
	for _, m := range append(metrics.Catalogue(), metrics.DCGMCatalogue(givenFields())...) {
		if known[m.Name] {
			t.Errorf("%s is in the catalogue twice", m.Name)
		}
		known[m.Name] = true
		labels, onPage := found[m.Name]
		if !onPage {
			continue // no profile of the simulator has it
		}
		if diff := cmp.Diff(slices.Sorted(slices.Values(m.Labels)), slices.Sorted(maps.Keys(labels)), cmp.Transformer("nil", func(l []string) []string { return append([]string{}, l...) })); diff != "" && !optional(m.Labels, labels) {
			t.Errorf("%s has other labels than the catalogue says (-catalogue +page):\n%s", m.Name, diff)
		}
	}
	for name := range found {
		if !known[name] {
			t.Errorf("%s is on a page and not in the catalogue", name)
		}
	}
}

// givenFields are all fields that can be listed.
func givenFields() []dcgm.Export {
	var all []dcgm.Export
	for _, f := range dcgm.Fields() {
		if f.Reason == "" && f.Type != dcgm.Label {
			all = append(all, dcgm.Export{Field: f})
		}
	}
	return all
}

// optional reports whether only labels are missing that a series has in some cases: of a pod, or of a GPU instance.
func optional(want []string, got map[string]bool) bool {
	for name := range got {
		if !slices.Contains(want, name) {
			return false
		}
	}
	for _, name := range want {
		if !got[name] && !slices.Contains([]string{"pod", "namespace", "container", "GPU_I_PROFILE", "GPU_I_ID", "xid"}, name) {
			return false
		}
	}
	return true
}
