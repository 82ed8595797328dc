package topview

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
)

const gib = 1 << 30

func held(namespace, name string) v1alpha1.PodSample {
	return v1alpha1.PodSample{Namespace: namespace, Pod: name, Container: "main", Held: true}
}

// node is a node with a GPU that is busy, one that is held and idle, one with a MIG device, and one that does not respond.
func node(name string) *v1alpha1.GPUSamples {
	return &v1alpha1.GPUSamples{Node: name, Items: []v1alpha1.GPUSample{
		{
			UUID: name + "-0", Index: 0, Product: "H100", Health: "Healthy", Utilization: new(0.5), TemperatureCelsius: new(60.0), PowerWatts: new(500.0),
			GPUSampleUse: v1alpha1.GPUSampleUse{MemoryBytes: new(80.0 * gib), MemoryUsedBytes: new(20.0 * gib), Pods: []v1alpha1.PodSample{held("ml", "train")}},
		},
		{
			UUID: name + "-1", Index: 1, Product: "H100", Health: "Degraded (ROW_REMAP)", Utilization: new(0.0), TemperatureCelsius: new(40.0), PowerWatts: new(90.0),
			GPUSampleUse: v1alpha1.GPUSampleUse{MemoryBytes: new(80.0 * gib), MemoryUsedBytes: new(0.0), Pods: []v1alpha1.PodSample{held("dev", "notebook")}},
		},
		{
			UUID: name + "-2", Index: 2, Product: "H200", Health: "Healthy", Partitioned: true,
			Devices: []v1alpha1.MIGSample{{UUID: name + "-m", Profile: "1g.10gb", Health: "Healthy", GPUSampleUse: v1alpha1.GPUSampleUse{
				Active: new(0.9), MemoryUsedBytes: new(5.0 * gib), Pods: []v1alpha1.PodSample{held("ml", "infer")},
			}}},
		},
		{UUID: name + "-3", Index: 3, Product: "H200", Health: "Gone (GPU_LOST)"},
	}}
}

func TestOrderOfGPUs(t *testing.T) {
	tests := map[string][]string{
		"":        {"0", "1", "2", "2:0", "3"},
		"index":   {"0", "1", "2", "2:0", "3"},
		"health":  {"3", "1", "0", "2", "2:0"},
		"held-by": {"1", "2", "2:0", "0", "3"},
		"util":    {"0", "1", "2", "2:0", "3"},
		"memory":  {"0", "2", "2:0", "1", "3"},
		"temp":    {"0", "1", "2", "2:0", "3"},
		"power":   {"0", "1", "2", "2:0", "3"},
		"model":   {"0", "1", "2", "2:0", "3"},
	}
	for _, key := range append(Keys(), "") {
		t.Run(key, func(t *testing.T) {
			var got []string
			for _, row := range (&View{SortBy: key}).layout([]*v1alpha1.GPUSamples{node("a")}).Rows {
				got = append(got, row[0].Text)
			}
			if diff := cmp.Diff(tests[key], got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	idle := &v1alpha1.GPUSamples{Node: "b", Items: []v1alpha1.GPUSample{{UUID: "b-0", Product: "L4", Health: "Healthy", Utilization: new(0.7), TemperatureCelsius: new(90.0)}}}
	away := &v1alpha1.GPUSamples{Node: "c"}
	all := []*v1alpha1.GPUSamples{away, node("a"), idle}
	var text strings.Builder
	if err := (&View{}).Write(&text, all, term.Output{}); err != nil {
		t.Fatal(err)
	}
	want := `NODE   GPUS   HEALTH                    HELD BY           UTIL         MEMORY   TEMP   POWER   MODEL
a         4   Gone (GPU_LOST), 2 of 4   3 of 4: ml, dev    25%   25.0/160 GiB   60 C   590 W   H100, H200
b         1   Healthy                   -                  70%              -   90 C       -   L4
c         0   Healthy                   -                    -              -      -       -
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	all[1].Items[0].Pods[0].Processes = new(2)
	all[1].Items[2].Devices[0].Pods[0].Processes = new(3)
	var processes []string
	for _, row := range (&View{Processes: true}).layout(all).Rows {
		processes = append(processes, row[4].Text)
	}
	if diff := cmp.Diff([]string{"5", "-", "-"}, processes); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	orders := map[string]string{"index": "abc", "health": "abc", "held-by": "abc", "util": "bac", "memory": "abc", "temp": "bac", "power": "abc", "model": "cab"}
	for _, key := range Keys() {
		got := ""
		for _, row := range (&View{SortBy: key}).layout(all).Rows {
			got += row[0].Text
		}
		if got != orders[key] {
			t.Errorf("sorted by %s: got %s, want %s", key, got, orders[key])
		}
	}
}

// TestWide: the further columns of one node; on an output with few columns they are left out first.
func TestWide(t *testing.T) {
	one := &v1alpha1.GPUSamples{Node: "a", Items: []v1alpha1.GPUSample{
		{UUID: "GPU-0", Product: "H100", Health: "Healthy", Utilization: new(0.7), MemoryUtilization: new(0.25), SMClockHertz: new(1.98e9),
			GPUSampleUse: v1alpha1.GPUSampleUse{Active: new(0.6), Tensor: new(0.5), Pods: []v1alpha1.PodSample{held("ml", "train")}}},
		{UUID: "GPU-1", Index: 1, Product: "H100", Health: "Healthy", Partitioned: true,
			Devices: []v1alpha1.MIGSample{{UUID: "MIG-0", Profile: "1g.10gb", Health: "Healthy", GPUSampleUse: v1alpha1.GPUSampleUse{Active: new(0.1)}}}},
	}}
	want := `INDEX   HEALTH    HELD BY             PROCS   UTIL   MEMORY   TEMP   POWER   MODEL         MEM UTIL   ACTIVE   TENSOR      CLOCK   UUID
0       Healthy                                70%        -      -       -   H100               25%      60%      50%   1980 MHz   GPU-0
                    ml/train (main)       -      -        -
1       Healthy                                  -        -      -       -   H100                 -        -        -          -   GPU-1
1:0     Healthy   -                            10%        -                  MIG 1g.10gb                 10%        -              MIG-0
`
	var text strings.Builder
	if err := (&View{Wide: true, Processes: true}).Write(&text, []*v1alpha1.GPUSamples{one}, term.Output{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text.Reset()
	if err := (&View{Wide: true}).Write(&text, []*v1alpha1.GPUSamples{one}, term.Output{Columns: 90}); err != nil {
		t.Fatal(err)
	}
	if head, _, _ := strings.Cut(text.String(), "\n"); !strings.Contains(head, "MODEL") || strings.Contains(head, "UUID") || strings.Contains(head, "CLOCK") {
		t.Errorf("at 90 columns: %s", head)
	}
}

func TestColours(t *testing.T) {
	rows := (&View{}).layout([]*v1alpha1.GPUSamples{node("a")}).Rows
	got := map[string]term.Colour{}
	for _, row := range rows {
		got[row[0].Text+" health"], got[row[0].Text+" util"] = row[1].Colour, row[3].Colour
	}
	want := map[string]term.Colour{
		"0 health": term.Plain, "0 util": term.Plain, "1 health": term.Warn, "1 util": term.Warn, "2 health": term.Plain, "2 util": term.Plain,
		"2:0 health": term.Plain, "2:0 util": term.Plain, "3 health": term.Bad, "3 util": term.Plain,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSort: what is printed in other formats has the order of the table.
func TestSort(t *testing.T) {
	a, b := node("a"), node("b")
	b.Items = b.Items[:1]
	b.Items[0].Utilization, b.Items[0].Health = new(0.9), "Healthy"
	tests := map[string]struct {
		nodes string
		gpus  string // of node a
	}{
		"":       {"a b", "0 1 2 3"},
		"util":   {"b a", "0 1 2 3"},
		"health": {"a b", "3 1 0 2"},
		"memory": {"a b", "0 2 1 3"},
	}
	for key, tc := range tests {
		t.Run(key, func(t *testing.T) {
			nodes := []*v1alpha1.GPUSamples{{Node: a.Node, Items: slices.Clone(a.Items)}, b}
			(&View{SortBy: key}).Sort(nodes)
			var names, gpus []string
			for _, one := range nodes {
				names = append(names, one.Node)
				for i := range one.Items {
					if one.Node == "a" {
						gpus = append(gpus, fmt.Sprint(one.Items[i].Index))
					}
				}
			}
			if got := strings.Join(names, " "); got != tc.nodes {
				t.Errorf("nodes %s, want %s", got, tc.nodes)
			}
			if got := strings.Join(gpus, " "); got != tc.gpus {
				t.Errorf("GPUs %s, want %s", got, tc.gpus)
			}
		})
	}
}

// TestOneOfSeveral: a node that is left of several has the row and the history of a node, and where none is left the view says so.
func TestOneOfSeveral(t *testing.T) {
	view := &View{Several: true, None: "no GPU of ml", History: &History{}}
	one := []*v1alpha1.GPUSamples{node("a")}
	view.Remember(one)
	layout := view.layout(one)
	if len(layout.Rows) != 1 || layout.Rows[0][0].Text != "a" || view.History.line("a") == "" {
		t.Errorf("rows %v, history %q", layout.Rows, view.History.line("a"))
	}
	var text strings.Builder
	if err := view.Write(&text, nil, term.Output{}); err != nil || text.String() != "no GPU of ml\n" {
		t.Errorf("%q, %v", text.String(), err)
	}
}

func TestHistory(t *testing.T) {
	history := &History{}
	view := &View{History: history}
	one := node("a")
	for i := range historyColumns + 3 {
		one.Items[0].Utilization = new(float64(i%2) * 0.99)
		view.Remember([]*v1alpha1.GPUSamples{one})
	}
	tests := map[string]string{"a-0": strings.Repeat("█▁", historyColumns/2), "a-3": strings.Repeat("·", historyColumns), "": ""}
	for key, want := range tests {
		if got := history.line(key); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
	one.Items = slices.Delete(one.Items, 0, 1)
	view.Remember([]*v1alpha1.GPUSamples{one})
	if got := history.line("a-0"); got != "" {
		t.Errorf("a GPU that is gone has the history %q", got)
	}
	view.Remember([]*v1alpha1.GPUSamples{one, node("b")})
	if got, want := history.line("b"), strings.Repeat(" ", historyColumns-1)+"▃"; got != want {
		t.Errorf("of a node: got %q, want %q", got, want)
	}
}
