package drasync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// ledgerClaimsDeps are the dependencies of ledgerClaims.
type ledgerClaimsDeps struct {
	Ledger *ledger.Ledger
	// Current returns the hardware as of the last scan.
	Current func() *gpu.Snapshot
	// Maintains reports whether a holder is a MIG change, which ends when it is done.
	Maintains func(gpu.Holder) bool
	Clock     clock.WithTicker
	Log       *slog.Logger
}

// waitInterval is how often a claim that waits checks whether what has the device may still end.
const waitInterval = 250 * time.Millisecond

// ledgerClaims implements dra.Ledger.
type ledgerClaims struct{ deps ledgerClaimsDeps }

var _ dra.Ledger = ledgerClaims{}

// newLedgerClaims returns ledgerClaims.
func newLedgerClaims(deps ledgerClaimsDeps) ledgerClaims { return ledgerClaims{deps} }

// ReleaseClaim implements dra.Ledger.
func (c ledgerClaims) ReleaseClaim(uid string) error {
	return c.deps.Ledger.Release(ledger.Claim{UID: uid}.Holder(), nil)
}

// AdoptClaims implements dra.Ledger.
func (c ledgerClaims) AdoptClaims(all []ledger.Claim) error {
	list := make([]ledger.Claim, 0, len(all))
	for _, claim := range all {
		list = append(list, c.adopted(claim))
	}
	refused, err := c.deps.Ledger.AdoptAll(list)
	var errs []error
	for _, one := range refused {
		errs = append(errs, fmt.Errorf("claim %s/%s: %w", one.Claim.Namespace, one.Claim.Name, one.Err))
	}
	if err := errors.Join(errs...); err != nil {
		c.deps.Log.Error("Could not adopt all prepared claims", "error", err)
	}
	return err
}

// adopted locates the devices of a claim of the kubelet's record. Its MIG devices exist unless the GPU was reset since.
func (c ledgerClaims) adopted(claim ledger.Claim) ledger.Claim {
	claim.Devices = slices.Clone(claim.Devices)
	for i := range claim.Devices {
		device := &claim.Devices[i]
		of := c.deps.Current().GPU(device.Key.GPU)
		if of == nil || !device.Key.Placement.Known() {
			continue
		}
		at := device.Key.Placement
		if id := existingDevice(of, device.Profile, at); id != "" {
			device.Key, device.Placement = gpu.DeviceKey{GPU: of.UUID, MIG: id}, at
		}
	}
	return claim
}

// AcquireClaim implements dra.Ledger.
func (c ledgerClaims) AcquireClaim(ctx context.Context, claim ledger.Claim) error {
	changed := c.deps.Ledger.Subscribe()
	defer changed.Close()
	again := c.deps.Clock.NewTicker(waitInterval) // Facts about pods are no change of the ledger.
	defer again.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		held, err := c.located(claim)
		if err == nil {
			err = c.deps.Ledger.AcquireClaim(held)
		}
		if err == nil || !c.passes(err) {
			return err // A kubelet repeats a failed prepare only after more than a minute.
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the devices of the claim: %w", err)
		case <-changed.C():
		case <-again.C():
		}
	}
}

// passes reports whether what keeps a claim from its devices may end soon: this agent is about to take over the ledger, since the kubelet
// calls it, or what has a device ends.
func (c ledgerClaims) passes(err error) bool {
	if errors.Is(err, ledger.ErrFollows) {
		return true
	}
	blocked, ok := errors.AsType[*ledger.BlockedError](err)
	return ok && (c.deps.Maintains(blocked.Holding.Holder) || c.deps.Ledger.MayHaveEnded(blocked.Holding))
}

// ResolveClaim implements dra.Ledger.
func (c ledgerClaims) ResolveClaim(uid string, placed gpu.DeviceKey, device gpu.UUID) error {
	return c.deps.Ledger.Resolve(ledger.Claim{UID: uid}.Holder(), placed, device)
}

// located locates the devices of a claim. A placement in which the claim has a MIG device stands for that device; when the GPU was reset,
// so that the device does not exist any more, the claim holds the placement again.
func (c ledgerClaims) located(claim ledger.Claim) (ledger.Claim, error) {
	claim.Devices = slices.Clone(claim.Devices)
	holder, snapshot := claim.Holder(), c.deps.Current()
	for _, h := range c.deps.Ledger.Holdings() {
		if !h.Holder.Same(holder) || h.Key.MIG == "" {
			continue
		}
		for i := range claim.Devices {
			device := &claim.Devices[i]
			if device.Key != gpu.Placed(h.Key.GPU, h.Placement) {
				continue
			}
			if _, part := snapshot.Device(h.Key.MIG); part != nil {
				device.Key, device.Placement = h.Key, h.Placement
			} else if err := c.deps.Ledger.Unresolve(holder, h.Key, h.Placement); err != nil {
				return ledger.Claim{}, err
			}
		}
	}
	return claim, nil
}

// existingDevice returns the UUID of a device of a dynamic GPU, or an empty one while it does not exist.
func existingDevice(device *gpu.GPU, profile string, at gpu.Placement) gpu.UUID {
	if !at.Known() {
		return device.UUID
	}
	for i := range device.MIG.Devices {
		part := &device.MIG.Devices[i]
		if part.Profile == profile && at == (gpu.Placement{Start: part.Start, Size: part.Size}) {
			return part.UUID
		}
	}
	return ""
}
