package drasync

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// claimed returns the claims of the ledger, in the order of their first device, with those of their devices that exist now and are known
// by name, and those whose GPU is not on the node any more.
func (s *Syncer) claimed() []dra.StatusClaim {
	return claimedOf(s.deps.Ledger.Holdings(), s.deps.Hardware.Current(), s.deps.NodeName, s.devices)
}

func claimedOf(holdings []ledger.Holding, snapshot *gpu.Snapshot, pool string, devices func() []dra.Device) []dra.StatusClaim {
	var claims []dra.StatusClaim
	position := map[string]int{}
	var names map[gpu.DeviceKey]dra.Device
	for i := range holdings {
		h := &holdings[i]
		if h.Holder.Kind != gpu.HolderClaim {
			continue
		}
		if names == nil {
			names = named(devices())
		}
		at, known := position[h.Holder.ID]
		if !known {
			at = len(claims)
			position[h.Holder.ID] = at
			claims = append(claims, dra.StatusClaim{UID: h.Holder.ID, Namespace: h.Holder.Namespace, Name: h.Holder.Name})
		}
		of := snapshot.GPU(h.Key.GPU)
		if of == nil && snapshot.DriverPresent() {
			claims[at].Devices = append(claims[at].Devices, dra.RemovedDevice(&h.Holding, pool))
			continue
		}
		device, known := names[h.Key]
		if !known || of == nil || h.Key.Placement.Known() {
			continue
		}
		one := dra.StatusDevice{
			Pool: pool, Name: device.Name, UUID: h.Key.Device(), Profile: device.Profile, PCI: of.PCI.String(),
			Health: device.Health, Reason: device.Reason, Since: h.Since,
		}
		if !h.Key.Whole() {
			one.Parent = h.Key.GPU
		}
		claims[at].Devices = append(claims[at].Devices, one)
	}
	return claims
}

// named returns devices by what the ledger calls them, a MIG device that exists by its UUID.
func named(devices []dra.Device) map[gpu.DeviceKey]dra.Device {
	names := map[gpu.DeviceKey]dra.Device{}
	for _, device := range devices {
		key := device.Key
		if key.Placement.Known() && device.UUID != "" {
			key = gpu.DeviceKey{GPU: key.GPU, MIG: device.UUID}
		}
		names[key] = device
	}
	return names
}
