package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// stub is a device plugin without state: it grants every request.
type stub struct {
	pluginapi.UnimplementedDevicePluginServer
	resource string
	ids      []string
	// takes is the duration of an Allocate.
	takes time.Duration

	// numa puts the devices on NUMA nodes in turn; zero puts them on none.
	numa int

	mu     sync.Mutex
	refuse error
	// asked are the Allocates, preferred the GetPreferredAllocations.
	asked     [][]string
	preferred []*pluginapi.ContainerPreferredAllocationRequest
	server    *grpc.Server
	socket    string
	dir       string
	ends      chan struct{}
	once      sync.Once
}

// startStub serves and registers a plugin with the kubelet of a folder.
func startStub(t testing.TB, dir, resource string, devices int, takes time.Duration) *stub {
	t.Helper()
	s := newStub(dir, resource, devices, takes)
	s.serve(t)
	s.register(t)
	return s
}

func newStub(dir, resource string, devices int, takes time.Duration) *stub {
	s := &stub{resource: resource, takes: takes, dir: filepath.Join(dir, "device-plugins"),
		socket: "stub-" + filepath.Base(resource) + ".sock", ends: make(chan struct{})}
	for i := range devices {
		s.ids = append(s.ids, fmt.Sprintf("%s-%d", filepath.Base(resource), i))
	}
	return s
}

func (s *stub) serve(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(s.dir, s.socket))
	if err != nil {
		t.Fatal(err)
	}
	s.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s.server, s)
	go s.server.Serve(listener)
	t.Cleanup(s.stop)
}

// stop ends the plugin and clears its calls.
func (s *stub) stop() {
	s.once.Do(func() { close(s.ends) })
	s.server.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.preferred = nil, nil
}

func (s *stub) register(t testing.TB) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: s.socket, ResourceName: s.resource,
		Options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fail makes each Allocate fail until it is called with nil.
func (s *stub) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

var errNoLink = errors.New("the port has no link")

func (s *stub) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (s *stub) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var list []*pluginapi.Device
	for i, id := range s.ids {
		device := &pluginapi.Device{ID: id, Health: pluginapi.Healthy}
		if s.numa > 0 {
			device.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(i % s.numa)}}}
		}
		list = append(list, device)
	}
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	select {
	case <-s.ends:
	case <-stream.Context().Done():
	}
	return nil
}

func (s *stub) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range request.ContainerRequests {
		s.asked = append(s.asked, slices.Sorted(slices.Values(one.DevicesIds)))
	}
	if s.refuse != nil {
		return nil, s.refuse
	}
	response := &pluginapi.AllocateResponse{}
	for range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return response, nil
}

// GetPreferredAllocation prefers what must be included and then the first devices.
func (s *stub) GetPreferredAllocation(_ context.Context,
	request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	response := &pluginapi.PreferredAllocationResponse{}
	for _, one := range request.ContainerRequests {
		s.preferred = append(s.preferred, one)
		chosen := slices.Clone(one.MustIncludeDeviceIDs)
		for _, id := range slices.Sorted(slices.Values(one.AvailableDeviceIDs)) {
			if len(chosen) < int(one.AllocationSize) && !slices.Contains(chosen, id) {
				chosen = append(chosen, id)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: chosen})
	}
	return response, nil
}

// calls returns the Allocates and the GetPreferredAllocations so far.
func (s *stub) calls() (asked [][]string, preferred []*pluginapi.ContainerPreferredAllocationRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked), slices.Clone(s.preferred)
}
