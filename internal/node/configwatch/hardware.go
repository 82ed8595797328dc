package configwatch

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/inventory"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Layouts returns the GPUs that a configuration gives another MIG layout than they have, and why its layouts cannot be applied.
type Layouts func(by *v1alpha1.AgentConfig) (repartitioned map[gpu.UUID]bool, refused error)

// hardwareJudge implements Judge.
type hardwareJudge struct {
	hardware inventory.Hardware
	vendor   string
	layouts  Layouts
	changes  *signal.Subscription
}

// JudgeByHardware returns a judge that refuses configurations that the hardware of the vendor does not support, and those whose layouts
// cannot be applied where those of the configuration in force can. Its subscription lasts as long as the process.
func JudgeByHardware(hardware inventory.Hardware, vendor string, layouts Layouts) Judge {
	return hardwareJudge{hardware, vendor, layouts, hardware.Subscribe()}
}

// Changed implements Judge.
func (j hardwareJudge) Changed() <-chan struct{} { return j.changes.C() }

// Refuse implements Judge. Without a driver, the capabilities of the GPUs are unknown. The settings do not apply to
// the GPUs of other vendors.
func (j hardwareJudge) Refuse(inForce, next *v1alpha1.AgentConfig) (error, bool) {
	snapshot := j.hardware.Current().Of(j.vendor)
	if !snapshot.DriverPresent() {
		return nil, false
	}
	present, before := j.layouts(inForce)
	wanted, after := j.layouts(next)
	if after != nil && before == nil {
		return after, true
	}
	for _, auto := range config.AutoAPIs(next) {
		now, then := config.OfferSettings(inForce, auto), config.OfferSettings(next, auto)
		now.Repartitioned, then.Repartitioned = present, wanted
		if err := offer.Refuse(snapshot, now, then); err != nil {
			return err, true
		}
	}
	return nil, true
}

// Settings is the configuration as allocatable reads it.
type Settings struct {
	Config   Configuration
	Hardware inventory.Hardware
	// Auto returns the API for the rules with allocation.api auto; known is false while it is not chosen.
	Auto func() (api offer.API, known bool)
	// Vendor and OtherVendors are as in [offer.Settings].
	Vendor       string
	OtherVendors map[string]string
}

// Current returns the settings of what is advertised, and the version of the configuration; known is false while it is not
// known which configuration is in force, or which API is for its rules with auto, and when the hardware has just been found by which
// another configuration is to replace this one.
func (s Settings) Current() (settings offer.Settings, version int, known bool) {
	now := s.Config.Current()
	auto, chosen := s.Auto()
	settings = config.OfferSettings(now.Config, auto)
	settings.Vendor, settings.OtherVendors = s.Vendor, s.OtherVendors
	replaced := now.Pending && s.Hardware.Current().Of(s.Vendor).DriverPresent()
	return settings, now.Version, !now.Waiting && !replaced && (chosen || !config.HasAuto(now.Config))
}

// Subscribe returns a subscription to the configuration.
func (s Settings) Subscribe() *signal.Subscription { return s.Config.Subscribe() }
