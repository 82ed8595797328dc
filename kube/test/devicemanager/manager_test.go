package devicemanager

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// newManagerImpl is what NewManagerImpl calls with the path of a real node's socket.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(logger klog.Logger, socketPath string, topology []cadvisorapi.Node,
	store topologymanager.Store) (*devicemanager.ManagerImpl, error)

// quiet returns a context with a logger that discards everything.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// manager is the kubelet's device manager with its PodResources server, over a folder that replaces /var/lib/kubelet.
type manager struct {
	*devicemanager.ManagerImpl
	dir     string
	sources *sources
	server  *grpc.Server
	serving sync.WaitGroup
}

// managerDeps is what the rest of the kubelet passes to a manager.
type managerDeps struct {
	dir  string
	pods podresources.PodsProvider
	// watch sees each Allocate; nil for none.
	watch *truth
	// ids and running are the containers that the runtime had at the start.
	ids     containermap.ContainerMap
	running sets.Set[string]
	// before is called before each Allocate reaches the plugin; nil for nothing.
	before func(ctx context.Context, resource string)
	// affinity is the Topology Manager; nil for one without a policy.
	affinity topologymanager.Store
}

// sources reports whether all sources of pods were seen.
type sources struct {
	mu    sync.Mutex
	ready bool
}

func (s *sources) AddSource(string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
}

func (s *sources) AllReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// startManager starts a device manager as a kubelet does, before any source of pods was seen.
func startManager(t testing.TB, deps managerDeps) *manager {
	t.Helper()
	logger := klog.Logger{}
	socket := filepath.Join(deps.dir, "device-plugins", "kubelet.sock")
	if deps.affinity == nil {
		deps.affinity = topologymanager.NewFakeManager(logger)
	}
	impl, err := newManagerImpl(logger, socket, nil, deps.affinity)
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{ManagerImpl: impl, dir: deps.dir, sources: &sources{}}
	if deps.watch != nil || deps.before != nil {
		// The manager registers itself as the handler of plugin connections at its registration server; here the calls
		// pass through the harness first.
		server, err := plugin.NewServer(logger, socket, impl, &watchedPlugins{ManagerImpl: impl, deps: deps})
		if err != nil {
			t.Fatal(err)
		}
		field := reflect.ValueOf(impl).Elem().FieldByName("server")
		reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(server))
	}
	if deps.ids == nil {
		deps.ids = containermap.NewContainerMap()
	}
	if err := impl.Start(logger, deps.pods.GetActivePods, m.sources, deps.ids, deps.running); err != nil {
		t.Fatal(err)
	}
	m.servePodResources(t, deps.pods)
	return m
}

func (m *manager) servePodResources(t testing.TB, pods podresources.PodsProvider) {
	t.Helper()
	dir := filepath.Join(m.dir, "pod-resources")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubelet.sock")
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx := quiet(context.Background())
	m.server = grpc.NewServer(apisgrpc.WithRateLimiter(ctx, "podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens))
	podresourcesapi.RegisterPodResourcesListerServer(m.server, podresources.NewV1PodResourcesServer(ctx, podresources.PodResourcesProviders{
		Pods: pods, Devices: devices{m.ManagerImpl}, Cpus: nothing{}, Memory: nothing{}, DynamicResources: nothing{},
	}))
	m.serving.Go(func() { m.server.Serve(listener) })
}

// stop ends the manager as the end of the kubelet's process does: its streams break and its memory is lost.
func (m *manager) stop() {
	m.Stop(klog.Logger{})
	m.server.Stop()
	m.serving.Wait()
}

// allocate allocates devices for a container, as admission does.
func (m *manager) allocate(ctx context.Context, pod *v1.Pod, container *v1.Container) error {
	ctx = context.WithValue(quiet(ctx), askerKey{}, askerOf(pod, container))
	return m.Allocate(ctx, pod, container, lifecycle.AddOperation)
}

// options returns the run options of a container, as a pod's worker requests them before the start.
func (m *manager) options(ctx context.Context, pod *v1.Pod, container *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	ctx = context.WithValue(quiet(ctx), askerKey{}, askerOf(pod, container))
	return m.GetDeviceRunContainerOptions(ctx, pod, container)
}

// asker is, in a context, the container for which the device manager works.
type (
	askerKey struct{}
	asker    struct {
		pod       types.UID
		container string
		// init is true for a plain init container.
		init bool
	}
)

func askerOf(pod *v1.Pod, container *v1.Container) asker {
	plain := slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == container.Name && c.RestartPolicy == nil
	})
	return asker{pod.UID, container.Name, plain}
}

// watchedPlugins connects plugins to the manager and shows their Allocates to the harness.
type watchedPlugins struct {
	*devicemanager.ManagerImpl
	deps managerDeps
}

func (w *watchedPlugins) PluginConnected(ctx context.Context, resource string, p plugin.DevicePlugin) error {
	return w.ManagerImpl.PluginConnected(ctx, resource, watchedPlugin{p, w.deps})
}

type watchedPlugin struct {
	plugin.DevicePlugin
	deps managerDeps
}

func (w watchedPlugin) API() pluginapi.DevicePluginClient {
	return watchedCalls{w.DevicePlugin.API(), w.Resource(), w.deps}
}

type watchedCalls struct {
	pluginapi.DevicePluginClient
	resource string
	deps     managerDeps
}

func (w watchedCalls) Allocate(ctx context.Context, request *pluginapi.AllocateRequest,
	opts ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	if w.deps.before != nil {
		w.deps.before(ctx, w.resource)
	}
	if w.deps.watch == nil || w.resource != gpuResource && w.resource != mixedResource {
		return w.DevicePluginClient.Allocate(ctx, request, opts...)
	}
	who, _ := ctx.Value(askerKey{}).(asker)
	offer := w.deps.watch.offered(who, request.ContainerRequests[0].DevicesIds)
	response, err := w.DevicePluginClient.Allocate(ctx, request, opts...)
	w.deps.watch.answered(offer, err)
	return response, err
}

// devices adapts the device manager to the PodResources server, as the kubelet's container manager does.
type devices struct{ *devicemanager.ManagerImpl }

func (d devices) GetDevices(pod, container string) []*podresourcesapi.ContainerDevices {
	return flat(d.ManagerImpl.GetDevices(pod, container))
}

func (d devices) GetAllocatableDevices(logger klog.Logger) []*podresourcesapi.ContainerDevices {
	return flat(d.ManagerImpl.GetAllocatableDevices(logger))
}

func flat(all devicemanager.ResourceDeviceInstances) []*podresourcesapi.ContainerDevices {
	var list []*podresourcesapi.ContainerDevices
	for resource, instances := range all {
		for id := range instances {
			list = append(list, &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
		}
	}
	return list
}

// nothing is a kubelet without exclusive CPUs, memory and dynamic resources.
type nothing struct{}

func (nothing) GetCPUs(*v1.Pod, *v1.Container) []int64                              { return nil }
func (nothing) GetPodCPUs(string) []int64                                           { return nil }
func (nothing) GetAllocatableCPUs() []int64                                         { return nil }
func (nothing) GetAllocatableMemory(klog.Logger) []*podresourcesapi.ContainerMemory { return nil }
func (nothing) GetPodMemory(klog.Logger, string) []*podresourcesapi.ContainerMemory { return nil }
func (nothing) GetMemory(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesapi.ContainerMemory {
	return nil
}
func (nothing) GetDynamicResources(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesapi.DynamicResource {
	return nil
}
