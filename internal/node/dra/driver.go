package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Driver prepares claims. Create it with New; Server lets the kubelet call it.
type Driver struct {
	deps  Deps
	locks claimLocks
	hung  hungCalls
	// adopted is true when the ledger has the claims that the kubelet lists as prepared.
	adopted *signal.Ready
	// calls are the calls of the kubelet that are under way.
	calls sync.WaitGroup
}

// New returns a Driver; it touches nothing.
func New(deps Deps) *Driver {
	if deps.Fault == nil {
		deps.Fault = func(Step) error { return nil }
	}
	return &Driver{deps: deps, adopted: signal.NewReady()}
}

// Adopt gives the ledger the claims that the kubelet lists as prepared; calls of the kubelet wait for it. It has to be called before the
// first comparison of the ledger with the node: then no container of a claim counts as an orphan, and none of its devices is allocated
// to a pod, also when the ledger was lost. Devices that are not known are skipped, since no GPU can be held for them; after a reboot these
// are the MIG devices, which no container has then.
func (d *Driver) Adopt() error {
	listed, err := d.deps.Prepared()
	if err != nil {
		return fmt.Errorf("adopt claims: %w", err)
	}
	names := map[string]Device{}
	for _, device := range d.deps.Devices() {
		names[device.Name] = device
	}
	var claims []ledger.Claim
	for _, one := range listed {
		claim := ledger.Claim{UID: one.UID, Namespace: one.Namespace, Name: one.Name}
		for _, device := range one.Devices {
			if slices.Contains(device.Requests, adminRequest) {
				continue // It holds nothing.
			}
			is, known := names[device.Name]
			if !known || device.Pool != d.deps.Pool {
				d.deps.Log.Warn("Skipped a device of a prepared claim, which is not on this node now; it is held from the next prepare on",
					"claim", one.Namespace+"/"+one.Name, "pool", device.Pool, "device", device.Name)
				continue
			}
			claim.Devices = append(claim.Devices, ledger.ClaimDevice{Key: is.Key, Profile: is.Profile, Requests: device.Requests})
		}
		for _, uid := range one.PodUIDs {
			claim.Pods = append(claim.Pods, gpu.Pod{UID: uid})
		}
		if len(claim.Devices) > 0 {
			claims = append(claims, claim)
		}
	}
	if len(claims) > 0 {
		if err := d.deps.Ledger.AdoptClaims(claims); err != nil {
			return fmt.Errorf("adopt claims: %w", err)
		}
	}
	d.adopted.Set()
	return nil
}

// PrepareResourceClaims acquires the devices of each claim and returns their CDI names. Claims are prepared in parallel.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make([]kubeletplugin.PrepareResult, len(claims))
	d.each(len(claims), func(i int) {
		results[i].Devices, results[i].Err = d.prepare(ctx, claims[i])
	})
	all := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for i, claim := range claims {
		all[claim.UID] = results[i]
	}
	return all, nil
}

// UnprepareResourceClaims releases the devices of each claim; a claim without devices is no error.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make([]error, len(claims))
	d.each(len(claims), func(i int) { results[i] = d.unprepare(ctx, claims[i]) })
	all := make(map[types.UID]error, len(claims))
	for i, claim := range claims {
		all[claim.UID] = results[i]
	}
	return all, nil
}

// each calls do for each of n claims at the same time, and returns when all calls have returned.
func (d *Driver) each(n int, do func(int)) {
	d.calls.Add(1)
	defer d.calls.Done()
	if n == 1 {
		do(0)
		return
	}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { do(i) })
	}
	group.Wait()
}

func (d *Driver) observe(operation Operation, of kubeletplugin.NamespacedObject) func(error) {
	began, claim := d.deps.Clock.Now(), of.Namespace+"/"+of.Name
	return func(err error) {
		took := d.deps.Clock.Since(began)
		if d.deps.Observe != nil {
			d.deps.Observe(Call{Operation: operation, Namespace: of.Namespace, Name: of.Name, UID: string(of.UID), Took: took, Err: err})
		}
		if err != nil {
			d.deps.Log.Warn("Refused a call for a claim; the kubelet retries", "operation", operation, "claim", claim, "error", err)
		} else {
			d.deps.Log.Debug("Served a call for a claim", "operation", operation, "claim", claim, "took", took)
		}
	}
}

// LateError is a prepare that has ended because it took too long, while the kubelet still waits for it.
type LateError struct{ Err error }

// Error returns the text of Err.
func (e *LateError) Error() string { return e.Err.Error() }

// Unwrap returns Err, the error of the step that took too long.
func (e *LateError) Unwrap() error { return e.Err }

// awaitAdopted returns when the ledger has the claims that the kubelet lists as prepared.
func (d *Driver) awaitAdopted(ctx context.Context) error {
	if err := d.adopted.Wait(ctx); err != nil {
		return fmt.Errorf("this agent has not yet taken the ledger over from another one, or cannot read the claims that the kubelet lists as prepared (berth doctor): %w", err)
	}
	return nil
}

// prepareWithin is how long a prepare takes at most: the kubelet ends it after 45 s, and then shows no reason.
const prepareWithin = 40 * time.Second

func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	done := d.observe(Prepare, kubeletplugin.NamespacedObject{
		NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, UID: claim.UID,
	})
	called := ctx
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) && called.Err() == nil {
			err = &LateError{err}
		}
		done(err)
	}()
	who := nameOf(claim.Namespace, claim.Name)
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()

	if err := d.awaitAdopted(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", who, err)
	}
	unlock, err := d.lock(ctx, who, string(claim.UID))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.deps.Fault(StepLocked); err != nil {
		return nil, err
	}
	w, err := d.read(claim)
	if err != nil {
		return nil, err
	}
	if err := d.check(ctx, &w); err != nil {
		return nil, fmt.Errorf("%s: %w", who, err)
	}
	if err := d.deps.Fault(StepChecked); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		// An unprepare may follow, which nothing would undo again.
		return nil, fmt.Errorf("%s: the kubelet has ended the call: %w", who, err)
	}
	// Also without a device: the claim may have some of an earlier allocation.
	if err := d.deps.Ledger.AcquireClaim(ctx, w.claim); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", who, requestsOf(w.claim), err)
	}
	if err := d.deps.Fault(StepAcquired); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *wanted) error{d.create, d.slice, d.serve} {
		if err := step(ctx, &w); err != nil {
			return nil, fmt.Errorf("%s, %w", who, err)
		}
	}
	return w.answer, nil
}

// check waits until the CDI spec has the devices that exist already. For admin access to a MIG device that does not exist, a container
// gets nothing.
func (d *Driver) check(ctx context.Context, w *wanted) error {
	for i, device := range w.devices {
		id := device.Key.Device()
		switch {
		case device.Dynamic && w.held[i]:
			continue // It is in the spec once it is created.
		case device.Dynamic && device.UUID == "":
			continue
		case device.Dynamic:
			id = device.UUID
		}
		if err := d.ready(ctx, w, i, id); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until the CDI spec has a device of the answer, and adds its name.
func (d *Driver) ready(ctx context.Context, w *wanted, i int, id gpu.UUID) error {
	if err := d.deps.Ready(ctx, id); err != nil {
		return fmt.Errorf("device %s is not in the CDI spec on disk: %w", w.devices[i].Name, err)
	}
	w.answer[i].CDIDeviceIDs = []string{d.deps.CDIName(string(id))}
	return nil
}

// create makes the devices of dynamic GPUs, which the ledger has, and waits until they can be injected.
func (d *Driver) create(ctx context.Context, w *wanted) error {
	dynamic := false
	for i, device := range w.devices {
		if !device.Dynamic || !w.held[i] {
			continue
		}
		dynamic = true
		request := w.answer[i].Requests[0]
		id, err := d.deps.Ensure(ctx, device.Key, device.Profile)
		if err != nil {
			return fmt.Errorf("request %s: device %s cannot be created now: %w", request, device.Name, err)
		}
		if err := d.deps.Fault(StepCreated); err != nil {
			return err
		}
		if !device.Key.Whole() {
			if err := d.deps.Ledger.ResolveClaim(w.claim.UID, device.Key, id); err != nil {
				return fmt.Errorf("request %s: device %s: %w", request, device.Name, err)
			}
		}
		if err := d.deps.Fault(StepResolved); err != nil {
			return err
		}
		if err := d.ready(ctx, w, i, id); err != nil {
			return fmt.Errorf("request %s: %w", request, err)
		}
	}
	if !dynamic {
		return nil
	}
	return d.deps.Fault(StepInjectable)
}

// requestsOf names the requests of a claim, sorted.
func requestsOf(claim ledger.Claim) string {
	var names []string
	for _, device := range claim.Devices {
		names = append(names, device.Requests...)
	}
	slices.Sort(names)
	text := "request"
	for _, name := range slices.Compact(names) {
		text += " " + name
	}
	return text
}

func (d *Driver) unprepare(ctx context.Context, claim kubeletplugin.NamespacedObject) (err error) {
	done := d.observe(Unprepare, claim)
	defer func() { done(err) }()
	who := nameOf(claim.Namespace, claim.Name)

	if err := d.awaitAdopted(ctx); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	unlock, err := d.lock(ctx, who, string(claim.UID))
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.deps.Fault(StepLocked); err != nil {
		return err
	}
	if err := d.deps.Ledger.ReleaseClaim(string(claim.UID)); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	return d.deps.Fault(StepReleased)
}
