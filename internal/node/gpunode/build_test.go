package gpunode

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func testGPU(i int) gpu.GPU {
	return gpu.GPU{
		UUID: gpu.UUID("GPU-" + string(rune('a'+i))), Index: i, Minor: i, PCI: gpu.PCIAddress{Bus: uint8(7 + i)},
		Product: "NVIDIA A100-SXM4-40GB", Architecture: "Ampere", ComputeCapability: gpu.Version{Major: 8},
		MemoryBytes: 40 << 30, NUMANode: i / 2,
	}
}

func snapshot() *gpu.Snapshot {
	s := &gpu.Snapshot{
		Vendors:  []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "570.1", CUDA: gpu.Version{Major: 12, Minor: 8}}}},
		GPUs:     []gpu.GPU{testGPU(0), testGPU(1), testGPU(2), testGPU(3)},
		Topology: gpu.NewTopology(4),
		Faults:   []gpu.Cause{{Code: "NVML_TIMEOUT", Message: "a call took too long"}},
	}
	for i := range 4 {
		for k := range i {
			s.Topology.Set(i, k, gpu.Link{Path: gpu.PathSystem})
		}
	}
	s.Topology.Set(0, 1, gpu.Link{Kind: gpu.LinkNVLink, Count: 12, Switched: true})
	s.GPUs[2].Health = gpu.Health{State: gpu.Unhealthy, Recovery: gpu.RecoveryGPUReset, Causes: []gpu.Cause{
		{Code: "XID79", Message: "fell off the bus", Since: time.Date(2026, 9, 1, 10, 0, 0, 999, time.UTC), Recover: "Reboot the node."},
	}}
	s.GPUs[0].Health = gpu.Health{State: gpu.Degraded, Causes: []gpu.Cause{{Code: "THROTTLE_THERMAL", Message: "it is hot"}}}
	s.GPUs[3].Product = "Tesla T4"
	s.GPUs[3].Clique = gpu.Clique{ClusterUUID: "c1", ID: 2}
	s.GPUs[1].DeviceID = 0x20B010DE
	s.GPUs[1].MIG = gpu.MIG{
		Capable: true, Enabled: true, ModeNeedsReset: true,
		Devices: []gpu.MIGDevice{{
			Partition: gpu.Partition{UUID: "MIG-1", Profile: "1g.5gb", MemoryBytes: 5 << 30, Health: gpu.Health{
				State: gpu.Unhealthy, Causes: []gpu.Cause{{Code: "XID94", Message: "a memory error"}},
			}},
			Size: 1,
		}},
		Geometry: gpu.MIGGeometry{MemorySlices: 8, ComputeSlices: 7, Profiles: []gpu.MIGProfile{
			{Name: "1g.5gb", ID: 19, ComputeSlices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7, MemoryBytes: 5 << 30},
			{Name: "3g.20gb", Number: 2, ID: 9, ComputeSlices: 3, Size: 4, Starts: []int{0, 4}, Max: 2, MemoryBytes: 20 << 30},
		}},
	}
	return s
}

func input() Input {
	return Input{
		AgentVersion: "v1.2.3", TopologyManagerPolicy: "best-effort",
		Snapshot: snapshot(), Holdings: holdings(),
		Offered: map[gpu.UUID]v1alpha1.DeviceOffer{
			"GPU-a": {Resource: "nvidia.com/gpu.shared", Sharing: "timeSlicing", Replicas: 4, TimeSlice: "long",
				Draining: "becomes MPS once ml/a has ended"},
			"GPU-d": {Resource: "nvidia.com/gpu", Sharing: "mps", Replicas: 8,
				ClaimMPSLimits: v1alpha1.ClaimMPSLimits{PinnedMemoryMiB: 5120, ActiveThreadPercentage: 12, SingleUser: true}},
			"MIG-1": {Resource: "nvidia.com/mig-1g.5gb"},
			"GPU-x": {Resource: "nvidia.com/gpu"},
		},
		Config: v1alpha1.GPUConfigStatus{Source: "berth-system/berth/node.yaml", MIGLayout: "all-1g.5gb", MIGConfigMap: "berth-system/mig",
			SharedDevicesAllocationPolicy: v1alpha1.PolicyPacked},
		Conditions: []metav1.Condition{
			{Type: "MIGApplied", Status: "False", Reason: "Waiting", Message: "waits for ml/a",
				LastTransitionTime: metav1.NewTime(time.Date(2026, 9, 1, 10, 0, 0, 999, time.UTC))},
			{Type: "ConfigAccepted", Status: "True", Reason: "Accepted",
				LastTransitionTime: metav1.NewTime(time.Date(2026, 9, 1, 9, 0, 0, 0, time.UTC))},
		},
	}
}

func holdings() []gpu.Holding {
	return []gpu.Holding{
		{Key: gpu.DeviceKey{GPU: "GPU-a", Share: 2}, Holder: gpu.Holder{Kind: gpu.HolderPod, Namespace: "ml", Name: "b",
			PodUID: "u2", Container: "main", Resource: "nvidia.com/gpu"}},
		{Key: gpu.DeviceKey{GPU: "GPU-a", Share: 1}, Holder: gpu.Holder{Kind: gpu.HolderPod, Namespace: "ml", Name: "a",
			PodUID: "u1", Container: "main", Resource: "nvidia.com/gpu"}},
		{Key: gpu.DeviceKey{GPU: "GPU-b", MIG: "MIG-1"}, Holder: gpu.Holder{Kind: gpu.HolderOrphan, PodUID: "u3", Container: "main"}},
		{Key: gpu.DeviceKey{GPU: "GPU-c"}, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "u5", Namespace: "ml", Name: "train"}, Requests: []string{"gpus"},
			Pods: []gpu.Pod{{UID: "u6", Namespace: "ml", Name: "train-1"}, {UID: "u7", Namespace: "ml", Name: "train-0"}, {UID: "u8"}}},
		{Key: gpu.DeviceKey{GPU: "GPU-gone"}, Holder: gpu.Holder{Kind: gpu.HolderPod, PodUID: "u4"}},
	}
}

// TestHoldersOfClaims: a GPU that a claim holds names the claim, its requests, and its pods in a fixed order and in a bounded number.
func TestHoldersOfClaims(t *testing.T) {
	pods := func(n int) (from []gpu.Pod, want []v1alpha1.HolderPod) {
		for i := range n {
			from = append(from, gpu.Pod{UID: fmt.Sprintf("u%03d", n-i), Namespace: "ml", Name: fmt.Sprintf("pod-%03d", i)})
			want = append(want, v1alpha1.HolderPod{UID: fmt.Sprintf("u%03d", n-i), Name: fmt.Sprintf("pod-%03d", i)})
		}
		return from, want
	}
	holder := gpu.Holder{Kind: gpu.HolderClaim, ID: "c1", Namespace: "ml", Name: "train"}
	want := v1alpha1.Holder{Kind: "Claim", ID: "c1", Namespace: "ml", Claim: "train", Requests: []string{"big", "small"}}
	for n, more := range map[int]int{0: 0, 1: 0, 16: 0, 17: 1, 256: 240} {
		in := input()
		from, listed := pods(n)
		slices.Reverse(from)
		in.Holdings = []gpu.Holding{{Key: gpu.DeviceKey{GPU: "GPU-a"}, Holder: holder, Requests: []string{"big", "small"}, Pods: from}}
		want.Pods, want.MorePods = listed[:n-more], more
		if diff := cmp.Diff([]v1alpha1.Holder{want}, Build("node-0", in).Status.Devices[0].Holders); diff != "" {
			t.Errorf("%d pods (-want +got):\n%s", n, diff)
		}
	}
}

// TestSharingOfClaims: a holder has what its claim wants of the GPU, unless that is the driver's time slice or not known.
func TestSharingOfClaims(t *testing.T) {
	limits := gpu.MPSLimits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, SingleUser: true}
	for _, test := range []struct {
		slice string
		mps   gpu.MPSLimits
		want  *v1alpha1.ClaimSharing
	}{
		{},
		{slice: gpu.TimeSliceDefault},
		{slice: "short", want: &v1alpha1.ClaimSharing{Mode: "timeSlicing", TimeSlice: "short"}},
		{slice: gpu.TimeSliceDefault, mps: limits, want: &v1alpha1.ClaimSharing{
			Mode: "mps", MPS: &v1alpha1.ClaimMPSLimits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, SingleUser: true}}},
	} {
		in := input()
		in.Holdings = []gpu.Holding{{Key: gpu.DeviceKey{GPU: "GPU-a"}, Holder: gpu.Holder{Kind: gpu.HolderClaim, ID: "c1"}, TimeSlice: test.slice, MPS: test.mps}}
		if diff := cmp.Diff(test.want, Build("node-0", in).Status.Devices[0].Holders[0].Sharing); diff != "" {
			t.Errorf("time slice %q, MPS %+v (-want +got):\n%s", test.slice, test.mps, diff)
		}
	}
}

// TestHoldersKeepTheirNames writes holders of every kind and reads them again.
func TestHoldersKeepTheirNames(t *testing.T) {
	in := input()
	in.Holdings = nil
	want := []gpu.Holder{
		{Kind: gpu.HolderMaintenance, ID: "MIG"},
		{Kind: gpu.HolderPod, Namespace: "ml", Name: "a", PodUID: "u1", Container: "main", Resource: "nvidia.com/gpu"},
		{Kind: gpu.HolderClaim, ID: "c1", Namespace: "ml", Name: "train"},
		{Kind: gpu.HolderClaim, ID: "c2", Namespace: "ml", Name: "train"},
		{Kind: gpu.HolderOrphan, Namespace: "zoo", Name: "b", PodUID: "u2", Container: "main"},
	}
	for _, holder := range want {
		in.Holdings = append(in.Holdings, gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-a"}, Holder: holder})
	}
	var got []gpu.Holder
	for _, holder := range Build("node-0", in).Status.Devices[0].Holders {
		got = append(got, HolderOf(&holder))
		if isClaim := holder.Kind == string(gpu.HolderClaim); isClaim != (holder.Claim != "") || isClaim && holder.Pod != "" {
			t.Errorf("a holder of kind %s has pod %q and claim %q", holder.Kind, holder.Pod, holder.Claim)
		}
	}
	slices.SortFunc(want, func(a, b gpu.Holder) int { return strings.Compare(fmt.Sprint(a.Kind, a), fmt.Sprint(b.Kind, b)) })
	slices.SortFunc(got, func(a, b gpu.Holder) int { return strings.Compare(fmt.Sprint(a.Kind, a), fmt.Sprint(b.Kind, b)) })
	if !slices.Equal(got, want) {
		t.Errorf("holders are %+v, want %+v", got, want)
	}
}

func TestBuildGolden(t *testing.T) {
	got, err := yaml.Marshal(Build("node-0", input()))
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, "testdata/gpunode.yaml", string(got))
}

func TestBuildIgnoresOrder(t *testing.T) {
	want := Build("node-0", input())
	random := rand.New(rand.NewSource(1))
	for range 20 {
		shuffled := append(holdings(), holdings()...)
		random.Shuffle(len(shuffled), func(i, k int) { shuffled[i], shuffled[k] = shuffled[k], shuffled[i] })
		other := input()
		other.Holdings = shuffled
		random.Shuffle(len(other.Conditions), func(i, k int) {
			other.Conditions[i],
				other.Conditions[k] = other.Conditions[k], other.Conditions[i]
		})
		if diff := cmp.Diff(want, Build("node-0", other)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func TestBuildOfNothing(t *testing.T) {
	node := Build("node-0", Input{Snapshot: &gpu.Snapshot{}})
	if node.Status.Driver.Version != "" || node.Status.Summary.GPUs != 0 || node.Name != "node-0" {
		t.Errorf("got %+v", node)
	}
}

// TestSeveralVendors: each vendor's driver is listed and each GPU has its vendor where there are several, and nowhere else.
func TestSeveralVendors(t *testing.T) {
	s := snapshot()
	if status := Build("node-0", Input{Snapshot: s}).Status; status.Drivers != nil || status.Devices[0].Vendor != "" || status.Driver.CUDAVersion != "12.8" {
		t.Errorf("one vendor: drivers %+v, %+v, GPU 0 of %q", status.Driver, status.Drivers, status.Devices[0].Vendor)
	}
	for i := range s.GPUs {
		s.GPUs[i].Vendor = gpu.NVIDIA
	}
	s.GPUs = append([]gpu.GPU{{UUID: "EX-0", Vendor: "example"}}, s.GPUs...)
	s.Vendors = append([]gpu.VendorState{{Name: "example", Driver: gpu.Driver{Version: "1.0"}}}, s.Vendors...)
	status := Build("node-0", Input{Snapshot: s}).Status
	want := []v1alpha1.VendorDriver{
		{Vendor: "example", GPUDriver: v1alpha1.GPUDriver{Version: "1.0"}},
		{Vendor: gpu.NVIDIA, GPUDriver: v1alpha1.GPUDriver{Version: "570.1", CUDAVersion: "12.8"}},
	}
	if diff := cmp.Diff(want, status.Drivers); diff != "" || status.Driver != want[1].GPUDriver {
		t.Errorf("the driver is %+v, all drivers are not (-want +got):\n%s", status.Driver, diff)
	}
	if status.Devices[0].Vendor != "example" || status.Devices[1].Vendor != gpu.NVIDIA || status.Devices[1].Index != 0 {
		t.Errorf("the vendors of the GPUs are %q and %q", status.Devices[0].Vendor, status.Devices[1].Vendor)
	}
	s.Vendors[1].Driver = gpu.Driver{}
	if status := Build("node-0", Input{Snapshot: s}).Status; status.Driver.Version != "1.0" || len(status.Drivers) != 1 {
		t.Errorf("with one driver missing: %+v, %+v", status.Driver, status.Drivers)
	}
}
