// Package configsync reports whether the newest configuration is in force, and judges a new one by the hardware. It applies
// nothing: whatever depends on the configuration reads it from the watcher and has a subscription of its own.
//
// What wakes it: a change of what the watcher knows.
//
// What it writes: the condition ConfigAccepted of the GPUNode, and the problems of the source "config".
//
// What it never waits for: anything. Watcher, conditions and problems are in memory.
//
// It must not import an adapter, the ledger or a front end.
package configsync

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Config is the watcher of the configuration.
type Config interface {
	Current() configwatch.State
	Subscribe() *signal.Subscription
}

// Conditions are those of the GPUNode.
type Conditions interface {
	Set(kind string, status metav1.ConditionStatus, reason, message string)
}

// Deps are what a Syncer is made of.
type Deps struct {
	Config     Config
	Conditions Conditions
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
}

// Syncer is the actor. Make it with New, start it with Run.
type Syncer struct{ deps Deps }

// New makes a Syncer.
func New(deps Deps) *Syncer { return &Syncer{deps} }

// Run reports until ctx ends.
func (s *Syncer) Run(ctx context.Context) error {
	changes := s.deps.Config.Subscribe()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C():
			s.sync()
		}
	}
}

// sync reports the present state.
func (s *Syncer) sync() {
	now := s.deps.Config.Current()
	switch {
	case now.Refused != nil:
		s.deps.Conditions.Set(nodeapi.ConditionConfig, metav1.ConditionFalse, "Refused", now.Refused.Error())
	case !now.Waiting:
		message := "in force: defaults and flags"
		if now.Source != "" {
			message = "in force: " + now.Source
		}
		s.deps.Conditions.Set(nodeapi.ConditionConfig, metav1.ConditionTrue, "InForce", message)
	}
	s.deps.Report("config", problems(now)...)
}

// problems returns the problems of the configuration and of its sources.
func problems(now configwatch.State) []gpu.Cause {
	var causes []gpu.Cause
	if now.Refused != nil {
		causes = append(causes, gpu.Cause{Code: "CONFIG_REFUSED", Message: "configuration refused, the last good one stays in force: " + now.Refused.Error()})
	}
	for _, lost := range now.Lost {
		causes = append(causes, gpu.Cause{Code: lost.Code, Message: lost.Err.Error()})
	}
	for _, err := range now.Unsaved {
		causes = append(causes, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error() + "; a restart could not go back to what is in force now"})
	}
	for _, object := range now.Forbidden {
		causes = append(causes, gpu.Cause{Code: "CONFIG_FORBIDDEN", Message: object})
	}
	if len(now.Restart) > 0 {
		causes = append(causes, gpu.Cause{Code: "CONFIG_RESTART", Message: "changed settings take effect only when the agent starts again: " + strings.Join(now.Restart, ", ")})
	}
	return causes
}

// Hardware is the inventory.
type Hardware interface {
	Current() *gpu.Snapshot
	Subscribe() *signal.Subscription
}

// Layouts returns the GPUs that a configuration gives another MIG layout than they have, and why its layouts cannot be applied.
type Layouts func(by *v1alpha1.AgentConfig) (repartitioned map[gpu.UUID]bool, refused error)

// judge implements configwatch.Judge.
type judge struct {
	hardware Hardware
	vendor   string
	layouts  Layouts
	changes  *signal.Subscription
}

// Judge returns a judge that refuses configurations that the hardware of the vendor does not support, and those whose layouts cannot be
// applied where those of the configuration in force can. Its subscription lasts as long as the process.
func Judge(hardware Hardware, vendor string, layouts Layouts) configwatch.Judge {
	return judge{hardware, vendor, layouts, hardware.Subscribe()}
}

// Changed implements configwatch.Judge.
func (j judge) Changed() <-chan struct{} { return j.changes.C() }

// Refuse implements configwatch.Judge. Without a driver, the capabilities of the GPUs are unknown. The settings do not apply to
// the GPUs of other vendors.
func (j judge) Refuse(inForce, next *v1alpha1.AgentConfig) (error, bool) {
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
	Config   Config
	Hardware Hardware
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
