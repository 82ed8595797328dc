package config

import (
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// AutoAPIs returns the APIs that can be chosen for the rules with allocation.api auto. Without such a rule it is the device plugin, and
// OfferSettings returns the same for each.
func AutoAPIs(config *v1alpha1.AgentConfig) []offer.API {
	if !HasAuto(config) {
		return []offer.API{offer.DevicePlugin}
	}
	return []offer.API{offer.DevicePlugin, offer.DRA}
}

// HasAuto reports whether a rule has allocation.api auto.
func HasAuto(config *v1alpha1.AgentConfig) bool {
	return slices.ContainsFunc(config.GPUs, func(rule v1alpha1.GPURule) bool { return IsAuto(&rule) })
}

// IsAuto reports whether a rule has allocation.api auto.
func IsAuto(rule *v1alpha1.GPURule) bool {
	return rule.Allocation != nil && rule.Allocation.API == v1alpha1.AllocationAuto
}

// OfferSettings converts the rules of a configuration to the settings that decide how each device is offered. auto is the API that was
// chosen for the rules with allocation.api auto.
func OfferSettings(config *v1alpha1.AgentConfig, auto offer.API) offer.Settings {
	settings := offer.Settings{ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy)}
	for _, rule := range config.GPUs {
		settings.GPUs = append(settings.GPUs, offer.GPURule{
			Select:       offer.GPUSelect(rule.Select),
			Exclude:      rule.Exclude,
			ResourceName: rule.ResourceName,
			Sharing:      offerSharing(rule.Sharing),
			API:          offerAPI(rule.Allocation, auto),
			DynamicMIG:   rule.DynamicMIG,
		})
	}
	for _, rule := range config.MIGDevices {
		settings.MIGDevices = append(settings.MIGDevices, offer.MIGRule{
			Select:       offer.MIGSelect(rule.Select),
			ResourceName: rule.ResourceName,
			Sharing:      offerSharing(rule.Sharing),
		})
	}
	return settings
}

func offerAPI(from *v1alpha1.Allocation, auto offer.API) offer.API {
	switch {
	case from == nil:
		return offer.DevicePlugin
	case from.API == v1alpha1.AllocationDRA:
		return offer.DRA
	case from.API == v1alpha1.AllocationAuto:
		return auto
	}
	return offer.DevicePlugin
}

func offerSharing(from *v1alpha1.Sharing) offer.Sharing {
	if from == nil {
		return offer.Sharing{}
	}
	sharing := offer.Sharing{
		Mode:         offer.Mode(from.Mode),
		Replicas:     from.Replicas,
		ResourceName: from.ResourceName,
		Rename:       from.RenameByDefault,
		RefuseMany:   from.FailRequestsGreaterThanOne != nil && *from.FailRequestsGreaterThanOne,
	}
	if from.TimeSlice != v1alpha1.TimeSliceDefault {
		sharing.TimeSlice = string(from.TimeSlice)
	}
	if from.MPS != nil {
		sharing.MPS = gpu.MPSLimits(*from.MPS)
	}
	return sharing
}
