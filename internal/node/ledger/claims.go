package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Claim is a ResourceClaim with its devices on this node.
type Claim struct {
	// UID identifies the claim. Namespace and Name are empty when they are not known.
	UID       string
	Namespace string
	Name      string
	// Pods are those that may use the devices (status.reservedFor); nil when they are not known, which keeps those that
	// the ledger has. Their running containers are the claim's own, and are no conflict.
	Pods    []gpu.Pod
	Devices []ClaimDevice
}

// ClaimPods are the pods that use a claim, according to the kubelet's record of prepared claims.
type ClaimPods struct {
	// UID is the claim's.
	UID  string
	Pods []gpu.Pod
}

// ClaimDevice is a device of a claim.
type ClaimDevice struct {
	Key gpu.DeviceKey
	// Placement is where a MIG device with a UUID is, when the caller knows it; else it is looked up (Deps.Placement).
	Placement gpu.Placement
	// Profile is that of a MIG device; empty keeps the one that the ledger has. Two profiles can have one placement.
	Profile string
	// TimeSlice and MPS are what the claim wants for a whole GPU; an empty TimeSlice keeps what the ledger has of both.
	TimeSlice string
	MPS       gpu.MPSLimits
	// Requests are the names of the claim's requests that the device is for; nil keeps those that the ledger has.
	Requests []string
}

// Holder returns the holder of the claim's devices.
func (c Claim) Holder() gpu.Holder {
	return gpu.Holder{Kind: gpu.HolderClaim, ID: c.UID, Namespace: c.Namespace, Name: c.Name}
}

// notHeldError means that a holder does not have a device.
type notHeldError struct {
	Holder gpu.Holder
	// Key is zero when the holder has no device at all.
	Key gpu.DeviceKey
}

// Error names the holder and the device.
func (e *notHeldError) Error() string {
	if e.Key == (gpu.DeviceKey{}) {
		return e.Holder.String() + " holds no device; prepare it first"
	}
	return fmt.Sprintf("%s does not hold device %s; prepare it first", e.Holder, e.Key)
}

var errNoUID = errors.New("a claim needs a UID")

// AcquireClaim takes the devices of a claim, all or none, as Acquire does, and records its names, pods and requests. All
// of it is in the file when it returns without an error, and none of it is in force when it returns with one. It may be
// called again for a claim that has its devices, or some of them: it takes those that it does not have, and records what
// is known now. Devices of an earlier allocation of the claim, which are not among these, are released in the same write
// unless a running container uses them.
func (l *Ledger) AcquireClaim(claim Claim) error {
	if claim.UID == "" {
		return fmt.Errorf("acquire devices: %w", errNoUID)
	}
	if err := l.acquireDurably(claim.Holder(), claim.Pods, claim.Devices); err != nil {
		return fmt.Errorf("acquire devices: %w", err)
	}
	return nil
}

// Refused is a claim of which not all devices could be adopted.
type Refused struct {
	Claim Claim
	// Err is a *BlockedError about the first device that another claim or maintenance has, or says what is wrong with the
	// claim, of which then no device was adopted.
	Err error
}

// AdoptAll records that claims have their devices, because they were prepared before: it is called at start, before the
// first Reconcile, with all claims that the DRA driver has recorded as prepared or in progress, and is one write of the
// file. In this order no container of a claim is taken for an orphan, and no device of a claim is allocated to a pod, not
// even when the ledger was lost. It overrides pods and orphans on the devices.
//
// A device that another claim or maintenance has, in whatever size, is not adopted; the claims that have such a device
// are returned, in the order in which they were passed, and their other devices are adopted. Of two claims the earlier
// one gets the device. Claims that the ledger has and that are not passed keep their devices: Release ends them.
//
// With ErrFollows or ErrSuperseded nothing was adopted. With another error everything is in force but not in the file,
// and the next Reconcile writes it.
func (l *Ledger) AdoptAll(claims []Claim) ([]Refused, error) {
	var refused []Refused
	err := l.inMemory(func() {
		for _, claim := range claims {
			if err := l.adoptClaim(claim); err != nil {
				refused = append(refused, Refused{Claim: claim, Err: err})
			}
		}
	})
	if err != nil {
		return refused, fmt.Errorf("adopt devices: %w", err)
	}
	return refused, nil
}

func (l *Ledger) adoptClaim(claim Claim) error {
	if claim.UID == "" {
		return errNoUID
	}
	if err := validKeys(claim.Devices); err != nil {
		return err
	}
	return l.adopt(claim.Holder(), claim.Pods, claim.Devices)
}

// adopt is called with the mutex held.
func (l *Ledger) adopt(holder gpu.Holder, pods []gpu.Pod, devices []ClaimDevice) error {
	var refused error
	var u undo // not used: what was adopted stays in force
	for _, d := range sorted(devices) {
		if r := l.records[d.Key]; r != nil && r.Holder.Same(holder) {
			continue
		}
		if other := l.reserved(holder, gpu.Located{Key: d.Key, At: d.Placement}); other != nil {
			if refused == nil {
				refused = &BlockedError{Key: d.Key, Holding: other.clone()}
			}
			continue
		}
		l.change(&u, l.newHolding(holder, d.Key))
	}
	l.describe(&u, holder, pods, devices)
	return refused
}

// reserved returns the holding of another claim or maintenance on a device, or nil.
func (l *Ledger) reserved(holder gpu.Holder, want gpu.Located) *Holding {
	for _, other := range onGPU(l.order, want.Key.GPU) {
		h := &l.records[other].Holding
		if (h.Holder.Kind == gpu.HolderClaim || h.Holder.Kind == gpu.HolderMaintenance) && l.inWay(h, holder, want) {
			return h
		}
	}
	return nil
}

// Resolve changes the hold of a claim or maintenance on a placement into one on the MIG device that is there now, in one
// write. The device is held at every moment: a program that dies meanwhile leaves either the one or the other. It keeps
// the time, the pods, the requests and the profile. It does nothing when the holder has the MIG device and not the placement, so that
// it may be called again. It fails with *notHeldError, and with *BlockedError when another holder has the MIG device.
func (l *Ledger) Resolve(holder gpu.Holder, placed gpu.DeviceKey, device gpu.UUID) error {
	to := gpu.DeviceKey{GPU: placed.GPU, MIG: device, Share: placed.Share}
	if !placed.Placement.Known() || device == "" {
		return fmt.Errorf("resolve device: want a placement and a MIG device, and not %s and %q", placed, device)
	}
	if err := l.exchange(holder, placed, gpu.Located{Key: to, At: placed.Placement}); err != nil {
		return fmt.Errorf("resolve device: %w", err)
	}
	return nil
}

// Unresolve is the reverse of Resolve, to be called before the MIG device is destroyed while its placement stays held.
// at is where the device is.
func (l *Ledger) Unresolve(holder gpu.Holder, device gpu.DeviceKey, at gpu.Placement) error {
	placed := gpu.Placed(device.GPU, at)
	placed.Share = device.Share
	if device.MIG == "" || !placed.Valid() || !at.Known() {
		return fmt.Errorf("unresolve device: want a MIG device and a placement, and not %s and %s", device, at)
	}
	if err := l.exchange(holder, device, gpu.Located{Key: placed}); err != nil {
		return fmt.Errorf("unresolve device: %w", err)
	}
	return nil
}

// exchange changes the key of a holding.
func (l *Ledger) exchange(holder gpu.Holder, from gpu.DeviceKey, to gpu.Located) error {
	return l.durably(func(u *undo) error {
		old, now := l.records[from], l.records[to.Key]
		switch {
		case now != nil && now.Holder.Same(holder) && (old == nil || !old.Holder.Same(holder)):
			return nil
		case old == nil || !old.Holder.Same(holder):
			return &notHeldError{Holder: holder, Key: from}
		}
		if blocking := l.inTheWay(holder, to); blocking != nil {
			return &BlockedError{Key: to.Key, Holding: blocking.clone()}
		}
		h := old.Holding.clone()
		h.Key, h.Placement = to.Key, to.At
		l.drop(u, from)
		l.change(u, h)
		return nil
	})
}

// describe records what is known now of a holder and of its devices: in all its holdings, which keep what is not known.
func (l *Ledger) describe(u *undo, holder gpu.Holder, pods []gpu.Pod, devices []ClaimDevice) {
	for _, key := range l.order { // A change of a record keeps the order.
		if !l.records[key].Holder.Same(holder) {
			continue
		}
		h := l.records[key].Holding
		if holder.Name != "" {
			h.Holder.Namespace, h.Holder.Name = holder.Namespace, holder.Name
		}
		if pods != nil {
			h.Pods = named(pods, h.Pods)
		}
		for _, d := range devices {
			if d.Key != key {
				continue
			}
			if d.Requests != nil {
				h.Requests = union(nil, d.Requests...)
			}
			if d.Placement.Known() && key.MIG != "" {
				h.Placement = d.Placement
			}
			if d.Profile != "" && !key.Whole() {
				h.Profile = d.Profile
			}
			if d.TimeSlice != "" && key.Whole() {
				h.TimeSlice, h.MPS = d.TimeSlice, d.MPS
			}
		}
		if !equal(h, l.records[key].Holding) {
			l.change(u, h)
		}
	}
}

// notePods records the pods of the claims that the kubelet lists. Claims that it does not list keep theirs. It is called with the mutex
// held.
func (l *Ledger) notePods(claims []ClaimPods) {
	for _, key := range l.order { // A change of a record keeps the order.
		h := l.records[key].Holding
		i := slices.IndexFunc(claims, func(c ClaimPods) bool { return h.Holder.Kind == gpu.HolderClaim && h.Holder.ID == c.UID })
		if i < 0 {
			continue
		}
		if pods := named(claims[i].Pods, h.Pods); !slices.Equal(pods, h.Pods) {
			h.Pods = pods
			l.put(h)
		}
	}
}

// named returns the pods that have a UID, sorted by it and each once, with the names that only known has.
func named(pods, known []gpu.Pod) []gpu.Pod {
	pods = append([]gpu.Pod{}, pods...)
	for i := range pods {
		if k := slices.IndexFunc(known, func(other gpu.Pod) bool { return other.UID == pods[i].UID }); k >= 0 && pods[i].Name == "" {
			pods[i] = known[k]
		}
	}
	slices.SortFunc(pods, func(a, b gpu.Pod) int {
		return cmp.Or(strings.Compare(a.UID, b.UID), strings.Compare(b.Name, a.Name), strings.Compare(b.Namespace, a.Namespace))
	})
	pods = slices.CompactFunc(pods, func(a, b gpu.Pod) bool { return a.UID == b.UID })
	return slices.DeleteFunc(pods, func(pod gpu.Pod) bool { return pod.UID == "" })
}

// has reports whether a pod is one of those that may use the claim's devices.
func (h *Holding) has(pod string) bool {
	return slices.ContainsFunc(h.Pods, func(p gpu.Pod) bool { return p.UID == pod })
}
