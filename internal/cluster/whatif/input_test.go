package whatif

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/cluster/replay"
)

func TestRead(t *testing.T) {
	const want = "; want JSON as from kubectl get nodes,gpunodes,pods -A -o json"
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}`
	tests := map[string]struct {
		text     string
		err      string
		nodes    int
		gpuNodes int
		notes    []string
	}{
		"empty":         {text: " ", err: "read f: an empty file" + want},
		"YAML":          {text: "apiVersion: v1\n", err: "read f: at byte 0: invalid character 'a' looking for beginning of value" + want},
		"not an object": {text: "[1]", err: "read f: at byte 1: [ instead of an object" + want},
		"cut off":       {text: `{"items":[` + node, err: "read f: at byte 67: unexpected EOF" + want, nodes: 1},
		"no kind":       {text: `{"items":[{"a":1}]}`, err: `read f: "{\"a\":1}" has no kind` + want},
		"no object":     {text: `{"items":[7]}`, err: `read f: "7" is not an object of Kubernetes: json: cannot unmarshal number into Go value of type whatif.head` + want},
		"items":         {text: `{"items":7}`, err: "read f: at byte 10: items is 7 instead of a list" + want},
		"a bad Node": {text: `{"items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"taints":7}}]}`,
			err: `read f: Node "a": json: cannot unmarshal number into Go struct field NodeSpec.spec.taints of type []v1.Taint` + want},
		"one object":         {text: node, nodes: 1},
		"null":               {text: `{"kind":"NodeList","items":null}`},
		"two lists":          {text: `{"items":[` + node + `]}` + "\n" + `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"b"}}]}`, nodes: 2},
		"another kind":       {text: `{"kind":"Service","apiVersion":"v1"}`},
		"another GPUNode":    {text: `{"kind":"GPUNode","apiVersion":"example.com/v1","metadata":{"name":"a"}}`},
		"a GPUNode":          {text: `{"kind":"GPUNode","apiVersion":"berth.dev/v1alpha1","metadata":{"name":"a"}}`, gpuNodes: 1},
		"a newer GPUNode":    {text: `{"kind":"GPUNode","apiVersion":"berth.dev/v1","metadata":{"name":"a"}}`, notes: []string{"GPUNode a cannot be used: it is of berth.dev/v1, and this program reads berth.dev/v1alpha1; the counts of the Node decide"}},
		"a field of another": {text: `{"kind":"GPUNode","apiVersion":"berth.dev/v1alpha1","metadata":{"name":"a"},"status":{"topology":"X"}}`, notes: []string{"GPUNode a cannot be used: json: cannot unmarshal string into Go struct field GPUNodeStatus.status.topology of type []string; the counts of the Node decide"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var o Objects
			err := o.Read("f", strings.NewReader(test.text))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != test.err || len(o.Nodes) != test.nodes || len(o.GPUNodes) != test.gpuNodes || !slices.Equal(o.Notes, test.notes) {
				t.Errorf("%d Nodes, %d GPUNodes, notes %q, error\n     %s\nwant %s", len(o.Nodes), len(o.GPUNodes), o.Notes, text, test.err)
			}
		})
	}
}

// TestRefused: questions and objects that cannot be.
func TestRefused(t *testing.T) {
	layout := func(text string) func(*Objects, *Options) {
		return func(_ *Objects, o *Options) {
			l, err := ParseLayout(text)
			if err != nil {
				t.Fatal(err)
			}
			o.Changes.Layouts = []Layout{l}
		}
	}
	tests := map[string]struct {
		change func(*Objects, *Options)
		want   string
	}{
		"no node": {func(o *Objects, _ *Options) { o.Nodes = nil }, "there is no Node; want the nodes of a cluster, as from kubectl get nodes,gpunodes,pods -A -o json"},
		"a node twice": {func(o *Objects, _ *Options) { o.Nodes = append(o.Nodes, o.Nodes[0]) },
			`the Node "gpu-a" is listed twice, or has no name; want each node of one cluster once`},
		"a GPUNode twice": {func(o *Objects, _ *Options) { o.GPUNodes = append(o.GPUNodes, o.GPUNodes[0]) }, `the GPUNode "gpu-a" is listed twice; want each once`},
		"a pod twice":     {func(o *Objects, _ *Options) { o.Pods = append(o.Pods, o.Pods[0]) }, "the Pod team/agent-gpu-a is listed twice; want each pod of one cluster once"},
		"unknown policy": {func(_ *Objects, o *Options) { o.Policies = []string{"worst"} },
			`place the pods by worst: unknown policy "worst"; want Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, pack, spread, latency`},
		"like no node": {func(_ *Objects, o *Options) { o.Changes.Add = []Add{{1, "gpu-aa"}} }, `add nodes: there is no Node "gpu-aa" among 9; did you mean gpu-a?`},
		"remove none":  {func(_ *Objects, o *Options) { o.Changes.Remove = []string{"x"} }, `remove a node: there is no Node "x" among 9`},
		"no target":    {layout("1g.10gb=1@x"), `change the MIG layout: 1g.10gb=1@x: no GPUNode is named "x", and no GPU is of that model; the models with MIG are NVIDIA-A100-SXM4-80GB`},
		"no MIG":       {layout("1g.10gb=1@NVIDIA-L40S"), "change the MIG layout: 1g.10gb=1@NVIDIA-L40S on the node share-a: GPU 0: NVIDIA L40S has no MIG: leave GPU 0 out of the layout"},
		"no profile":   {layout("1g.5gb=1@mig-a"), "change the MIG layout: 1g.5gb=1@mig-a on the node mig-a: GPU 0: NVIDIA A100-SXM4-80GB has no profile \"1g.5gb\"; did you mean 1g.10gb? It has 7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb+me"},
		"no resource":  {layout("nvidia.com/x=1@mig-a"), "change the MIG layout: nvidia.com/x=1@mig-a on the node mig-a: GPU 0, NVIDIA A100-SXM4-80GB, has no MIG profile that is offered as nvidia.com/x"},
		"too much":     {layout("3g.40gb=2,1g.10gb=2@mig-a"), "change the MIG layout: 3g.40gb=2,1g.10gb=2@mig-a on the node mig-a: GPU 0: "},
		"no layout":    {layout("all-small@mig-a"), `change the MIG layout: all-small@mig-a on the node mig-a: no MIG layout "all-small": `},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			objects, options := small(t), Options{Policies: []string{"pack"}, Scale: 1}
			test.change(objects, &options)
			_, err := Ask(t.Context(), objects, options)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for _, text := range []string{"", "3", "x=a", "0=a", "10001=a", "3=", "-1=a"} {
		if got, err := ParseAdd(text); err == nil {
			t.Errorf("%q is %v; want an error", text, got)
		}
	}
	for _, text := range []string{"", "@a", "1g.10gb=1@", "1g.10gb=x@a", "1g.10gb=-1", "1g.10gb=65", "=1", "1g.10gb=1,1g.10gb=2", "1g.10gb=1,"} {
		if got, err := ParseLayout(text); err == nil {
			t.Errorf("%q is %v; want an error", text, got)
		}
	}
	got, err := ParseLayout("nvidia.com/mig-1g.10gb=2,3g.40gb=1@a")
	want := Layout{Text: "nvidia.com/mig-1g.10gb=2,3g.40gb=1@a", Target: "a", Devices: map[string]int{"nvidia.com/mig-1g.10gb": 2, "3g.40gb": 1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// FuzzRead: any bytes are read or refused, and what is read can be asked about.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"status":{"allocatable":{"cpu":"4","memory":"4Gi","nvidia.com/gpu":"2"}}},
		{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}},
		{"apiVersion":"berth.dev/v1alpha1","kind":"GPUNode","metadata":{"name":"a"},"status":{"topology":["X"],"devices":[{"uuid":"g","migProfiles":[{"name":"1g","size":1,"starts":[0],"max":1,"computeSlices":1}],
		"migDevices":[{"profile":"1g","size":1,"offered":{"resource":"r"}}],"health":{"state":"Healthy"}}]}}]}`), "1g=1")
	f.Add([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`), "all-disabled@a")
	f.Fuzz(func(t *testing.T, dump []byte, layout string) {
		var objects Objects
		if err := objects.Read("f", strings.NewReader(string(dump))); err != nil {
			return
		}
		options := Options{Policies: replay.AllNames(), Scale: 1.5}
		if l, err := ParseLayout(layout); err == nil {
			options.Changes.Layouts = []Layout{l}
		}
		report, err := Ask(t.Context(), &objects, options)
		if err != nil {
			if strings.HasPrefix(err.Error(), "place the pods") {
				t.Fatal(err)
			}
			return
		}
		for _, s := range append(report.WhatIf, report.Now) {
			if s.Held < 0 || s.Held > s.GPUs {
				t.Fatalf("%s: %v of %v GPUs are held", s.Policy, s.Held, s.GPUs)
			}
		}
	})
}

// BenchmarkAsk answers a question about 1,000 nodes and 10,000 pods.
func BenchmarkAsk(b *testing.B) {
	objects := random(rand.New(rand.NewPCG(1, 1)), 1000, 10_000)
	bind(b, objects, "spread", 1)
	for b.Loop() {
		ask(b, objects, Options{Policies: []string{"pack"}, Seed: 42})
	}
}
