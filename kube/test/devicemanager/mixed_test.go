package devicemanager

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// settles is how long the agent and the kubelet may take until they agree after a change. The agent reads its configuration
// file every second.
const settles = 20 * time.Second

// mixed is a node whose agent allocates some GPUs through DRA and the others through the device plugin.
type mixed struct {
	*node
	server  string // the URL of the API server
	options agentOptions
	stop    func() // ends the agent
	// uuids are the GPUs by index.
	uuids []gpu.UUID
	// nodes are the GPUs by their device node.
	nodes map[string]gpu.UUID
	// readLog is how much of the agent's log was checked.
	readLog int
	// throughDRA is the wanted API of each GPU, as the configuration file has it.
	throughDRA []bool
	// layouts are the GPUs that have a MIG layout; no pod requests one of their MIG devices.
	layouts []bool
	// partitions is true when GPUs have had MIG layouts.
	partitions bool
	// faulty are the GPUs with a fault.
	faulty    map[gpu.UUID]bool
	scheduler *scheduler
	claimed   int // the number of claims so far
	// admin are the names of the claims for admin access; guarded by node.mu.
	admin map[string]bool
}

// newMixed returns a node with a running kubelet and a running agent; the GPUs of the indices in dra are allocated through DRA.
func newMixed(t testing.TB, profile string, gpus int, dra ...int) *mixed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: not root: containers need cgroups and device nodes of their own (try: sudo make test)")
	}
	m := &mixed{node: newNode(t, watchLag, delays{}), throughDRA: make([]bool, gpus), layouts: make([]bool, gpus), nodes: map[string]gpu.UUID{}, faulty: map[gpu.UUID]bool{}, admin: map[string]bool{}}
	m.runtime = newRuntime(t, filepath.Join(m.dir, "containerd"), filepath.Join(m.dir, "cdi"))
	m.server = m.cluster.serve(t)
	var err error
	if m.options, err = connect(m.server, m.dir); err != nil {
		t.Fatal(err)
	}
	m.client = m.options.kube
	m.scheduler = newScheduler(t, m.client)
	m.startKubelet()
	if m.options.machine, err = sim.Create(filepath.Join(m.dir, "sim"), profile); err != nil {
		t.Fatal(err)
	}
	described, err := m.options.machine.Show()
	if err != nil || len(described.GPUs) != gpus {
		t.Fatalf("%s has %d GPUs, want %d: %v", profile, len(described.GPUs), gpus, err)
	}
	for _, g := range described.GPUs {
		m.uuids = append(m.uuids, gpu.UUID(g.UUID))
		m.nodes[fmt.Sprintf("/dev/nvidia%d", g.Minor)] = gpu.UUID(g.UUID)
	}
	for _, i := range dra {
		m.throughDRA[i] = true
	}
	m.configure()
	m.stop = m.startAgent(m.options)
	t.Cleanup(func() { m.stop() })
	m.awaitSettled()
	return m
}

// connect returns the options of an agent of the node in dir, without hardware.
func connect(server, dir string) (with agentOptions, err error) {
	connection := &rest.Config{Host: server, QPS: 1000, Burst: 1000, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	with.file = filepath.Join(dir, "config.yaml")
	if with.kube, err = kubernetes.NewForConfig(connection); err != nil {
		return with, err
	}
	with.api, err = dynamic.NewForConfig(connection)
	return with, err
}

// configure writes the agent's configuration file.
func (m *mixed) configure() {
	m.t.Helper()
	text := "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\nresourceName: " + mixedResource + "\ngpus:\n"
	for i, id := range m.uuids {
		text += "- select: {uuid: [" + string(id) + "]}\n"
		if m.throughDRA[i] {
			text += "  allocation: {api: dra}\n"
		}
		switch {
		case m.layouts[i] && m.throughDRA[i]:
			text += "  mig: {devices: {3g.40gb: 2}}\n"
		case m.layouts[i]: // one name is served by one API
			text += "  mig: {devices: {1g.10gb: 7}}\n"
		case m.partitions:
			text += "  mig: {layout: all-disabled}\n"
		}
	}
	next := m.options.file + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(next, m.options.file); err != nil {
		m.t.Fatal(err)
	}
}

// restartAgent ends the agent and starts another one, which gets the pod's UID of the first: its container has restarted.
func (m *mixed) restartAgent() {
	m.t.Helper()
	m.stop()
	m.stop = m.startAgent(m.options)
}

// agentState is what the tests read of the agent's state.
type agentState struct {
	Ready     string
	Holdings  []ledger.Holding
	Inventory struct {
		GPUs []struct {
			UUID   gpu.UUID
			Health struct{ State gpu.State }
		}
	}
}

// works reports whether the agent has found a GPU without a fault.
func (s *agentState) works(id gpu.UUID) bool {
	for _, g := range s.Inventory.GPUs {
		if g.UUID == id {
			return g.Health.State == gpu.Healthy
		}
	}
	return false
}

// state reads the agent's state over its socket.
func (m *mixed) state() (state agentState, err error) {
	text, err := m.stateText()
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	return state, err
}

func (m *mixed) stateText() ([]byte, error) {
	return pages.Client{Socket: filepath.Join(m.dir, "state", pages.Name)}.Get(context.Background(), "/debug/state")
}

// await waits until check returns nil.
func (m *mixed) await(what string, check func() error) {
	m.t.Helper()
	m.awaitWithin(settles, what, check)
}

// awaitWithin is await with another limit.
func (m *mixed) awaitWithin(limit time.Duration, what string, check func() error) {
	m.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			text, _ := m.stateText()
			config, _ := os.ReadFile(m.options.file)
			m.t.Logf("the state of the agent:\n%s\nits configuration:\n%s", text, config)
			m.t.Fatalf("after %s it is not true that %s: %v", limit, what, err)
		}
	}
}

// awaitSettled waits until each GPU that nobody holds is offered through the API that the configuration names, and the kubelet has
// registered both front ends. A GPU with a fault is left out.
func (m *mixed) awaitSettled() {
	m.t.Helper()
	m.await("each free GPU is offered through the configured API", func() error {
		state, err := m.state()
		if err != nil {
			return err
		}
		if state.Ready != "yes" {
			return fmt.Errorf("not ready: %s", state.Ready)
		}
		advertised, published := m.advertised(), m.scheduler.sliced()
		for i, id := range m.uuids {
			if m.faulty[id] || !state.works(id) || slices.ContainsFunc(state.Holdings, func(h ledger.Holding) bool { return h.Key.GPU == id }) {
				continue
			}
			dra, layout := m.throughDRA[i], m.layouts[i]
			if advertised[id] != (!dra && !layout) || (published[id] != "") != (dra && !layout) {
				return fmt.Errorf("GPU %d: advertised %v, published as %q, through DRA %v, with a layout %v", i, advertised[id], published[id], dra, layout)
			}
		}
		if slices.Contains(m.throughDRA, true) {
			return m.registered()
		}
		return nil
	})
}

// registered returns an error while the kubelet has not registered the DRA driver.
func (m *mixed) registered() error {
	m.up.RLock()
	defer m.up.RUnlock()
	return m.claims.registered(pool.DefaultDriver)
}

// advertised returns the GPUs that the kubelet counts as allocatable.
func (m *mixed) advertised() map[gpu.UUID]bool {
	m.up.RLock()
	defer m.up.RUnlock()
	list := map[gpu.UUID]bool{}
	for _, resource := range flat(m.manager.GetAllocatableDevices(klog.Logger{})) {
		for _, id := range resource.DeviceIds {
			list[gpu.UUID(id)] = true
		}
	}
	return list
}

// scheduler allocates claims from the published slices, with the allocator of kube-scheduler.
type scheduler struct {
	t       testing.TB
	client  kubernetes.Interface
	classes classes
	cel     *cel.Cache

	mu sync.Mutex
	// names are the GPUs by the names of all devices that were ever seen in a slice.
	names map[string]gpu.UUID
}

func newScheduler(t testing.TB, client kubernetes.Interface) *scheduler {
	t.Helper()
	made, err := class.Classes(class.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	s := &scheduler{t: t, client: client, names: map[string]gpu.UUID{}, classes: classes{}, cel: cel.NewCache(100, cel.Features{})}
	for i := range made {
		s.classes[made[i].Name] = &made[i]
	}
	return s
}

// classes is a lister of DeviceClasses.
type classes map[string]*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if one := c[name]; one != nil {
		return one, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

func (c classes) List() (list []*resourceapi.DeviceClass, _ error) {
	for _, one := range c {
		list = append(list, one)
	}
	return list, nil
}

func (s *scheduler) slices() []*resourceapi.ResourceSlice {
	s.t.Helper()
	list, err := s.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*resourceapi.ResourceSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
		for _, device := range list.Items[i].Spec.Devices {
			s.names[device.Name] = uuidOf(device)
		}
	}
	return all
}

// gpu returns the GPU of a device by its name.
func (s *scheduler) gpu(device string) gpu.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[device]
}

// sliced returns the names of the devices in the slices by their GPU.
func (s *scheduler) sliced() map[gpu.UUID]string {
	s.t.Helper()
	named := map[gpu.UUID]string{}
	for _, slice := range s.slices() {
		for _, device := range slice.Spec.Devices {
			named[uuidOf(device)] = device.Name
		}
	}
	return named
}

func uuidOf(device resourceapi.Device) gpu.UUID {
	if uuid := device.Attributes["uuid"].StringValue; uuid != nil {
		return gpu.UUID(*uuid)
	}
	return ""
}

// allocated returns the claims that have an allocation.
func (s *scheduler) allocated() []resourceapi.ResourceClaim {
	s.t.Helper()
	list, err := s.client.ResourceV1().ResourceClaims("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// claim creates a claim for a number of GPUs, with its allocation, reserved for pods; false when it does not fit.
func (s *scheduler) claim(name string, gpus int, admin bool, pods ...*v1.Pod) (*resourceapi.ResourceClaim, bool) {
	s.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: pool.DefaultDriver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(gpus), AdminAccess: &admin,
	}}}
	taken := sets.New[structured.DeviceID]()
	for _, other := range s.allocated() {
		for _, result := range other.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			taken.Insert(structured.MakeDeviceID(result.Driver, result.Pool, result.Device))
		}
	}
	state := structured.AllocatedState{AllocatedDevices: taken, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	features := structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true}
	allocator, err := structured.NewAllocator(context.Background(), features, state, s.classes, s.slices(), s.cel)
	if err != nil {
		s.t.Fatal(err)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	results, err := allocator.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) == 0 {
		return nil, false // An error here is a pool of which not all slices are there yet.
	}
	claim.Status.Allocation = &results[0]
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	}
	made, err := s.client.ResourceV1().ResourceClaims("default").Create(context.Background(), claim, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return made, true
}

// release deletes a claim whose pods have ended.
func (s *scheduler) release(claim *resourceapi.ResourceClaim) {
	s.t.Helper()
	if err := s.client.ResourceV1().ResourceClaims("default").Delete(context.Background(), claim.Name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// claimed is a claim with the pods that use it.
type claimed struct {
	*resourceapi.ResourceClaim
	pods []*pod
}

// claimPods creates a claim for a number of GPUs and the pods that share it; false when it does not fit.
func (m *mixed) claimPods(gpus, pods int) (*claimed, bool) {
	m.t.Helper()
	return m.claimPodsFor(gpus, pods, false)
}

// claimPodsFor is claimPods, or for admin access, which holds nothing.
func (m *mixed) claimPodsFor(gpus, pods int, admin bool) (*claimed, bool) {
	m.t.Helper()
	m.mu.Lock()
	m.claimed++
	name := fmt.Sprintf("claim-%d", m.claimed)
	m.admin[name] = admin
	m.mu.Unlock()
	made := &claimed{}
	var objects []*v1.Pod
	for i := range pods {
		p := newPod(plan{name: fmt.Sprintf("%s-pod-%d", name, i), main: []step{{name: "main"}}, life: forever, end: deleted, claims: []string{name}})
		made.pods, objects = append(made.pods, p), append(objects, p.Pod)
	}
	var ok bool
	if made.ResourceClaim, ok = m.scheduler.claim(name, gpus, admin, objects...); !ok {
		return nil, false
	}
	for _, p := range made.pods {
		m.cluster.trySchedule(p.Pod, 0, 0)
		m.receive(p)
	}
	return made, true
}

// forever is the life of pods that a test ends.
const forever = 24 * time.Hour

// end ends the pods of a claim and deletes it when they have ended.
func (m *mixed) end(c *claimed) {
	m.t.Helper()
	for _, p := range c.pods {
		p.kill()
	}
	for _, p := range c.pods {
		<-p.finished
	}
	m.scheduler.release(c.ResourceClaim)
}

// gpusOf returns the GPUs of an allocated claim.
func (m *mixed) gpusOf(claim *resourceapi.ResourceClaim) []gpu.UUID {
	var list []gpu.UUID
	for _, result := range claim.Status.Allocation.Devices.Results {
		list = append(list, m.scheduler.gpu(result.Device))
	}
	return list
}
