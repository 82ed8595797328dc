package evidence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeviceNodesOfAContainer(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"dev/nvidia-caps", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, number := range map[string]uint64{
		"dev/nvidia3": unix.Mkdev(195, 3), "dev/nvidia-caps/nvidia-cap7": unix.Mkdev(236, 7),
		"dev/null": unix.Mkdev(1, 3), "etc/nvidia4": unix.Mkdev(195, 4),
	} {
		err := unix.Mknod(filepath.Join(root, path), unix.S_IFCHR|0o600, int(number))
		if errors.Is(err, unix.EPERM) {
			t.Skip("this user may not make device nodes")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia9"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := deviceNodes(trace.Vendors{nvidia.Traits()}, root)
	if err != nil {
		t.Fatal(err)
	}
	want := []trace.Node{{Path: "/dev/nvidia3", Major: 195, Minor: 3}, {Path: "/dev/nvidia-caps/nvidia-cap7", Major: 236, Minor: 7}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDeviceNodesStayInTheContainer checks that a link in a container's /dev does not make a trace read the host's
// files.
func TestDeviceNodesStayInTheContainer(t *testing.T) {
	for _, target := range []string{"/dev", "../../../../../../dev"} {
		root := t.TempDir()
		if err := os.Symlink(target, filepath.Join(root, "dev")); err != nil {
			t.Fatal(err)
		}
		if nodes, err := deviceNodes(trace.Vendors{nvidia.Traits()}, root); err == nil {
			t.Errorf("a link to %s was followed: %v", target, nodes)
		}
	}
}

func TestPrivileged(t *testing.T) {
	tests := map[string]struct {
		devices string
		want    bool
	}{
		"plain":               {`[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}]`, false},
		"privileged":          {`[{"allow":true,"access":"rwm"}]`, true},
		"opened after closed": {`[{"allow":false,"access":"rwm"},{"allow":true,"access":"rwm"}]`, true},
		"type a":              {`[{"allow":true,"type":"a","access":"rwm"}]`, true},
		"all nodes of a kind": {`[{"allow":true,"type":"c","access":"m"}]`, false},
		"none":                {`[]`, false},
		"nonsense":            {`{`, false},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.json")
			spec := `{"mounts":[{"destination":"/usr/lib/libcuda.so.1","source":"/x"},{"destination":"/etc/hosts","source":"/y"}],"linux":{"resources":{"devices":` + test.devices + `}}}`
			if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			mounts, got := specDetails(trace.Vendors{nvidia.Traits()}, path)
			if got != test.want {
				t.Errorf("privileged %v, want %v", got, test.want)
			}
			if title != "nonsense" && (len(mounts) != 1 || mounts[0].HostPath != "/x") {
				t.Errorf("mounts %v, want the driver's alone", mounts)
			}
		})
	}
}

func TestAsked(t *testing.T) {
	limits := corev1.ResourceList{}
	for name, count := range map[corev1.ResourceName]string{
		"nvidia.com/gpu": "2", "cpu": "4", "memory": "1Gi", "hugepages-2Mi": "2Mi", "vendor.com/nic": "1", "nvidia.com/mig-1g.5gb": "0",
		"requests.kubernetes.io/x": "1",
	} {
		limits[name] = resource.MustParse(count)
	}
	want := []trace.Ask{{Resource: "nvidia.com/gpu", Count: 2}, {Resource: "vendor.com/nic", Count: 1}}
	if diff := cmp.Diff(want, asked(corev1.ResourceRequirements{Limits: limits})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUIDOfAStaticPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "mirror"}}
	if got := podUID(pod); got != "mirror" {
		t.Errorf("plain pod: %q", got)
	}
	pod.Annotations = map[string]string{"kubernetes.io/config.hash": "hash", "kubernetes.io/config.mirror": "hash"}
	if got := podUID(pod); got != "hash" {
		t.Errorf("static pod: %q, want the kubelet's", got)
	}
}

func TestMergedPodResources(t *testing.T) {
	got := merged([]kubelet.Devices{{Resource: "a", IDs: []string{"1"}}, {Resource: "a", IDs: []string{"2"}},
		{Resource: "b", IDs: []string{"3"}}})
	want := []kubelet.Devices{{Resource: "a", IDs: []string{"1", "2"}}, {Resource: "b", IDs: []string{"3"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHoldings(t *testing.T) {
	c := &collector{local: &Local{}}
	source := trace.Source{Kind: trace.Ledger}
	holder := gpu.Holder{Kind: gpu.HolderPod, PodUID: "u1", Resource: "nvidia.com/gpu", Container: "main"}
	c.holding(source, ledger.Holding{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-a", Share: 3}, Holder: holder},
		Containers: []string{"init", "main"}})
	c.holding(source, ledger.Holding{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-b", MIG: "MIG-1"}, Holder: holder}})
	c.holding(source, ledger.Holding{Holding: gpu.Holding{Key: gpu.DeviceKey{GPU: "GPU-c"}}, Pending: true})
	want := []trace.AssignmentFact{
		{Source: source, Pod: trace.Ref{UID: "u1"}, Container: "init", Resource: "nvidia.com/gpu", IDs: []string{"GPU-a::2"}},
		{Source: source, Pod: trace.Ref{UID: "u1"}, Container: "main", Resource: "nvidia.com/gpu", IDs: []string{"GPU-a::2"}},
		{Source: source, Pod: trace.Ref{UID: "u1"}, Container: "main", Resource: "nvidia.com/gpu", IDs: []string{"MIG-1"}},
	}
	if diff := cmp.Diff(want, c.local.Assignments); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNothingToRead checks that each missing source gives its reason, and that no error hides the others.
func TestNothingToRead(t *testing.T) {
	local := Places{}.Collect(context.Background())
	if len(local.Read) != 0 {
		t.Errorf("read %v out of nothing", local.Read)
	}
	missing := map[trace.Kind]bool{}
	for _, unread := range local.Unread {
		missing[unread.Source.Kind] = true
		if unread.Why == "" {
			t.Errorf("%s does not say why", unread.Source.Kind)
		}
	}
	for _, kind := range []trace.Kind{trace.Checkpoint, trace.PodResources, trace.Directory, trace.CDISpec,
		trace.Process, trace.Ledger, trace.Hardware} {
		if !missing[kind] {
			t.Errorf("%s is neither read nor said to be missing", kind)
		}
	}
}
