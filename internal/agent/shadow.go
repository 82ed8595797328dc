package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/deviceplugin"
	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/kubelet"
	"github.com/berth-gpu/berth/internal/ledger"
	"github.com/berth-gpu/berth/internal/offer"
	"github.com/berth-gpu/berth/internal/trace"
)

const (
	// lookInterval is the time between two looks at the node without a reason: a
	// container that ends writes no file that could be watched.
	lookInterval = 2 * time.Second
	// busyInterval is the same while an orphan keeps a device from everybody, and for
	// busyAfter since a device was given out: its container is about to start.
	busyInterval = 250 * time.Millisecond
	busyAfter    = 5 * time.Second
	// settle is how long a burst of events is waited out before a look.
	settle = 20 * time.Millisecond
	// askTimeout bounds one question to the kubelet or the API server.
	askTimeout = 2 * time.Second
)

// shadow keeps the ledger equal to what the kubelet remembers and what lives,
// until ctx ends. It looks when the checkpoint changes, when a device was given
// out, and from time to time.
func (a *Agent) shadow(ctx context.Context) error {
	// Without the hardware no device node could be told from another.
	select {
	case <-ctx.Done():
		return nil
	case <-a.inventory.Ready():
	}
	a.look(ctx)
	a.looked.Store(true)
	a.awaitLayout(ctx)
	a.settle()
	a.askDaemons(ctx)
	close(a.compared)
	a.publish()
	a.wakePlugin()

	events := a.watchCheckpoint(ctx)
	holdings := a.ledger.Subscribe()
	defer holdings.Close()
	given := a.clock.Now()
	for {
		interval := lookInterval
		if len(a.ledger.Barred()) > 0 || a.clock.Since(given) < busyAfter {
			interval = busyInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case <-holdings.C():
			given = a.clock.Now()
		case <-a.clock.After(interval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.clock.After(settle):
		}
		a.look(ctx)
	}
}

// watchCheckpoint signals changes of the kubelet's checkpoint. Where it cannot watch,
// the looks from time to time remain.
func (a *Agent) watchCheckpoint(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	path := filepath.Join(a.config.KubeletDir, kubelet.CheckpointFile)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		a.log.Warn("the kubelet's checkpoint is polled, since it cannot be watched", "error", err)
		return changed
	}
	go func() {
		defer watcher.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-watcher.Events:
				if event.Name != path {
					continue
				}
				select {
				case changed <- struct{}{}:
				default:
				}
			case <-watcher.Errors: // An overflow; the next look comes soon.
			}
		}
	}()
	return changed
}

// look reads the node and brings the ledger in line with it. The order counts:
// containers before the checkpoint, the checkpoint before PodResources (see
// ledger.NodeView and finished).
func (a *Agent) look(ctx context.Context) {
	snapshot := a.inventory.Current()
	var view ledger.NodeView
	view.Containers, view.ContainersErr = a.living()
	if view.ContainersErr == nil {
		seen := view.Containers
		a.containersSeen.Store(&seen)
	}
	a.board.fail("processes", "PROCESSES_UNREADABLE", view.ContainersErr)
	checkpoint, err := kubelet.ReadCheckpoint(a.config.KubeletDir)
	view.CheckpointErr = err
	a.noteCheckpoint(err)
	entries := nodeEntries{}
	if err == nil {
		view.Assignments, entries.checkpoint = a.assignments(checkpoint, snapshot)
	}
	view.Pods, entries.listed = a.pods(ctx, view)
	a.entries.Store(&entries)
	changes := a.ledger.Reconcile(view)
	a.report(changes)
}

// living lists the containers in which a process lives now, with the devices that each
// was given.
func (a *Agent) living() ([]ledger.Container, error) {
	found, err := a.containers.Live()
	if err != nil {
		return nil, err
	}
	snapshot := a.inventory.Current()
	var living []ledger.Container
	for _, c := range found {
		if !c.Sandbox {
			living = append(living, ledger.Container{
				ID: c.ID, PodUID: c.PodUID, Namespace: c.Namespace, Pod: c.Pod, Name: c.Name,
				Keys: c.Held(snapshot, trustsEnvironment(a.config)),
			})
		}
	}
	return living, nil
}

// noteCheckpoint makes a damaged file a problem. A missing one is not: a kubelet that never
// had a device plugin has none.
func (a *Agent) noteCheckpoint(err error) {
	unsure := ""
	if err != nil && !errors.Is(err, kubelet.ErrNoCheckpoint) {
		unsure = "the kubelet's checkpoint cannot be read: " + err.Error()
	}
	a.unsure.Store(&unsure)
	if errors.Is(err, kubelet.ErrNoCheckpoint) {
		err = nil
	}
	a.board.fail("checkpoint", "CHECKPOINT_UNREADABLE", err)
}

// assignments are the checkpoint's entries for our resources, once with keys for the
// ledger and once with the kubelet's IDs for the join with names.
func (a *Agent) assignments(checkpoint *kubelet.Checkpoint, snapshot *gpu.Snapshot) ([]ledger.Assignment, []trace.Entry) {
	var known []ledger.Assignment
	var entries []trace.Entry
	for _, from := range checkpoint.Assignments {
		if !a.ours(from.Resource, from.DeviceIDs, snapshot) {
			continue
		}
		assignment := ledger.Assignment{PodUID: from.PodUID, Container: from.Container, Resource: from.Resource}
		for _, id := range from.DeviceIDs {
			if key, ok := keyOf(id, snapshot); ok {
				assignment.Keys = append(assignment.Keys, key)
			}
		}
		known = append(known, assignment)
		entries = append(entries, trace.Entry{
			Pod: trace.Ref{UID: from.PodUID}, Container: from.Container, Resource: from.Resource, IDs: from.DeviceIDs,
		})
	}
	return known, entries
}

// ours tells whether devices that the kubelet knows under a resource are of this node's
// GPUs: by the name, also one that was used before, or by the devices.
func (a *Agent) ours(resource string, ids []string, snapshot *gpu.Snapshot) bool {
	if slices.Contains(a.resourceNames(), resource) {
		return true
	}
	return slices.ContainsFunc(ids, func(id string) bool {
		device, _, err := offer.ParseDeviceID(id)
		if err != nil {
			return false
		}
		card, _ := snapshot.Device(device)
		return card != nil
	})
}

// resourceNames are the names under which devices are given out, or were to those that
// hold them, sorted.
func (a *Agent) resourceNames() []string {
	var names []string
	for _, unit := range a.units.now() {
		names = append(names, unit.Use.Resource)
	}
	for _, h := range a.ledger.Holdings() {
		if h.Holder.Resource != "" {
			names = append(names, h.Holder.Resource)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// blind says why it is not known who holds what; empty when it is.
func (a *Agent) blind() string {
	if !a.looked.Load() {
		return "the ledger was not compared with the kubelet yet"
	}
	return *a.unsure.Load()
}

// keyOf gives the key for a kubelet's device ID. A card that the inventory does not have
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

// pods finds what is to be known of pods besides: names, and which have ended.
func (a *Agent) pods(ctx context.Context, view ledger.NodeView) ([]ledger.NodePod, []trace.Entry) {
	ended := a.orphans.about(ctx, a.ledger.Holdings())
	if view.CheckpointErr != nil || len(view.Assignments) == 0 {
		return ended, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	listed, err := a.resources.List(ctx)
	if err != nil {
		return ended, nil // The kubelet is down; nothing follows from that.
	}
	snapshot := a.inventory.Current()
	var entries []trace.Entry
	active := map[string]bool{}
	for _, pod := range listed {
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if !a.ours(devices.Resource, devices.IDs, snapshot) {
					continue
				}
				entries = append(entries, trace.Entry{
					Pod:       trace.Ref{Namespace: pod.Namespace, Name: pod.Name},
					Container: container.Name, Resource: devices.Resource, IDs: devices.IDs,
				})
				for _, id := range devices.IDs {
					active[id] = true
				}
			}
		}
	}
	return append(ended, finished(view, active)...), entries
}

// finished are the pods that the checkpoint still lists although the kubelet has
// let them go: no process lives, and PodResources, asked after the checkpoint was
// read, names none of their devices. The kubelet keeps them in its file until the
// next allocation, which may be days.
func finished(view ledger.NodeView, active map[string]bool) []ledger.NodePod {
	busy := map[string]bool{}
	for _, c := range view.Containers {
		busy[c.PodUID] = true
	}
	for _, assignment := range view.Assignments {
		for _, key := range assignment.Keys {
			busy[assignment.PodUID] = busy[assignment.PodUID] || active[offer.DeviceID(key)]
		}
	}
	var pods []ledger.NodePod
	for _, assignment := range view.Assignments {
		known := slices.ContainsFunc(pods, func(p ledger.NodePod) bool { return p.UID == assignment.PodUID })
		if !busy[assignment.PodUID] && !known && view.ContainersErr == nil {
			pods = append(pods, ledger.NodePod{UID: assignment.PodUID, Ended: true})
		}
	}
	return pods
}

func (a *Agent) report(changes ledger.Changes) {
	for _, change := range changes.List {
		if change.What != ledger.Updated {
			a.log.Info("holding "+string(change.What), "holding", change.Holding.String())
		}
	}
	var conflicts []gpu.Cause
	for _, c := range changes.Conflicts {
		conflicts = append(conflicts, gpu.Cause{
			Code:    "DEVICE_CONFLICT",
			Message: fmt.Sprintf("device %s is used by more than one pod (%v): %s", c.Key, c.Pods, c.Why),
		})
	}
	a.board.set("conflicts", conflicts...)
}

// trustsEnvironment: where a hook makes the device nodes, no OCI spec shows them.
func trustsEnvironment(config *v1alpha1.AgentConfig) bool {
	return !usesCDI(config) && !config.PassDeviceSpecs
}

// kubeletRestarted bars what lives until it is known what the new kubelet remembers; the change that
// this makes to the ledger leads to the next look.
func (a *Agent) kubeletRestarted() {
	a.log.Info("the kubelet has started anew; nothing that lives is given out before its checkpoint was read")
	a.ledger.Distrust()
}

// holders shows the ledger to the device plugin in the device plugin's words.
type holders struct{ ledger *ledger.Ledger }

// Barred implements deviceplugin.Ledger.
func (h holders) Barred(resource string, key gpu.DeviceKey) (deviceplugin.Bar, bool) {
	bar, barred := h.ledger.BarredBy(resource, key)
	return deviceplugin.Bar{Unhealthy: bar.Unseen}, barred
}

// Offered implements deviceplugin.FreeLedger.
func (h holders) Offered(resource string, keys []gpu.DeviceKey) { h.ledger.Offered(resource, keys) }

// Hold implements deviceplugin.Ledger.
func (h holders) Hold(resource string, keys []gpu.DeviceKey) error {
	return h.ledger.Acquire(ledger.Holder{Kind: ledger.Pod, Resource: resource}, keys)
}
