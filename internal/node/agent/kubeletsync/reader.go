package kubeletsync

import (
	"context"
	"log/slog"
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

// ReaderPods is the watch of this node's pods.
type ReaderPods interface {
	Pod(uid string) (podwatch.Pod, podwatch.State)
	Resolve(ctx context.Context, uids []string) error
	Current() (bool, error)
}

// Containers lists the containers and pods of the node.
type Containers interface {
	Live() ([]kubelet.Container, error)
	// InPod is Live for one pod, and reports whether it has a cgroup.
	InPod(uid string) (living []kubelet.Container, there bool, err error)
	// PodUIDs are the pods that have a cgroup.
	PodUIDs() ([]string, error)
}

// PodResources is the kubelet's answer for one pod.
type PodResources interface {
	Get(ctx context.Context, namespace, name string) (kubelet.PodDevices, error)
}

// ReaderDeps are what a Reader reads from.
type ReaderDeps struct {
	KubeletDir string
	Pods       ReaderPods
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

// Reader reads from the node what the ledger's decisions are based on. Its methods may be called by several goroutines;
// they have the form of the fields of ledger.Deps.
type Reader struct {
	deps       ReaderDeps
	checkpoint *kubelet.CheckpointReader

	mu sync.Mutex
	// present are the pods that had a cgroup at the last reading, which was at looked; seen are those that had one at
	// any reading; listed has the time since which pods are listed.
	present map[string]bool
	seen    map[string]bool
	listed  map[string]time.Time
	looked  time.Time
	// alone is when pods were last read one by one.
	alone map[string]time.Time
	gets  []time.Time
	// names are ReaderDeps.Names at the last reading: Pod must not call it, since the ledger calls Pod with its mutex held.
	names []string
}

// NewReader returns a Reader; nothing is read yet.
func NewReader(deps ReaderDeps) *Reader {
	return &Reader{
		deps: deps, checkpoint: kubelet.NewCheckpointReader(deps.KubeletDir),
		present: map[string]bool{}, seen: map[string]bool{}, listed: map[string]time.Time{}, alone: map[string]time.Time{},
	}
}

// Living lists the containers in which a process runs now, with the devices that each was given.
func (n *Reader) Living() ([]ledger.Container, error) {
	found, err := n.deps.Containers.Live()
	if err != nil {
		return nil, err
	}
	if err := n.lookAtCgroups(); err != nil {
		return nil, err
	}
	return n.convert(found), nil
}

// LivingIn is Living for some pods: its cost depends on these pods only.
func (n *Reader) LivingIn(uids []string) ([]ledger.Container, error) {
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

func (n *Reader) convert(found []kubelet.Container) []ledger.Container {
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
func (n *Reader) Stamp() string { return n.checkpoint.Stamp() }

// Assigned returns the checkpoint's entries for Berth's resources at this moment.
func (n *Reader) Assigned() ([]ledger.Assignment, error) {
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

// ofNode reports whether any of the devices belongs to this node's GPUs.
func ofNode(ids []string, snapshot *gpu.Snapshot) bool {
	return slices.ContainsFunc(ids, func(id string) bool {
		device, _, err := offer.ParseDeviceID(id)
		if err != nil {
			return false
		}
		g, _ := snapshot.Device(device)
		return g != nil
	})
}

// keyOf returns the key for a kubelet's device ID. A GPU that the inventory no longer has keeps its name.
func keyOf(id string, snapshot *gpu.Snapshot) (gpu.DeviceKey, bool) {
	device, share, err := offer.ParseDeviceID(id)
	if err != nil {
		return gpu.DeviceKey{}, false
	}
	g, mig := snapshot.Device(device)
	switch {
	case mig != nil:
		return gpu.DeviceKey{GPU: g.UUID, MIG: device, Share: share}, true
	case device.IsMIG():
		return gpu.DeviceKey{}, false
	}
	return gpu.DeviceKey{GPU: device, Share: share}, true
}

// Placement returns where a MIG device is according to the last scan; zero when the scan did not find it or its placement.
func (n *Reader) Placement(key gpu.DeviceKey) gpu.Placement {
	g, device := n.deps.Snapshot().Device(key.MIG)
	if device == nil || g.UUID != key.GPU {
		return gpu.Placement{}
	}
	return gpu.Placement{Start: device.Start, Size: device.Size}
}

// Pod returns the state of a pod from memory.
func (n *Reader) Pod(uid string) ledger.PodFacts {
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

// ours returns the assignments of resources that belong to this node's GPUs.
func (n *Reader) ours(devices map[string]int) map[string]int {
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
