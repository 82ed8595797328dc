package devicemanager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	gpuResource = "nvidia.com/gpu"
	nicResource = "example.com/nic"
	// mixedResource is what the device plugin's GPUs are advertised as on a node that allocates others through DRA.
	mixedResource = "example.com/gpu"
)

// node simulates the parts of a kubelet around its device manager.
type node struct {
	t       testing.TB
	dir     string
	truth   *truth
	cluster *cluster
	// runtime is nil for containers without processes.
	runtime *runtime
	delays  delays
	before  func(ctx context.Context, resource string)
	// client is the kubelet's connection to the API server; nil for a kubelet without a DRA manager.
	client kubernetes.Interface

	// up is locked for reading by every action of the kubelet, and for writing while the kubelet is down.
	up      sync.RWMutex
	manager *manager
	claims  *claimManager // nil without client
	// admission serializes the admission of pods, as the kubelet's main loop does.
	admission sync.Mutex
	workers   sync.WaitGroup

	mu       sync.Mutex
	pods     []*pod
	admitted int
	rejected []string
}

// delays are the maximum delays of the parts of the kubelet; each delay is random.
type delays struct {
	// pull: from admission until the first container starts.
	pull time.Duration
	// notice: from a container's end until the kubelet notices it.
	notice time.Duration
	// cleanup: from then until the pod's cgroup is gone.
	cleanup time.Duration
	// status: from then until the API shows it.
	status time.Duration
}

// pod is a pod of the node.
type pod struct {
	*v1.Pod
	plan plan
	// killed is closed when the pod is to end early.
	killed   chan struct{}
	kill     func()
	finished chan struct{}
	// guarded by node.mu:
	terminal   bool
	removed    bool
	containers []*container
	ended      []string // IDs of containers that have ended
	unprepared error    // of the last prepare or unprepare of its claims
}

// newNode returns a node whose kubelet is down. The paths in its folder are short enough for sockets.
func newNode(t testing.TB, lag time.Duration, delays delays) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &node{t: t, dir: dir, truth: newTruth(), cluster: newCluster(lag), delays: delays}
}

// startKubelet starts the first kubelet; all sources of pods have been seen.
func (n *node) startKubelet() {
	n.t.Helper()
	n.manager = startManager(n.t, managerDeps{dir: n.dir, pods: n, watch: n.truth, before: n.before})
	n.startClaims()
	n.manager.sources.AddSource("api")
	n.t.Cleanup(n.stopManagers)
}

// startClaims starts the DRA manager, if the kubelet has one.
func (n *node) startClaims() {
	n.t.Helper()
	if n.client != nil {
		n.claims = startClaimManager(n.t, n.dir, n.client, n.GetActivePods, n.manager.sources)
	}
}

// stopManagers ends the managers as the end of the kubelet's process does.
func (n *node) stopManagers() {
	n.manager.stop()
	if n.claims != nil {
		n.claims.stop()
	}
}

// GetActivePods implements podresources.PodsProvider: the pods of the kubelet's sources that have not ended for the
// kubelet.
func (n *node) GetActivePods() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var active []*v1.Pod
	for _, p := range n.pods {
		if !p.terminal && !p.removed {
			active = append(active, p.Pod)
		}
	}
	return active
}

// GetPods implements podresources.PodsProvider.
func (n *node) GetPods() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*v1.Pod
	for _, p := range n.pods {
		if !p.removed {
			all = append(all, p.Pod)
		}
	}
	return all
}

// GetPodByName implements podresources.PodsProvider.
func (n *node) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, p := range n.GetPods() {
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// capacity returns the capacity in the node's status.
func (n *node) capacity() int {
	n.up.RLock()
	defer n.up.RUnlock()
	_, allocatable, _ := n.manager.GetCapacity(klog.Logger{})
	pods, mixed := allocatable[gpuResource], allocatable[mixedResource]
	return int(pods.Value() + mixed.Value())
}

// awaitDevices waits until the kubelet has a number of healthy devices of a resource.
func (n *node) awaitDevices(resource string, want int) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		n.up.RLock()
		_, allocatable, _ := n.manager.GetCapacity(klog.Logger{})
		n.up.RUnlock()
		quantity := allocatable[v1.ResourceName(resource)]
		if int(quantity.Value()) == want {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("the kubelet has %d healthy devices of %s, want %d", quantity.Value(), resource, want)
		}
	}
}

// create waits until the scheduler assigns the pod to the node, and lets the kubelet admit and run it. It returns when
// admission has decided.
func (n *node) create(plan plan) *pod {
	p := newPod(plan)
	n.start(p)
	return p
}

// newPod returns a pod that does not exist in the API yet.
func newPod(plan plan) *pod {
	p := &pod{Pod: plan.pod(), plan: plan, killed: make(chan struct{}), finished: make(chan struct{})}
	p.kill = sync.OnceFunc(func() { close(p.killed) })
	return p
}

// start is create for a pod of newPod.
func (n *node) start(p *pod) {
	n.cluster.schedule(p.Pod, p.plan.counted(), n.capacity)
	n.receive(p)
}

// receive lets the kubelet admit and run a pod that the scheduler has assigned to the node.
func (n *node) receive(p *pod) {
	n.up.RLock()
	defer n.up.RUnlock()
	n.admission.Lock()
	defer n.admission.Unlock()
	n.mu.Lock()
	n.pods = append(n.pods, p)
	n.mu.Unlock()
	if err := n.admit(p); err != nil {
		n.reject(p, err)
		return
	}
	n.mu.Lock()
	n.admitted++
	n.mu.Unlock()
	n.workers.Go(func() { n.work(p) })
}

// admit requests the devices of all containers, those of init containers first. The caller holds admission.
func (n *node) admit(p *pod) error {
	for _, container := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		if err := n.manager.allocate(context.Background(), p.Pod, &container); err != nil {
			return err
		}
	}
	return nil
}

// reject fails a pod permanently.
func (n *node) reject(p *pod, err error) {
	n.mu.Lock()
	n.rejected = append(n.rejected, fmt.Sprintf("pod %s (%s): %v", p.Name, p.UID, err))
	p.terminal = true
	n.mu.Unlock()
	n.truth.forget(p.UID)
	n.workers.Go(func() {
		pause(n.delays.status)
		n.cluster.phase(p.UID, v1.PodFailed)
		n.forget(p)
		close(p.finished)
	})
}

// work is a pod's worker: it runs the containers, ends them and updates the API.
func (n *node) work(p *pod) {
	defer close(p.finished)
	if n.runtime != nil {
		n.runtime.makePod(p.UID)
	}
	pause(n.delays.pull)
	if n.prepareClaims(p) {
		n.runContainers(p)
	}
	if p.plan.end == forceDelete {
		n.cluster.remove(p.UID)
		n.up.RLock()
		n.mu.Lock()
		p.removed = true
		n.mu.Unlock()
		n.up.RUnlock()
		time.Sleep(p.plan.linger)
	}
	// Recorded before the processes are killed: otherwise a grant that follows at once would be recorded first.
	n.truth.end(p.UID)
	n.stopContainers(p)
	pause(n.delays.notice)
	n.unprepareClaims(p)
	n.up.RLock()
	n.mu.Lock()
	p.terminal = true
	n.mu.Unlock()
	n.truth.forget(p.UID)
	n.up.RUnlock()
	if n.runtime != nil {
		pause(n.delays.cleanup)
		for _, c := range p.containers {
			c.remove()
		}
		n.runtime.removePod(p.UID)
	}
	pause(n.delays.status)
	n.up.RLock()
	defer n.up.RUnlock()
	n.cluster.phase(p.UID, v1.PodSucceeded)
	if p.plan.end == deleted {
		n.cluster.remove(p.UID)
	}
	n.forget(p)
}

// runContainers runs the init containers in order, beside them the sidecars, and then the others until the pod's time
// is over.
func (n *node) runContainers(p *pod) {
	for i := range p.plan.init {
		step := &p.plan.init[i]
		if !n.run(p, &p.Spec.InitContainers[i]) {
			return
		}
		if step.sidecar {
			continue
		}
		p.sleep(step.life)
		n.stopContainer(p, step.name)
	}
	n.cluster.phase(p.UID, v1.PodRunning)
	for i := range p.Spec.Containers {
		if !n.run(p, &p.Spec.Containers[i]) {
			return
		}
	}
	rounds := p.plan.restarts + 1
	for round := range rounds {
		if round > 0 {
			n.stopContainer(p, p.Spec.Containers[0].Name)
			pause(n.delays.notice)
			if !n.run(p, &p.Spec.Containers[0]) {
				return
			}
		}
		p.sleep(p.plan.life / time.Duration(rounds))
	}
}

// run starts a container, repeatedly as the kubelet does; it returns false when the pod is to end.
func (n *node) run(p *pod, spec *v1.Container) bool {
	for {
		n.up.RLock()
		// A real kubelet does not wait here; it panics when this allocates during an admission (TestFacts).
		n.admission.Lock()
		options, err := n.manager.options(context.Background(), p.Pod, spec)
		n.admission.Unlock()
		var injected []string
		if err == nil && n.claims != nil {
			injected, err = n.claims.injected(p.Pod, spec)
		}
		if err == nil && n.runtime != nil {
			var started *container
			if started, err = n.runtime.start(p.Pod, spec.Name, options, injected); err == nil {
				n.mu.Lock()
				p.containers = append(p.containers, started)
				n.mu.Unlock()
			}
		}
		n.up.RUnlock()
		if err == nil {
			return true
		}
		select {
		case <-p.killed:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stopContainer ends the running container of that name.
func (n *node) stopContainer(p *pod, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range p.containers {
		if c.name == name && !slices.Contains(p.ended, c.id) {
			c.stop()
			p.ended = append(p.ended, c.id)
			if c.forgotten {
				n.truth.lose(p.UID, c.name)
			}
		}
	}
}

func (n *node) stopContainers(p *pod) {
	for _, container := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		n.stopContainer(p, container.Name)
	}
}

// awaitRunning waits until a container of the pod has started.
func (n *node) awaitRunning(p *pod) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		n.mu.Lock()
		started := len(p.containers) > 0
		n.mu.Unlock()
		switch {
		case started:
			return
		case time.Now().After(deadline):
			n.t.Fatalf("no container of pod %s has started", p.Name)
		}
	}
}

// forget removes the state of a pod whose object the kubelet no longer needs.
func (n *node) forget(p *pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = slices.DeleteFunc(n.pods, func(other *pod) bool { return other == p })
}

// restartKubelet ends the kubelet and starts another one, which admits all pods again before it has seen all sources.
// In between, damage changes its folder.
func (n *node) restartKubelet(damage func(dir string)) {
	n.t.Helper()
	n.up.Lock()
	defer n.up.Unlock()
	n.restartAround(damage, func() {
		for _, p := range n.all() {
			if damage != nil {
				n.forgetDevices(p)
			}
			if n.cluster.terminal(p.UID) {
				continue
			}
			if err := n.admit(p); err != nil {
				n.mu.Lock()
				n.rejected = append(n.rejected, fmt.Sprintf("pod %s (%s), admitted again: %v", p.Name, p.UID, err))
				n.mu.Unlock()
				p.kill()
			}
		}
	})
}

// forgetDevices records that the kubelet has lost the devices of a pod.
func (n *node) forgetDevices(p *pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	running := map[string]bool{}
	for _, c := range p.containers {
		if !slices.Contains(p.ended, c.id) {
			c.forgotten, running[c.name] = true, true
		}
	}
	for _, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		if !running[c.Name] {
			n.truth.lose(p.UID, c.Name)
		}
	}
}

func (n *node) all() []*pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

// restartAround restarts the kubelet; first runs before the kubelet has seen all sources.
func (n *node) restartAround(damage func(dir string), first func()) {
	n.t.Helper()
	n.stopManagers()
	if damage != nil {
		damage(n.dir)
	}
	ids, running := containermap.NewContainerMap(), sets.New[string]()
	n.mu.Lock()
	for _, p := range n.pods {
		for _, c := range p.containers {
			ids.Add(string(p.UID), c.name, c.id)
			if !slices.Contains(p.ended, c.id) {
				running.Insert(c.id)
			}
		}
	}
	n.mu.Unlock()
	n.manager = startManager(n.t, managerDeps{dir: n.dir, pods: n, watch: n.truth, before: n.before, ids: ids, running: running})
	first()
	n.startClaims()
	n.manager.sources.AddSource("api")
}

// foreign lists PodResources as a monitor does, until the returned function is called.
func (n *node) foreign(every time.Duration) (stop func() (lists int)) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := grpc.NewClient("unix:"+n.dir+"/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	count := make(chan int, 1)
	go func() {
		defer conn.Close()
		client, lists := podresourcesapi.NewPodResourcesListerClient(conn), 0
		for tick := time.NewTicker(every); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				count <- lists
				return
			case <-tick.C:
				if _, err := client.List(ctx, &podresourcesapi.ListPodResourcesRequest{}); err == nil {
					lists++
				}
			}
		}
	}()
	return sync.OnceValue(func() int { cancel(); return <-count })
}

// sleep lasts until the time is over or the pod is killed.
func (p *pod) sleep(d time.Duration) {
	select {
	case <-p.killed:
	case <-time.After(d):
	}
}

// pause sleeps for a random part of the time.
func pause(most time.Duration) {
	if most > 0 {
		time.Sleep(rand.N(most))
	}
}

// held returns the devices that the device manager has for a pod's containers, for messages.
func (n *node) held(uid types.UID, containers ...string) []string {
	var ids []string
	for _, name := range containers {
		for id := range n.manager.GetDevices(string(uid), name)[gpuResource] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
