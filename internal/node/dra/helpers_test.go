package dra

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	driverName = "gpu.berth.dev"
	poolName   = "node-a"
)

// fakeLedger is a simple twin of the ledger: a map from device to claim.
type fakeLedger struct {
	mu    sync.Mutex
	held  map[gpu.DeviceKey]ledger.Claim
	fail  error // of the next writes
	other map[gpu.DeviceKey]string
	// holdOn, when set, is called in AcquireClaim before anything is taken.
	holdOn func(ledger.Claim)
}

func newFakeLedger() *fakeLedger {
	return &fakeLedger{held: map[gpu.DeviceKey]ledger.Claim{}, other: map[gpu.DeviceKey]string{}}
}

func (l *fakeLedger) AcquireClaim(_ context.Context, claim ledger.Claim) error {
	if l.holdOn != nil {
		l.holdOn(claim)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, device := range claim.Devices {
		if holder, taken := l.other[device.Key]; taken {
			return fmt.Errorf("acquire devices: device %s is held by %s", device.Key, holder)
		}
		if holder, taken := l.held[device.Key]; taken && holder.UID != claim.UID {
			return fmt.Errorf("acquire devices: device %s is held by claim %s/%s (UID %s)", device.Key, holder.Namespace, holder.Name, holder.UID)
		}
	}
	if l.fail != nil && (len(claim.Devices) > 0 || l.holds(claim.UID)) {
		return l.fail
	}
	maps.DeleteFunc(l.held, func(_ gpu.DeviceKey, holder ledger.Claim) bool { return holder.UID == claim.UID })
	for _, device := range claim.Devices {
		l.held[device.Key] = claim
	}
	return nil
}

// holds reports whether a claim has a device.
func (l *fakeLedger) holds(uid string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(l.held)), func(c ledger.Claim) bool { return c.UID == uid })
}

func (l *fakeLedger) ResolveClaim(uid string, placed gpu.DeviceKey, device gpu.UUID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	made := gpu.DeviceKey{GPU: placed.GPU, MIG: device}
	if l.fail != nil {
		return l.fail
	}
	if _, held := l.held[placed]; !held && l.held[made].UID == uid {
		return nil
	}
	if l.held[placed].UID != uid {
		return fmt.Errorf("resolve device: claim %s does not hold %s", uid, placed)
	}
	l.held[made] = l.held[placed]
	delete(l.held, placed)
	return nil
}

func (l *fakeLedger) ReleaseClaim(uid string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	for key, claim := range l.held {
		if claim.UID == uid {
			delete(l.held, key)
		}
	}
	return nil
}

func (l *fakeLedger) AdoptClaims(claims []ledger.Claim) error {
	for _, claim := range claims {
		if err := l.AcquireClaim(context.Background(), claim); err != nil {
			return err
		}
	}
	return nil
}

// holders returns the UIDs of the claims that have the GPUs.
func (l *fakeLedger) holders() map[gpu.UUID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[gpu.UUID]string{}
	for key, claim := range l.held {
		all[key.GPU] = claim.UID
	}
	return all
}

// node is a node with GPUs.
type node struct {
	mu       sync.Mutex
	devices  []Device
	changed  signal.Broadcast
	ledger   *fakeLedger
	prepared []Listed
	notReady map[gpu.UUID]error
	// notSliced are the errors of Sliced, and sliced its other calls.
	notSliced map[gpu.UUID]error
	sliced    []string
	// notServed are the errors of Served, and served its other calls.
	notServed map[gpu.UUID]error
	served    []string
	// exists are the devices of dynamic GPUs that Ensure makes; it fails for others.
	exists   map[gpu.DeviceKey]gpu.UUID
	problems map[string][]gpu.Cause
	fault    func(Step) error
	clock    clock.WithTicker
}

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", i)) }
func name(i int) string   { return fmt.Sprintf("gpu-%d", i) }

func newNode(gpus int) *node {
	n := &node{ledger: newFakeLedger(), notReady: map[gpu.UUID]error{}, notSliced: map[gpu.UUID]error{}, notServed: map[gpu.UUID]error{}, problems: map[string][]gpu.Cause{}, clock: clock.RealClock{}}
	for i := range gpus {
		n.devices = append(n.devices, Device{Name: name(i), Key: gpu.DeviceKey{GPU: uuid(i)}, Health: gpu.Healthy})
	}
	return n
}

// change edits the device i and signals it.
func (n *node) change(i int, edit func(*Device)) {
	n.mu.Lock()
	n.devices = slices.Clone(n.devices)
	edit(&n.devices[i])
	n.mu.Unlock()
	n.changed.Set()
}

func (n *node) current() []Device {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.devices
}

func (n *node) report(source string, problems ...gpu.Cause) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.problems[source] = problems
}

func (n *node) reported(source string) []gpu.Cause {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problems[source]
}

func (n *node) deps(ledger Ledger) Deps {
	return Deps{
		DriverName: driverName, Pool: poolName, Ledger: ledger, Devices: n.current, Changed: n.changed.Subscribe,
		Ready: func(_ context.Context, id gpu.UUID) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.notReady[id]
		},
		Ensure: func(_ context.Context, key gpu.DeviceKey, profile string) (gpu.UUID, error) {
			if n.exists[key] == "" || n.ledger.held[key].UID == "" {
				return "", fmt.Errorf("GPU 0 cannot have %s", profile)
			}
			return n.exists[key], nil
		},
		Sliced: func(_ context.Context, id gpu.UUID, slice string) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.notSliced[id] == nil {
				n.sliced = append(n.sliced, string(id)+" "+slice)
			}
			return n.notSliced[id]
		},
		Served: func(_ context.Context, id gpu.UUID, limits gpu.MPSLimits) ([]string, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.notServed[id] != nil || !limits.Wanted() {
				return nil, n.notServed[id]
			}
			n.served = append(n.served, fmt.Sprintf("%s %+v", id, limits))
			return []string{"k8s.berth.dev/gpu=mps-" + string(id)}, nil
		},
		CDIName:  func(id string) string { return "k8s.berth.dev/gpu=" + id },
		Prepared: func() ([]Listed, error) { return n.prepared, nil },
		Report:   n.report, Fault: n.fault, Clock: n.clock, Log: slog.New(slog.DiscardHandler),
	}
}

func (n *node) driver(t testing.TB) *Driver {
	t.Helper()
	d := New(n.deps(n.ledger))
	if err := d.Adopt(); err != nil {
		t.Fatal(err)
	}
	return d
}

// result is a device that the scheduler has allocated.
func result(request string, i int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driverName, Pool: poolName, Device: name(i)}
}

// allocated is a claim in the namespace ns with results, reserved for one pod.
func allocated(name, uid string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-" + name, UID: types.UID("pod-" + uid)}},
		},
	}
}
