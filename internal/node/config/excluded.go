package config

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Excluded returns for each GPU of a snapshot that a rule decides about whether the configuration excludes it.
func Excluded(snapshot *gpu.Snapshot, inForce *v1alpha1.AgentConfig) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for id, rule := range offer.DecidingRules(snapshot, OfferSettings(inForce, offer.DevicePlugin).GPUs) {
		out[id] = inForce.GPUs[rule].Exclude
	}
	return out
}
