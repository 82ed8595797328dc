package metrics_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// listed returns the fields of a list, without the others.
func listed(t testing.TB, list string) []dcgm.Export {
	t.Helper()
	entries, mistakes := dcgm.Parse(list)
	fields, refused := dcgm.Select(nil, entries)
	if len(mistakes)+len(refused) > 0 {
		t.Fatal(mistakes, refused)
	}
	return fields
}

// TestListedFields checks that a listed field has the type and the help of the list, and the labels of the others.
func TestListedFields(t *testing.T) {
	in := worlds()["h100-whole"](t)
	in.DCGMFields = dcgm.Defaults()
	labels := func(name string) []string {
		found := map[string]bool{}
		for _, m := range parse(t, metrics.DCGM(in))[name].GetMetric() {
			for _, pair := range m.GetLabel() {
				found[pair.GetName()] = true
			}
		}
		return slices.Sorted(maps.Keys(found))
	}
	want := labels("DCGM_FI_DEV_GPU_TEMP")
	in.DCGMFields = listed(t, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Mine.\nDCGM_FI_DEV_FB_TOTAL, counter, As a counter.\nDCGM_FI_PROF_SM_ACTIVE, gauge, x")
	families := parse(t, metrics.DCGM(in))
	if len(families) != 3 || families["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"].GetHelp() != "Mine." || families["DCGM_FI_DEV_FB_TOTAL"].GetType().String() != "COUNTER" {
		t.Errorf("the page has %v", families)
	}
	for name := range families {
		if diff := cmp.Diff(want, labels(name)); diff != "" {
			t.Errorf("labels of %s (-want +got):\n%s", name, diff)
		}
	}
}

// TestXIDCount checks that only the XIDs of the last five minutes are counted, by XID, and that a GPU without any has 0.
func TestXIDCount(t *testing.T) {
	in := worlds()["mixed"](t)
	in.DCGMFields = listed(t, dcgm.XIDCount+", gauge, x")
	at := func(before time.Duration) time.Time { return moment().Add(-before) }
	in.XIDs = []metrics.XIDCount{
		{GPU: in.Snapshot.GPUs[0].UUID, XID: 94, Count: 3, Recent: []time.Time{at(6 * time.Minute), at(4 * time.Minute), at(time.Second)}},
		{GPU: in.Snapshot.GPUs[0].UUID, XID: 31, Count: 1, Recent: []time.Time{at(time.Minute)}},
		{GPU: in.Snapshot.GPUs[1].UUID, XID: 79, Count: 1, Recent: []time.Time{at(time.Hour)}},
	}
	var got []string
	for line := range strings.Lines(string(metrics.DCGM(in))) {
		if gpu, rest, ok := strings.Cut(line, `",UUID=`); ok {
			_, rest, _ = strings.Cut(rest, `window_size_in_ms="300000"`)
			got = append(got, strings.TrimPrefix(gpu, dcgm.XIDCount+`{gpu="`)+strings.TrimSpace(rest))
		}
	}
	want := []string{`0,xid="31"} 1`, `0,xid="94"} 2`, `1} 0`}
	if diff := cmp.Diff(want, got[:3]); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}
