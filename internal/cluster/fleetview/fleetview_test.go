package fleetview

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

const whole = "nvidia.com/gpu"

func quantities(pairs map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, amount := range pairs {
		list[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return list
}

func kubeNode(allocatable map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: quantities(allocatable)}}
}

// gpuNode returns a GPUNode of healthy whole GPUs, all linked, which options change.
func gpuNode(gpus int, options ...func(*v1alpha1.GPUNode)) *v1alpha1.GPUNode {
	node := &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Summary.Model = "A100"
	for i := range gpus {
		node.Status.Devices = append(node.Status.Devices, v1alpha1.GPUDevice{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: whole},
		})
		row := slices.Repeat([]string{"NV12"}, gpus)
		row[i] = "X"
		node.Status.Topology = append(node.Status.Topology, strings.Join(row, " "))
	}
	for _, option := range options {
		option(node)
	}
	return node
}

func health(gpu int, state string) func(*v1alpha1.GPUNode) {
	return func(n *v1alpha1.GPUNode) { n.Status.Devices[gpu].Health.State = state }
}

func held(gpu int, holders ...v1alpha1.Holder) func(*v1alpha1.GPUNode) {
	return func(n *v1alpha1.GPUNode) { n.Status.Devices[gpu].Holders = holders }
}

func pod(uid string) v1alpha1.Holder { return v1alpha1.Holder{Kind: "Pod", PodUID: uid} }

func replicated(gpu, replicas int) func(*v1alpha1.GPUNode) {
	return func(n *v1alpha1.GPUNode) {
		n.Status.Devices[gpu].Offered = &v1alpha1.DeviceOffer{Resource: whole + ".shared", Sharing: "timeSlicing", Replicas: replicas, RefusesMany: true}
	}
}

func packed(n *v1alpha1.GPUNode) {
	n.Status.Config.SharedDevicesAllocationPolicy = v1alpha1.PolicyPacked
}

// partitioned gives a GPU MIG devices: profile, start and size of each.
func partitioned(gpu int, devices ...v1alpha1.MIGDevice) func(*v1alpha1.GPUNode) {
	return func(n *v1alpha1.GPUNode) {
		d := &n.Status.Devices[gpu]
		d.Offered, d.MIGEnabled, d.MIGDevices = nil, true, devices
		d.MIGProfiles = []v1alpha1.MIGProfile{{Name: "7g.40gb", Size: 8, Starts: []int{0}}}
	}
}

func mig(uuid, profile string, start, size int, holders ...v1alpha1.Holder) v1alpha1.MIGDevice {
	return v1alpha1.MIGDevice{UUID: uuid, Profile: profile, Start: start, Size: size, Offered: &v1alpha1.DeviceOffer{Resource: "nvidia.com/mig-" + profile}, Holders: holders}
}

func wants(uid string, requests ...fleet.Shape) Pod { return Pod{UID: uid, Requests: requests} }

func of(resource string, n int32) fleet.Shape { return fleet.Shape{Resource: resource, GPUs: n} }

// show writes the GPUs of a view: resource, state and what is free; then who has which, r for reported and p for predicted.
func show(v *View) string {
	var words []string
	for _, g := range v.Node.GPUs {
		words = append(words, fmt.Sprintf("%s:%s:%d/%d", strings.TrimPrefix(g.Resource, "nvidia.com/"), g.State, g.Free, max(g.Size, g.Unit)))
	}
	var pods []string
	for uid, h := range v.Holdings {
		letter := "p"
		if h.Reported {
			letter = "r"
		}
		for _, gpus := range h.GPUs {
			pods = append(pods, fmt.Sprintf("%s=%s%v", uid, letter, slices.Collect(gpus.All())))
		}
	}
	slices.Sort(pods)
	return strings.Join(append(words, pods...), " ")
}

func TestBuild(t *testing.T) {
	all := map[string]string{"cpu": "8", "memory": "64Gi", whole: "8", whole + ".shared": "8", "nvidia.com/mig-1g.5gb": "8", "nvidia.com/mig-3g.20gb": "8"}
	tests := map[string]struct {
		node     *v1alpha1.GPUNode
		has      map[string]string
		pods     []Pod
		claimed  map[string]bool
		want     string
		wantNote string
		counted  bool
	}{
		"free":                 {node: gpuNode(2), want: "gpu:usable:1000/1000 gpu:usable:1000/1000"},
		"reported":             {node: gpuNode(2, held(1, pod("a"))), pods: []Pod{wants("a", of(whole, 1))}, want: "gpu:usable:1000/1000 gpu:usable:0/1000 a=r[1]"},
		"predicted":            {node: gpuNode(2), pods: []Pod{wants("a", of(whole, 1))}, want: "gpu:usable:0/1000 gpu:usable:1000/1000 a=p[0]"},
		"as it was predicted":  {node: gpuNode(2), pods: []Pod{{UID: "a", Requests: []fleet.Shape{of(whole, 1)}, Assumed: [][]string{{"GPU-1"}}}}, want: "gpu:usable:1000/1000 gpu:usable:0/1000 a=p[1]"},
		"predicted, but taken": {node: gpuNode(2, held(1, pod("b"))), pods: []Pod{{UID: "a", Requests: []fleet.Shape{of(whole, 1)}, Assumed: [][]string{{"GPU-1"}}}, wants("b", of(whole, 1))}, want: "gpu:usable:0/1000 gpu:usable:0/1000 a=p[0] b=r[1]"},
		"predicted, but gone":  {node: gpuNode(2), pods: []Pod{{UID: "a", Requests: []fleet.Shape{of(whole, 1)}, Assumed: [][]string{{"GPU-7"}}}}, want: "gpu:usable:0/1000 gpu:usable:1000/1000 a=p[0]"},
		"two containers, the first of which runs": {node: gpuNode(4, held(2, pod("a"))), pods: []Pod{wants("a", of(whole, 1), of(whole, 2))},
			want: "gpu:usable:0/1000 gpu:usable:0/1000 gpu:usable:0/1000 gpu:usable:1000/1000 a=p[0 1] a=p[2]"},
		"the pod has ended":         {node: gpuNode(2, held(0, pod("gone"))), want: "gpu:usable:1000/1000 gpu:usable:1000/1000"},
		"a claim and an orphan":     {node: gpuNode(2, held(0, v1alpha1.Holder{Kind: "Claim", ID: "c"}), held(1, v1alpha1.Holder{Kind: "Orphan", PodUID: "x"})), want: "gpu:usable:0/1000 gpu:usable:0/1000"},
		"a kind of a newer version": {node: gpuNode(1, held(0, v1alpha1.Holder{Kind: "Lease"})), want: "gpu:usable:0/1000"},
		"allocated to a claim":      {node: gpuNode(2), claimed: map[string]bool{"GPU-1": true}, want: "gpu:usable:1000/1000 gpu:usable:0/1000"},
		"health": {node: gpuNode(5, health(0, "Degraded"), health(1, "Draining"), health(2, "NeedsReset"), health(3, "Confused")),
			want: "gpu:degraded:1000/1000 gpu:draining:1000/1000 gpu:gone:1000/1000 gpu:gone:1000/1000 gpu:usable:1000/1000"},
		"excluded, not offered": {node: gpuNode(3, func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Excluded = true; n.Status.Devices[1].Offered = nil }), want: "gpu:usable:1000/1000"},
		"replicas":              {node: gpuNode(1, replicated(0, 4), held(0, pod("a"), pod("gone"))), pods: []Pod{wants("a", of(whole+".shared", 1))}, want: "gpu.shared:usable:750/1000 a=r[0]"},
		"replicas, distributed": {node: gpuNode(2, replicated(0, 4), replicated(1, 4)), pods: []Pod{wants("a", of(whole+".shared", 1)), wants("b", of(whole+".shared", 1))},
			want: "gpu.shared:usable:750/1000 gpu.shared:usable:750/1000 a=p[0] b=p[1]"},
		"replicas, packed": {node: gpuNode(2, replicated(0, 4), replicated(1, 4), packed), pods: []Pod{wants("a", of(whole+".shared", 1)), wants("b", of(whole+".shared", 1))},
			want: "gpu.shared:usable:500/1000 gpu.shared:usable:1000/1000 a=p[0] b=p[0]"},
		"replicas that do not divide": {node: gpuNode(1, replicated(0, 3)), pods: []Pod{wants("a", of(whole+".shared", 1)), wants("b", of(whole+".shared", 1)), wants("c", of(whole+".shared", 1))},
			want: "gpu.shared:usable:0/999 a=p[0] b=p[0] c=p[0]"},
		"MIG devices": {node: gpuNode(1, partitioned(0, mig("M1", "3g.20gb", 0, 4), mig("M2", "1g.5gb", 4, 1, pod("a")), mig("M3", "1g.5gb", 5, 1))), pods: []Pod{wants("a", of("nvidia.com/mig-1g.5gb", 1))},
			want: "mig-3g.20gb:usable:500/500 mig-1g.5gb:usable:125/250 a=r[1]"},
		"a MIG device with a fault": {node: gpuNode(1, partitioned(0, mig("M1", "1g.5gb", 0, 1), func() v1alpha1.MIGDevice {
			m := mig("M2", "1g.5gb", 1, 1)
			m.Health = &v1alpha1.DeviceHealth{State: "Unhealthy"}
			return m
		}())), want: "mig-1g.5gb:usable:125/125 mig-1g.5gb:gone:125/125"},
		"through claims": {node: gpuNode(1, func(n *v1alpha1.GPUNode) { n.Status.Devices[0].Offered = &v1alpha1.DeviceOffer{API: "dra"} }), want: "resource.k8s.io/claim:usable:1000/1000"},
		"the agent does not run": {node: gpuNode(2), has: map[string]string{"cpu": "8", whole: "0"}, want: "gpu:gone:1000/1000 gpu:gone:1000/1000",
			wantNote: "the Node offers no nvidia.com/gpu, although its GPUNode lists healthy GPUs: the agent of the node does not run, or has just started"},
		"the Node offers fewer": {node: gpuNode(4, held(3, pod("a")), held(2, pod("b"))), pods: []Pod{wants("a", of(whole, 1)), wants("b", of(whole, 1))},
			has: map[string]string{"cpu": "8", whole: "3"}, want: "gpu:usable:1000/1000 gpu:gone:1000/1000 gpu:usable:0/1000 gpu:usable:0/1000 a=r[3] b=r[2]",
			wantNote: "the Node offers 3 nvidia.com/gpu, and its GPUNode lists 4: the smaller number counts until they agree"},
		"the Node offers fewer than are held": {node: gpuNode(3, held(0, pod("a"))), pods: []Pod{wants("a", of(whole, 1)), wants("b", of(whole, 1))},
			has: map[string]string{"cpu": "8", whole: "1"}, want: "gpu:usable:0/1000 gpu:usable:0/1000 gpu:gone:1000/1000 a=r[0] b=p[1]",
			wantNote: "the Node offers 1 nvidia.com/gpu, and its GPUNode lists 3"},
		"the Node offers more": {node: gpuNode(2), has: map[string]string{"cpu": "8", whole: "8"}, want: "gpu:usable:1000/1000 gpu:usable:1000/1000"},
		"the Node offers the healthy ones": {node: gpuNode(3, health(0, "NeedsReset"), health(1, "Draining")), has: map[string]string{"cpu": "8", whole: "1"},
			want: "gpu:gone:1000/1000 gpu:draining:1000/1000 gpu:usable:1000/1000"},
		"the Node offers fewer replicas": {node: gpuNode(3, replicated(1, 4), replicated(2, 4), held(2, pod("a"))), pods: []Pod{wants("a", of(whole+".shared", 1))},
			has: map[string]string{"cpu": "8", whole: "1", whole + ".shared": "4"}, want: "gpu:usable:1000/1000 gpu.shared:usable:750/1000 gpu.shared:usable:0/1000 a=r[2]",
			wantNote: "the Node offers 4 nvidia.com/gpu.shared, and its GPUNode lists 8"},
		"no GPUNode": {has: map[string]string{"cpu": "8", whole: "3"}, pods: []Pod{wants("a", of(whole, 2))}, counted: true, want: "gpu:usable:0/1000 gpu:usable:0/1000 gpu:usable:1000/1000 a=p[0 1]"},
		"a topology that does not parse": {node: gpuNode(2, func(n *v1alpha1.GPUNode) { n.Status.Topology[1] = "NV12 NV999" }), want: "gpu:usable:1000/1000 gpu:usable:1000/1000",
			wantNote: "the topology of GPUNode n cannot be used, links do not count: parse topology: row 1: "},
		"a topology of another size": {node: gpuNode(3, func(n *v1alpha1.GPUNode) { n.Status.Devices = n.Status.Devices[:2] }), want: "gpu:usable:1000/1000 gpu:usable:1000/1000",
			wantNote: "the topology of GPUNode n cannot be used, links do not count: parse topology: it has 3 rows for 2 GPUs, want one for each"},
		"more GPUs than are supported": {node: gpuNode(65), has: map[string]string{"cpu": "8", whole: "1"}, counted: true, want: "gpu:usable:1000/1000",
			wantNote: "GPUNode n lists 65 GPUs, more than the 64 that are supported; the counts of the Node decide"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.has == nil {
				test.has = all
			}
			in := Input{Node: kubeNode(test.has), Pods: test.pods, CPU: 3000, Memory: 1024, Resources: Resources{}, Claimed: test.claimed}
			if test.node != nil {
				in.Hardware = NewReader().Read(test.node)
				in.Resources.Add(in.Hardware)
			}
			v := Build(in)
			if diff := cmp.Diff(test.want, show(&v)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !strings.HasPrefix(v.Note, test.wantNote) || test.wantNote == "" && v.Note != "" && test.node != nil {
				t.Errorf("note %q; want %q", v.Note, test.wantNote)
			}
			if v.Counted != test.counted || v.Node.FreeCPU != 5000 {
				t.Errorf("counted %v, %d CPU free; want %v and 5000", v.Counted, v.Node.FreeCPU, test.counted)
			}
			if _, err := fleet.New([]fleet.Node{v.Node}, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPCIPaths finds PCIe switches also where NVLinks connect all GPUs; without the paths, as older agents publish it, each GPU counts as
// below a switch of its own.
func TestPCIPaths(t *testing.T) {
	paths := []string{"X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X PXB", "SYS SYS PXB X"}
	for name, test := range map[string]struct {
		paths    []string
		want     []uint8
		wantNote string
	}{
		"with paths":           {paths: paths, want: []uint8{0, 0, 2, 2}},
		"an older agent":       {want: []uint8{0, 1, 2, 3}},
		"paths of other GPUs":  {paths: paths[:3], want: []uint8{0, 0, 0, 0}, wantNote: "the topology of GPUNode n cannot be used, links do not count: parse PCIe topology: it has 3 rows, but the topology has 4, want the same number"},
		"NVLinks for the path": {paths: gpuNode(4).Status.Topology, want: []uint8{0, 0, 0, 0}, wantNote: "the topology of GPUNode n cannot be used, links do not count: parse PCIe topology: row 0: link 1 is NV12, want the letters of a PCIe path"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewReader().Read(gpuNode(4, func(n *v1alpha1.GPUNode) { n.Status.PCITopology = test.paths }))
			var got []uint8
			for i := range h.entries {
				got = append(got, h.entries[i].gpu.Switch)
			}
			if !slices.Equal(got, test.want) || h.Note != test.wantNote {
				t.Errorf("switches %v, want %v; note %q", got, test.want, h.Note)
			}
		})
	}
}

// TestUnreadable: a GPUNode of a newer version costs its node the links, and nothing else.
func TestUnreadable(t *testing.T) {
	v := Build(Input{Node: kubeNode(map[string]string{"cpu": "1", whole: "2"}), Hardware: Unreadable("n", errors.New("devices: want a list"))})
	want := "GPUNode n cannot be read, the counts of the Node decide: devices: want a list"
	if show(&v) != "gpu:usable:1000/1000 gpu:usable:1000/1000" || v.Note != want || !v.Counted || v.Devices(1) != nil {
		t.Errorf("%s, %q, counted %v; want 2 GPUs and %q", show(&v), v.Note, v.Counted, want)
	}
}

// TestBuildAnything: whatever a GPUNode says, the node is one that fleet accepts, no held GPU is free, and the order of pods that are
// reported does not matter.
func TestBuildAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([]string{"Pod", "Claim", "Maintenance", "Orphan", "Lease", ""})
		node := gpuNode(rapid.IntRange(0, 9).Draw(t, "GPUs"))
		var pods []Pod
		for i := range node.Status.Devices {
			d := &node.Status.Devices[i]
			d.Health.State = rapid.SampledFrom([]string{"Healthy", "Degraded", "Gone", "?"}).Draw(t, "health")
			d.Offered = &v1alpha1.DeviceOffer{Resource: rapid.SampledFrom([]string{whole, "", "x.y/z"}).Draw(t, "resource"), Replicas: rapid.IntRange(-3, 5000).Draw(t, "replicas")}
			for range rapid.IntRange(0, 2).Draw(t, "holders") {
				uid := fmt.Sprint(len(pods))
				d.Holders = append(d.Holders, v1alpha1.Holder{Kind: kinds.Draw(t, "kind"), PodUID: uid})
				pods = append(pods, wants(uid, of(whole, 1)))
			}
			for range rapid.IntRange(-3, 9).Draw(t, "MIG devices") {
				d.MIGDevices = append(d.MIGDevices, mig("M", rapid.SampledFrom([]string{"1g", "3g"}).Draw(t, "profile"), rapid.IntRange(-9, 99).Draw(t, "start"), rapid.IntRange(-9, 99).Draw(t, "size")))
			}
		}
		pods = append(pods, wants("new", of(whole, rapid.Int32Range(1, 9).Draw(t, "request"))))
		h := NewReader().Read(node)
		in := Input{Node: kubeNode(map[string]string{"cpu": "8", whole: "9", "x.y/z": "9"}), Hardware: h, Pods: pods, Resources: Resources{}}
		in.Resources.Add(h)
		v := Build(in)
		if _, err := fleet.New([]fleet.Node{v.Node}, 0); err != nil {
			t.Fatal(err)
		}
		for i := range v.Node.GPUs {
			if g := v.Node.GPUs[i]; g.Unit == fleet.Whole && slices.ContainsFunc(h.entries[i].holders, func(h holder) bool { return h.lasting || len(h.pods) > 0 && h.pods[0] != "" }) && g.Free > 0 {
				t.Fatalf("GPU %d is held and free: %+v", i, g)
			}
		}
		for _, p := range pods[:len(pods)-1] {
			if !v.Holdings[p.UID].Reported {
				return
			}
		}
		last := pods[len(pods)-1]
		slices.Reverse(in.Pods[:len(pods)-1])
		in.Pods[len(pods)-1] = last
		if again := Build(in); show(&again) != show(&v) {
			t.Fatalf("the order of pods counts:\n%s\n%s", show(&v), show(&again))
		}
	})
}

func TestRequests(t *testing.T) {
	container := func(pairs map[string]string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Limits: quantities(pairs), Requests: quantities(pairs)}}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container(map[string]string{whole: "1"})
	sidecar.RestartPolicy = &always
	selected := func(p corev1.PodSpec) corev1.PodSpec {
		p.NodeSelector = map[string]string{ProductLabel: "A100"}
		return p
	}
	tests := map[string]struct {
		spec        corev1.PodSpec
		annotations map[string]string
		want        []string
	}{
		"no GPU":         {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{"cpu": "250m", "memory": "1Mi"})}}, want: []string{"0.25 CPU, 1 MiB, no GPU"}},
		"GPUs":           {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{"cpu": "2", "memory": "1", whole: "2"})}}, want: []string{"2 CPU, 1 MiB, 2 nvidia.com/gpu"}},
		"two containers": {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{"cpu": "1", whole: "2"}), container(map[string]string{"cpu": "1", whole: "1"})}}, want: []string{"2 CPU, 0 MiB, 2 nvidia.com/gpu", "0 CPU, 0 MiB, 1 nvidia.com/gpu"}},
		"replicas": {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{whole + ".shared": "2", whole: "1"})}},
			want: []string{"0 CPU, 0 MiB, 1 nvidia.com/gpu", "0 CPU, 0 MiB, 2 nvidia.com/gpu.shared"}},
		"an init container that asks for less": {spec: corev1.PodSpec{InitContainers: []corev1.Container{container(map[string]string{whole: "1"})}, Containers: []corev1.Container{container(map[string]string{whole: "2"})}},
			want: []string{"0 CPU, 0 MiB, 2 nvidia.com/gpu"}},
		"an init container that asks for more": {spec: corev1.PodSpec{InitContainers: []corev1.Container{container(map[string]string{whole: "4"})}, Containers: []corev1.Container{container(map[string]string{whole: "2"})}},
			want: []string{"0 CPU, 0 MiB, 2 nvidia.com/gpu", "0 CPU, 0 MiB, 2 nvidia.com/gpu"}},
		"a sidecar":            {spec: corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container(map[string]string{whole: "2"})}}, want: []string{"0 CPU, 0 MiB, 1 nvidia.com/gpu", "0 CPU, 0 MiB, 2 nvidia.com/gpu"}},
		"a model":              {spec: selected(corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{whole: "1"})}}), want: []string{"0 CPU, 0 MiB, 1 nvidia.com/gpu of A100"}},
		"a huge request":       {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{"cpu": "9e15", "memory": "9E", whole: "1e18"})}}, want: []string{"1099511627.776 CPU, 1099511627776 MiB, 64 nvidia.com/gpu"}},
		"many shared requests": {spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{whole + ".shared": "1e18"})}}, want: []string{"0 CPU, 0 MiB, 64 nvidia.com/gpu.shared"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range (Resources{whole: {Unit: fleet.Whole}}).Requests(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}, Spec: test.spec}) {
				if err := s.Validate(); err != nil {
					t.Error(err)
				}
				got = append(got, s.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for count, want := range map[int]string{2: "m0|m1", maxModels + 1: ""} {
		var names []string
		for i := range count {
			names = append(names, fmt.Sprintf("m%d", i))
		}
		got := (Resources{}).Requests(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{whole: "1"})},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: ProductLabel, Operator: corev1.NodeSelectorOpIn, Values: names}}}}}}}}})
		if got[0].Models.String() != want {
			t.Errorf("%d models: %q; want %q", count, got[0].Models, want)
		}
	}
	heavy := (Resources{}).Requests(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationBandwidth: High, AnnotationHostBandwidth: "low"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{container(map[string]string{whole: "1"})}}})
	if heavy[0].Traffic != fleet.Bandwidth {
		t.Errorf("traffic %b; want that of the memory", heavy[0].Traffic)
	}
}
