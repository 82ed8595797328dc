package drasync

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// preparedClaims returns a function that reads the claims that the kubelet lists as prepared from its record; hostRoot is where the host's
// root is mounted.
func preparedClaims(hostRoot, kubeletDir, driver string) func() ([]dra.Listed, error) {
	return func() ([]dra.Listed, error) { return prepared.Read(hostRoot, kubeletDir, driver) }
}

// RecordedClaims returns a function that reads which pods use the claims of the driver from the same record.
func RecordedClaims(hostRoot, kubeletDir, driver string) func() ([]ledger.ClaimPods, error) {
	read := preparedClaims(hostRoot, kubeletDir, driver)
	return func() ([]ledger.ClaimPods, error) {
		listed, err := read()
		if err != nil {
			return nil, err
		}
		if listed == nil {
			return nil, nil // There is no record.
		}
		claims := make([]ledger.ClaimPods, 0, len(listed))
		for _, one := range listed {
			claim := ledger.ClaimPods{UID: one.UID}
			for _, uid := range one.PodUIDs {
				claim.Pods = append(claim.Pods, gpu.Pod{UID: uid})
			}
			claims = append(claims, claim)
		}
		return claims, nil
	}
}
