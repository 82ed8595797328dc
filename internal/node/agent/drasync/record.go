package drasync

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// Recorded returns a function that reads which pods use the claims of the driver from the kubelet's record; hostRoot
// is where the host's root is mounted.
func Recorded(hostRoot, kubeletDir string) func() ([]ledger.ClaimPods, error) {
	return func() ([]ledger.ClaimPods, error) {
		listed, err := prepared.Read(hostRoot, kubeletDir, pool.DefaultDriver)
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
