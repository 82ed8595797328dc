package config

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// OfferSettings converts the rules of a configuration to the settings that decide how each device is offered.
func OfferSettings(config *v1alpha1.AgentConfig) offer.Settings {
	settings := offer.Settings{ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy)}
	for _, rule := range config.GPUs {
		settings.GPUs = append(settings.GPUs, offer.GPURule{
			Select: offer.GPUSelect{
				Index: rule.Select.Index, UUID: uuids(rule.Select.UUID), Model: rule.Select.Model, Count: rule.Select.Count,
			},
			Exclude: rule.Exclude, ResourceName: rule.ResourceName, Sharing: offerSharing(rule.Sharing), API: offerAPI(rule.Allocation),
			DynamicMIG: rule.DynamicMIG,
		})
	}
	for _, rule := range config.MIGDevices {
		settings.MIGDevices = append(settings.MIGDevices, offer.MIGRule{
			Select: offer.MIGSelect{
				GPU: rule.Select.GPU, Index: rule.Select.Index, UUID: uuids(rule.Select.UUID),
				Profile: rule.Select.Profile, NamedAsGPU: rule.Select.NamedAsGPU, Count: rule.Select.Count,
			},
			ResourceName: rule.ResourceName, Sharing: offerSharing(rule.Sharing),
		})
	}
	return settings
}

func offerAPI(from *v1alpha1.Allocation) offer.API {
	if from != nil && from.API == v1alpha1.AllocationDRA {
		return offer.DRA
	}
	return offer.DevicePlugin
}

func uuids(names []string) []gpu.UUID {
	var ids []gpu.UUID
	for _, name := range names {
		ids = append(ids, gpu.UUID(name))
	}
	return ids
}

func offerSharing(from *v1alpha1.Sharing) offer.Sharing {
	if from == nil {
		return offer.Sharing{}
	}
	sharing := offer.Sharing{
		Mode: offer.Mode(from.Mode), Replicas: from.Replicas, ResourceName: from.ResourceName, Rename: from.RenameByDefault,
		RefuseMany: from.FailRequestsGreaterThanOne != nil && *from.FailRequestsGreaterThanOne,
	}
	if from.TimeSlice != v1alpha1.TimeSliceDefault {
		sharing.TimeSlice = string(from.TimeSlice)
	}
	if from.MPS != nil {
		sharing.PinnedMemoryMiB = from.MPS.PinnedMemoryMiB
		sharing.ActiveThreadPercentage = from.MPS.ActiveThreadPercentage
		sharing.SingleUser = from.MPS.SingleUser
	}
	return sharing
}
