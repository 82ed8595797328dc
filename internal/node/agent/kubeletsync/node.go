package kubeletsync

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/podwatch"
)

const (
	// startsWithin is how long the kubelet may take from the allocation of a pod's devices until the pod has a cgroup.
	startsWithin = 30 * time.Second
	// askWithin bounds everything that one Ask waits for.
	askWithin = 200 * time.Millisecond
	// askStep is the pause between two looks at what the watch has learned.
	askStep = 10 * time.Millisecond
	// maxTries bounds the Gets for one pod in one Ask.
	maxTries = 3
	// freshFor is how long a look at the pods' cgroups shows that a pod was never started.
	freshFor = time.Second
	// getsPerSecond bounds the Gets to the kubelet, which allows 100 per second to all its clients together.
	getsPerSecond = 10
)

// Pods is the watch of this node's pods.
type Pods interface {
	Pod(uid string) (podwatch.Pod, podwatch.State)
	Resolve(ctx context.Context, uids []string) error
	Current() (bool, error)
}

// Containers shows which containers and pods there are.
type Containers interface {
	Live() ([]kubelet.Container, error)
	// InPod is Live for one pod, and tells whether it has a cgroup.
	InPod(uid string) (living []kubelet.Container, there bool, err error)
	// PodUIDs are the pods that have a cgroup.
	PodUIDs() ([]string, error)
}

// PodResources is the kubelet's answer for one pod.
type PodResources interface {
	Get(ctx context.Context, namespace, name string) (kubelet.PodDevices, error)
}

// NodeDeps are what a Node reads from.
type NodeDeps struct {
	KubeletDir string
	Pods       Pods
	Containers Containers
	Resources  PodResources
	// Snapshot is the hardware as last scanned.
	Snapshot func() *gpu.Snapshot
	// Names are the resources under which devices are, or were, allocated.
	Names func() []string
	// Granted are the devices of a grant, and GrantsDir is the folder of grants on the host.
	Granted   func(id string) []gpu.DeviceKey
	GrantsDir string
	Clock     clock.Clock
	Log       *slog.Logger
}

// Node reads from the node what the ledger's decisions rest on. Its methods may be called by several goroutines; they have the
// form of the fields of ledger.Deps.
type Node struct {
	deps       NodeDeps
	checkpoint *kubelet.CheckpointReader

	mu sync.Mutex
	// present are the pods that had a cgroup at the last look, which was at looked; seen are those that had one at any;
	// listed says since when pods are listed.
	present map[string]bool
	seen    map[string]bool
	listed  map[string]time.Time
	looked  time.Time
	// alone is when pods were last looked at one by one.
	alone map[string]time.Time
	gets  []time.Time
	// names are Deps.Names at the last reading: Pod must not ask, since the ledger calls it with its mutex held.
	names []string
}

// NewNode makes a Node; nothing is read yet.
func NewNode(deps NodeDeps) *Node {
	return &Node{
		deps: deps, checkpoint: kubelet.NewCheckpointReader(deps.KubeletDir),
		present: map[string]bool{}, seen: map[string]bool{}, listed: map[string]time.Time{}, alone: map[string]time.Time{},
	}
}

// Living lists the containers in which a process lives now, with the devices that each
// was given.
func (n *Node) Living() ([]ledger.Container, error) {
	found, err := n.deps.Containers.Live()
	if err != nil {
		return nil, err
	}
	if err := n.lookAtCgroups(); err != nil {
		return nil, err
	}
	return n.convert(found), nil
}

// LivingIn is Living for some pods: it costs what these have, whatever else the node has.
func (n *Node) LivingIn(uids []string) ([]ledger.Container, error) {
	var found []kubelet.Container
	for _, uid := range uids {
		before := n.deps.Clock.Now()
		living, there, err := n.deps.Containers.InPod(uid)
		if err != nil {
			return nil, err
		}
		found = append(found, living...)
		n.mu.Lock()
		n.alone[uid] = before
		if there {
			n.present[uid], n.seen[uid] = true, true
		} else {
			delete(n.present, uid)
		}
		n.mu.Unlock()
	}
	return n.convert(found), nil
}

func (n *Node) convert(found []kubelet.Container) []ledger.Container {
	snapshot := n.deps.Snapshot()
	var living []ledger.Container
	for _, c := range found {
		if c.Sandbox {
			continue
		}
		container := ledger.Container{ID: c.ID, PodUID: c.PodUID, Namespace: c.Namespace, Pod: c.Pod, Name: c.Name, Open: c.Open(snapshot)}
		for _, id := range c.Grants {
			container.Keys = append(container.Keys, n.deps.Granted(id)...)
		}
		living = append(living, container)
	}
	return living
}

// Stamp identifies the content of the kubelet's checkpoint; see [kubelet.CheckpointReader].
func (n *Node) Stamp() string { return n.checkpoint.Stamp() }

// Assigned are the checkpoint's entries for our resources at this moment.
func (n *Node) Assigned() ([]ledger.Assignment, error) {
	checkpoint, err := n.checkpoint.Read()
	if err != nil {
		return nil, err
	}
	snapshot := n.deps.Snapshot()
	names := n.deps.Names()
	n.mu.Lock()
	n.names = names
	n.mu.Unlock()
	var known []ledger.Assignment
	for _, from := range checkpoint.Assignments {
		if !slices.Contains(names, from.Resource) && !ofNode(from.DeviceIDs, snapshot) {
			continue
		}
		assignment := ledger.Assignment{PodUID: from.PodUID, Container: from.Container, Resource: from.Resource}
		for _, mount := range from.Response.GetMounts() {
			if id, ok := kubelet.GrantID(mount.GetHostPath(), n.deps.GrantsDir); ok {
				assignment.Grant = id
			}
		}
		for _, id := range from.DeviceIDs {
			if key, ok := keyOf(id, snapshot); ok {
				assignment.Keys = append(assignment.Keys, key)
			}
		}
		known = append(known, assignment)
	}
	return known, nil
}

// ofNode tells whether any of the devices is of this node's GPUs.
func ofNode(ids []string, snapshot *gpu.Snapshot) bool {
	return slices.ContainsFunc(ids, func(id string) bool {
		device, _, err := offer.ParseDeviceID(id)
		if err != nil {
			return false
		}
		card, _ := snapshot.Device(device)
		return card != nil
	})
}

// keyOf gives the key for a kubelet's device ID. A GPU that the inventory does not have
// any more keeps its name.
func keyOf(id string, snapshot *gpu.Snapshot) (gpu.DeviceKey, bool) {
	device, share, err := offer.ParseDeviceID(id)
	if err != nil {
		return gpu.DeviceKey{}, false
	}
	card, mig := snapshot.Device(device)
	switch {
	case mig != nil:
		return gpu.DeviceKey{GPU: card.UUID, MIG: device, Share: share}, true
	case device.IsMIG():
		return gpu.DeviceKey{}, false
	}
	return gpu.DeviceKey{GPU: device, Share: share}, true
}

// Pod says what is known of a pod, from memory.
func (n *Node) Pod(uid string) ledger.PodFacts {
	pod, state := n.deps.Pods.Pod(uid)
	facts := ledger.PodFacts{Namespace: pod.Namespace, Name: pod.Name}
	for _, c := range pod.Containers {
		facts.Containers = append(facts.Containers, ledger.PodContainer{Name: c.Name, Init: c.Init, Devices: n.ours(c.Devices)})
	}
	switch state {
	case podwatch.Ended:
		facts.State = ledger.PodEnded
	case podwatch.Living:
		facts.State = ledger.PodLiving
	}
	facts.Unstarted = n.unstarted(uid)
	answers, _ := n.deps.Pods.Current()
	if facts.State != ledger.PodEnded && (pod.Static || !answers) {
		facts.State = n.byCgroup(uid, facts.State)
	}
	return facts
}

// ours are those of the resources that are of this node's GPUs.
func (n *Node) ours(devices map[string]int) map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var own map[string]int
	for resource, count := range devices {
		if slices.Contains(n.names, resource) {
			if own == nil {
				own = map[string]int{}
			}
			own[resource] = count
		}
	}
	return own
}

// byCgroup says what the pod's cgroup tells of it.
func (n *Node) byCgroup(uid string, otherwise ledger.PodState) ledger.PodState {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, listed := n.listed[uid]
	switch {
	case n.present[uid]:
		return ledger.PodLiving
	case n.seen[uid], listed && n.deps.Clock.Since(since) > startsWithin:
		return ledger.PodEnded
	}
	return otherwise
}

// unstarted tells whether the pod was never seen with a cgroup. On a node that shows no pod's cgroup, as with
// --cgroups-per-qos=false, no pod is.
func (n *Node) unstarted(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	looked := n.looked
	if alone := n.alone[uid]; alone.After(looked) {
		looked = alone
	}
	return len(n.present) > 0 && n.deps.Clock.Since(looked) <= freshFor && !n.present[uid] && !n.seen[uid]
}

// lookAtCgroups reads which pods have a cgroup.
func (n *Node) lookAtCgroups() error {
	before := n.deps.Clock.Now()
	uids, err := n.deps.Containers.PodUIDs()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looked, n.present = before, map[string]bool{}
	maps.DeleteFunc(n.alone, func(_ string, at time.Time) bool { return !at.After(before) })
	for _, uid := range uids {
		n.present[uid], n.seen[uid] = true, true
	}
	return nil
}

// noteListed notes since when pods are listed. What was seen of pods that are no longer listed is forgotten.
func (n *Node) noteListed(listed []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.listed
	n.listed = map[string]time.Time{}
	for _, uid := range listed {
		n.listed[uid] = n.deps.Clock.Now()
		if since, known := before[uid]; known {
			n.listed[uid] = since
		}
	}
	for uid := range n.seen {
		if _, known := n.listed[uid]; !known && !n.present[uid] {
			delete(n.seen, uid)
		}
	}
}

// Ask finds out more about devices that the checkpoint lists for pods that are not known to have ended: the watch gets time to
// bring what is under way, pods that it never saw are looked for, and the kubelet is asked whether it still has the
// devices. It returns those that the kubelet has dropped.
func (n *Node) Ask(questions []ledger.Question) []ledger.Question {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	var uids []string
	for _, q := range questions {
		uids = append(uids, q.PodUID)
	}
	resolved := make(chan struct{})
	go func() {
		defer close(resolved)
		if err := n.deps.Pods.Resolve(ctx, uids); err != nil && ctx.Err() == nil {
			n.deps.Log.Debug("Could not look for pods that the watch has not seen", "error", err)
		}
	}()
	defer func() { <-resolved }()
	var dropped []ledger.Question
	answered, unknown, tries := map[string]bool{}, map[string]bool{}, map[string]int{}
	for {
		_ = n.lookAtCgroups() // Without it the last look stands.
		n.noteListed(append(n.listedUIDs(), uids...))
		open := false
		for _, q := range questions {
			facts := n.Pod(q.PodUID)
			switch {
			case facts.State == ledger.PodEnded || answered[q.PodUID]:
			case facts.Containers == nil:
				open, unknown[q.PodUID] = true, true // The watch may bring it.
			case knowsContainer(facts, q.All) && tries[q.PodUID] < maxTries:
				tries[q.PodUID]++
				gone, asked := n.keptByKubelet(ctx, facts, questions, q.PodUID)
				dropped = append(dropped, gone...)
				answered[q.PodUID] = asked
				open = open || !asked // The watch may bring its end.
			case !unknown[q.PodUID]:
				open = true // Of a pod with init containers alone the kubelet says nothing; the watch may bring the pod's end.
			}
		}
		if !open {
			return dropped
		}
		select {
		case <-ctx.Done():
			return dropped
		case <-n.deps.Clock.After(askStep):
		}
	}
}

func (n *Node) listedUIDs() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var uids []string
	for uid := range n.listed {
		uids = append(uids, uid)
	}
	return uids
}

// knowsContainer tells whether PodResources shows at least one of the containers: it leaves out init containers that are
// no sidecars.
func knowsContainer(facts ledger.PodFacts, names []string) bool {
	return slices.ContainsFunc(facts.Containers, func(c ledger.PodContainer) bool { return !c.Init && slices.Contains(names, c.Name) })
}

// keptByKubelet asks the kubelet for one pod and returns the devices among the questions that it has not for that pod. The
// second result is false when there was no answer.
func (n *Node) keptByKubelet(ctx context.Context, facts ledger.PodFacts, questions []ledger.Question, uid string) ([]ledger.Question, bool) {
	if !n.mayGet() {
		return nil, false
	}
	pod, err := n.deps.Resources.Get(ctx, facts.Namespace, facts.Name)
	if err != nil && !errors.Is(err, kubelet.ErrNoPod) {
		n.deps.Log.Debug("Could not ask the kubelet for the devices of a pod", "pod", facts.Namespace+"/"+facts.Name, "error", err)
		return nil, false
	}
	kept, some := map[string]bool{}, map[string]bool{}
	for _, container := range pod.Containers {
		for _, devices := range container.Devices {
			for _, id := range devices.IDs {
				some[devices.Resource], kept[devices.Resource+" "+id] = true, true
			}
		}
	}
	// The kubelet forgets a pod as a whole. So when it shows nothing for a container that the checkpoint lists, the
	// entries of init containers, which it never shows, are gone too.
	var dropped []ledger.Question
	for _, q := range questions {
		forgotten := knowsContainer(facts, q.All) && !some[q.Resource]
		if q.PodUID == uid && (forgotten || knowsContainer(facts, q.Containers) && !kept[q.Resource+" "+offer.DeviceID(q.Key)]) {
			dropped = append(dropped, q)
		}
	}
	return dropped, true
}

// mayGet keeps the rate of Gets.
func (n *Node) mayGet() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.deps.Clock.Now()
	n.gets = slices.DeleteFunc(n.gets, func(at time.Time) bool { return now.Sub(at) >= time.Second })
	if len(n.gets) >= getsPerSecond {
		return false
	}
	n.gets = append(n.gets, now)
	return true
}
