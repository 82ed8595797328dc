package drasync

import (
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// claims is the ledger as the driver uses it.
type claims struct{ deps Deps }

// AcquireClaim implements dra.Ledger.
func (c claims) AcquireClaim(claim dra.Claim) error {
	return c.deps.Ledger.AcquireClaim(converted(claim))
}

// ReleaseClaim implements dra.Ledger.
func (c claims) ReleaseClaim(uid string) error {
	return c.deps.Ledger.Release(ledger.Claim{UID: uid}.Holder(), nil)
}

// AdoptClaims implements dra.Ledger.
func (c claims) AdoptClaims(all []dra.Claim) error {
	list := make([]ledger.Claim, 0, len(all))
	for _, claim := range all {
		list = append(list, converted(claim))
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

func converted(from dra.Claim) ledger.Claim {
	claim := ledger.Claim{UID: from.UID, Namespace: from.Namespace, Name: from.Name}
	if from.Pods != nil {
		claim.Pods = make([]gpu.Pod, 0, len(from.Pods))
	}
	for _, pod := range from.Pods {
		claim.Pods = append(claim.Pods, gpu.Pod(pod))
	}
	for _, device := range from.Devices {
		claim.Devices = append(claim.Devices, ledger.ClaimDevice{Key: device.Key, Requests: device.Requests})
	}
	return claim
}
