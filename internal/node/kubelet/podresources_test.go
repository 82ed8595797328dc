package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// fakeLister responds as kubelet 1.37 does.
type fakeLister struct {
	v1.UnimplementedPodResourcesListerServer
	pods  []*v1.PodResources
	block bool
}

func (f *fakeLister) Get(ctx context.Context, r *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	if f.block {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, pod := range f.pods {
		if pod.Name == r.PodName && pod.Namespace == r.PodNamespace {
			return &v1.GetPodResourcesResponse{PodResources: pod}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

func (f *fakeLister) GetAllocatableResources(context.Context, *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	return &v1.AllocatableResourcesResponse{Devices: []*v1.ContainerDevices{
		device("GPU-b", 1), device("GPU-a", 1, 0),
	}}, nil
}

func device(id string, nodes ...int64) *v1.ContainerDevices {
	d := &v1.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{id}, Topology: &v1.TopologyInfo{}}
	for _, node := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &v1.NUMANode{ID: node})
	}
	return d
}

func serve(t *testing.T, dir string, lister *fakeLister) (stop func()) {
	t.Helper()
	socket := filepath.Join(dir, PodResourcesSocket)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1.RegisterPodResourcesListerServer(server, lister)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	return func() { server.Stop(); <-done }
}

// shortDir is short enough for a socket's path.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "kl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestPodResources(t *testing.T) {
	dir := shortDir(t)
	client := NewPodResources(dir)
	ctx := t.Context()
	if _, err := client.Get(ctx, "default", "z"); !errors.Is(err, errNoPodResources) {
		t.Fatalf("before the kubelet: %v", err)
	}
	lister := &fakeLister{pods: []*v1.PodResources{
		{Name: "z", Namespace: "default", Containers: []*v1.ContainerResources{{Name: "c",
			Devices: []*v1.ContainerDevices{device("GPU-b", 1), device("GPU-a")}}}},
		{Name: "a", Namespace: "default", Containers: []*v1.ContainerResources{{Name: "c", DynamicResources: []*v1.DynamicResource{{
			ClaimName: "one", ClaimNamespace: "default",
			ClaimResources: []*v1.ClaimResource{{DriverName: "gpu.berth.dev", PoolName: "node", DeviceName: "gpu-0",
				CdiDevices: []*v1.CDIDevice{{Name: "k8s.berth.dev/gpu=x"}}}},
		}}}}},
	}}
	stop := serve(t, dir, lister)
	for _, want := range []PodDevices{
		{Namespace: "default", Name: "a", Containers: []ContainerDevices{{Name: "c", Claims: []ClaimDevice{{
			ClaimNamespace: "default", Claim: "one", Driver: "gpu.berth.dev", Pool: "node", Device: "gpu-0", CDINames: []string{"k8s.berth.dev/gpu=x"},
		}}}}},
		{Namespace: "default", Name: "z", Containers: []ContainerDevices{{Name: "c", Devices: []Devices{
			{Resource: "nvidia.com/gpu", IDs: []string{"GPU-a"}}, {Resource: "nvidia.com/gpu", IDs: []string{"GPU-b"},
				NUMANodes: []int64{1}},
		}}}},
	} {
		got, err := client.Get(ctx, "default", want.Name)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("get %s: %v (-want +got):\n%s", want.Name, err, diff)
		}
	}
	if _, err := client.Get(ctx, "default", "none"); !errors.Is(err, ErrNoPod) {
		t.Errorf("no such pod: %v", err)
	}
	devices, err := client.Allocatable(ctx)
	if diff := cmp.Diff([]Devices{
		{Resource: "nvidia.com/gpu", IDs: []string{"GPU-a"}, NUMANodes: []int64{0, 1}}, {Resource: "nvidia.com/gpu",
			IDs: []string{"GPU-b"}, NUMANodes: []int64{1}},
	}, devices); diff != "" || err != nil {
		t.Errorf("allocatable: %v (-want +got):\n%s", err, diff)
	}
	// The kubelet restarts: the socket is removed and created again.
	stop()
	if _, err := client.Get(ctx, "default", "z"); !errors.Is(err, errNoPodResources) {
		t.Errorf("after the kubelet: %v", err)
	}
	stop = serve(t, dir, lister)
	defer stop()
	if _, err := client.Get(ctx, "default", "z"); err != nil {
		t.Errorf("with the next kubelet: %v", err)
	}
	lister.block = true
	client.timeout = time.Millisecond
	if _, err := client.Get(ctx, "default", "z"); err == nil || errors.Is(err, errNoPodResources) {
		t.Errorf("from a kubelet that does not respond: %v", err)
	}
}

// TestPodResourcesDeadSocket uses a socket that was left by a kubelet that has ended.
func TestPodResourcesDeadSocket(t *testing.T) {
	dir := shortDir(t)
	socket := filepath.Join(dir, PodResourcesSocket)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
	if _, err := NewPodResources(dir).Get(t.Context(), "default", "z"); !errors.Is(err, errNoPodResources) {
		t.Errorf("got %v", err)
	}
}
