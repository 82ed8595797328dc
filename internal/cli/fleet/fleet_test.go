package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
)

const (
	whole   = "nvidia.com/gpu"
	replica = "nvidia.com/gpu.shared"
	slice   = "nvidia.com/mig-1g.10gb"
)

func health(state string, codes ...string) v1alpha1.DeviceHealth {
	out := v1alpha1.DeviceHealth{State: state}
	for _, code := range codes {
		out.Causes = append(out.Causes, v1alpha1.Cause{Code: code, Message: "about " + code})
	}
	return out
}

func pod(namespace, name string, share int) v1alpha1.Holder {
	return v1alpha1.Holder{Kind: "Pod", Namespace: namespace, Pod: name, Share: share}
}

// gpuOf returns a GPU that is advertised as a resource; none where that is empty.
func gpuOf(model, resource string, state v1alpha1.DeviceHealth, held ...v1alpha1.Holder) v1alpha1.GPUDevice {
	device := v1alpha1.GPUDevice{Product: model, Health: state, Holders: held}
	if resource != "" {
		device.Offered = &v1alpha1.DeviceOffer{Resource: resource}
	}
	return device
}

func shared(replicas int, held ...v1alpha1.Holder) v1alpha1.GPUDevice {
	device := gpuOf("A", replica, health("Healthy"), held...)
	device.Offered.Replicas = replicas
	return device
}

func part(index int, held ...v1alpha1.Holder) v1alpha1.MIGDevice {
	return v1alpha1.MIGDevice{Index: index, Offered: &v1alpha1.DeviceOffer{Resource: slice}, Holders: held}
}

func partitioned(state v1alpha1.DeviceHealth, parts ...v1alpha1.MIGDevice) v1alpha1.GPUDevice {
	return v1alpha1.GPUDevice{Product: "B", Health: state, MIGEnabled: true, MIGDevices: parts}
}

func node(name string, devices ...v1alpha1.GPUDevice) v1alpha1.GPUNode {
	out := v1alpha1.GPUNode{}
	out.Name = name
	out.Status.Devices = devices
	for i := range out.Status.Devices {
		out.Status.Devices[i].Index = i
	}
	return out
}

// twoNodes is a fleet with each kind of device.
func twoNodes() []v1alpha1.GPUNode {
	draining := gpuOf("A", whole, health("Healthy"))
	draining.Offered.Draining = "a change of the MIG layout"
	excluded := gpuOf("A", whole, health("Healthy"))
	excluded.Excluded = true
	ill := part(1)
	ill.Health = new(health("Unhealthy", "XID94"))
	first := node("a", gpuOf("A", whole, health("Healthy"), pod("ml", "x", 0), pod("ml", "y", 0)), gpuOf("A", whole, health("Unhealthy", "XID79")),
		gpuOf("A", whole, health("Healthy")), draining, excluded)
	first.Status.Problems = []v1alpha1.Cause{{Code: "NO_DRIVER", Message: "none"}}
	return []v1alpha1.GPUNode{first, node("b", shared(4, pod("ml", "z", 1), pod("dev", "z", 2)),
		partitioned(health("Healthy"), part(0, pod("dev", "w", 0)), ill, part(2)), partitioned(health("Degraded")))}
}

func requests() []Request {
	return []Request{{"ml", whole, 3}, {"ml", replica, 1}, {"dev", replica, 1}, {"new", slice, 7}}
}

func counts(gpus, held, free, unhealthy int) v1alpha1.GPUCounts {
	return v1alpha1.GPUCounts{GPUs: gpus, Held: held, Free: free, Unhealthy: unhealthy}
}

func devices(total, held, free int, requested ...int64) v1alpha1.GPUDeviceCounts {
	out := v1alpha1.GPUDeviceCounts{Total: total, Held: held, Free: free}
	for _, count := range requested {
		out.Requested = &count
	}
	return out
}

func TestGroups(t *testing.T) {
	bare := []v1alpha1.GPUNode{node("a", gpuOf("A", "", health("Healthy")), gpuOf("A", "", health("Healthy"), pod("ml", "x", 0)))}
	tests := map[string]struct {
		in   Input
		by   string
		want []v1alpha1.GPUGroup
	}{
		"nothing": {Input{}, ByNode, []v1alpha1.GPUGroup{}},
		"node": {Input{twoNodes(), requests()}, ByNode, []v1alpha1.GPUGroup{
			{Name: "a", Nodes: 1, GPUCounts: counts(5, 1, 3, 1), Devices: devices(5, 1, 1)},
			{Name: "b", Nodes: 1, GPUCounts: counts(3, 2, 1, 0), Devices: devices(7, 3, 3)},
		}},
		"a node without GPUs": {Input{[]v1alpha1.GPUNode{node("a")}, nil}, ByNode, []v1alpha1.GPUGroup{{Name: "a", Nodes: 1}}},
		"model": {Input{twoNodes(), requests()}, ByModel, []v1alpha1.GPUGroup{
			{Name: "A", Nodes: 2, GPUCounts: counts(6, 2, 3, 1), Devices: devices(9, 3, 3)},
			{Name: "B", Nodes: 1, GPUCounts: counts(2, 1, 1, 0), Devices: devices(3, 1, 1)},
		}},
		"resource": {Input{twoNodes(), requests()}, ByResource, []v1alpha1.GPUGroup{
			{Nodes: 1, GPUCounts: counts(1, 0, 1, 0), Devices: devices(0, 0, 0, 0)},
			{Name: whole, Nodes: 1, GPUCounts: counts(5, 1, 3, 1), Devices: devices(5, 1, 1, 3)},
			{Name: replica, Nodes: 1, GPUCounts: counts(1, 1, 0, 0), Devices: devices(4, 2, 2, 2)},
			{Name: slice, Nodes: 1, GPUCounts: counts(1, 1, 0, 0), Devices: devices(3, 1, 1, 7)},
		}},
		"namespace": {Input{twoNodes(), requests()}, ByNamespace, []v1alpha1.GPUGroup{
			{Name: "dev", Nodes: 1, GPUCounts: counts(2, 2, 0, 0), Devices: devices(2, 2, 0, 1)},
			{Name: "ml", Nodes: 2, GPUCounts: counts(2, 2, 0, 0), Devices: devices(2, 2, 0, 4)},
			{Name: "new", Devices: devices(0, 0, 0, 7)},
		}},
		"without pods": {Input{twoNodes()[:1], nil}, ByNamespace, []v1alpha1.GPUGroup{
			{Name: "ml", Nodes: 1, GPUCounts: counts(1, 1, 0, 0), Devices: devices(1, 1, 0)},
		}},
		"what is advertised is not known": {Input{bare, nil}, ByModel, []v1alpha1.GPUGroup{
			{Name: "A", Nodes: 1, GPUCounts: counts(2, 1, 1, 0), Devices: devices(2, 1, 1)},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Groups(&tc.in, tc.by)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			slices.Reverse(tc.in.Nodes)
			slices.Reverse(tc.in.Requests)
			if diff := cmp.Diff(tc.want, Groups(&tc.in, tc.by)); diff != "" {
				t.Errorf("in another order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	want := []v1alpha1.GPUFleetProblem{
		{Code: "Degraded", GPUs: 1, Nodes: 1, Node: "b"},
		{Code: "XID79", GPUs: 1, Nodes: 1, Node: "a", Message: "about XID79"},
		{Code: "XID94", GPUs: 1, Nodes: 1, Node: "b", Message: "about XID94"},
		{Code: "NO_DRIVER", Nodes: 1, Node: "a", Message: "none"},
	}
	if diff := cmp.Diff(want, Summarize(&Input{Nodes: twoNodes()}).Problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFilters(t *testing.T) {
	var items []v1alpha1.GPUListItem
	for _, n := range twoNodes() {
		for _, device := range n.Status.Devices {
			items = append(items, v1alpha1.GPUListItem{Node: n.Name, GPUDevice: device})
		}
	}
	names := func(items []v1alpha1.GPUListItem) (out []string) {
		for i := range items {
			text := fmt.Sprintf("%s %d", items[i].Node, items[i].Index)
			for _, one := range items[i].MIGDevices {
				text += fmt.Sprintf(":%d", one.Index)
			}
			out = append(out, text)
		}
		return out
	}
	if diff := cmp.Diff([]string{"a 2", "b 0", "b 1:2"}, names(Free(items))); diff != "" {
		t.Errorf("free (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a 1", "b 1:1", "b 2"}, names(Unhealthy(items))); diff != "" {
		t.Errorf("unhealthy (-want +got):\n%s", diff)
	}
	if len(items[6].MIGDevices) != 3 {
		t.Error("a filter changed what it was given")
	}
}

// TestSummaryFits: whatever the fleet, a summary has no more lines and columns than the screen, from 12 lines on.
func TestSummaryFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := &v1alpha1.GPUFleet{Nodes: rapid.IntRange(0, 100000).Draw(t, "nodes")}
		group := rapid.Custom(func(t *rapid.T) v1alpha1.GPUGroup {
			return v1alpha1.GPUGroup{Name: rapid.String().Draw(t, "name"), GPUCounts: counts(rapid.IntRange(0, 1e6).Draw(t, "gpus"), 2, 3, 4)}
		})
		fleet.Models = rapid.SliceOfN(group, 0, 40).Draw(t, "models")
		fleet.Resources = rapid.SliceOfN(group, 0, 40).Draw(t, "resources")
		fleet.Namespaces = rapid.SliceOfN(group, 0, 40).Draw(t, "namespaces")
		for range rapid.IntRange(0, 40).Draw(t, "problems") {
			fleet.Problems = append(fleet.Problems, v1alpha1.GPUFleetProblem{Code: "XID", Message: rapid.String().Draw(t, "message")})
		}
		out := term.Output{Rows: rapid.IntRange(14, 60).Draw(t, "rows"), Columns: rapid.IntRange(1, 250).Draw(t, "columns")}
		var text strings.Builder
		if err := WriteSummary(&text, fleet, out); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
		if len(lines) > out.Rows-1 {
			t.Fatalf("%d lines on a screen of %d:\n%s", len(lines), out.Rows, text.String())
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > out.Columns {
				t.Fatalf("more than %d columns: %s", out.Columns, line)
			}
		}
	})
}

// TestReplicas checks how many replicas of a GPU are held.
func TestReplicas(t *testing.T) {
	tests := map[string]struct {
		holders []v1alpha1.Holder
		want    int
	}{
		"none":                      {nil, 0},
		"two":                       {[]v1alpha1.Holder{pod("ml", "x", 1), pod("ml", "y", 3)}, 2},
		"two containers of one":     {[]v1alpha1.Holder{pod("ml", "x", 2), pod("ml", "x", 2)}, 1},
		"a holder of the whole GPU": {[]v1alpha1.Holder{pod("ml", "x", 0)}, 4},
		"one, and one of the whole": {[]v1alpha1.Holder{pod("ml", "x", 1), pod("ml", "y", 0)}, 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := replicasOf(tc.holders, 4); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
