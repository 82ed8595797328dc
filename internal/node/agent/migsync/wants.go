package migsync

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// inputs are all that the wanted layouts depend on.
type inputs struct {
	snapshot *gpu.Snapshot
	config   *v1alpha1.AgentConfig
	mig      configwatch.MIG
	waiting  bool
}

// same reports whether both lead to the same plan. Snapshot and configuration are never changed, so that comparing
// pointers suffices.
func (in inputs) same(other inputs) bool {
	return in.snapshot == other.snapshot && in.config == other.config && in.waiting == other.waiting && reflect.DeepEqual(in.mig, other.mig)
}

// plan has the wanted shapes of the GPUs. It is never changed.
type plan struct {
	of inputs
	// snapshot is the part of the hardware that layouts are about; GPUs of other vendors have no MIG devices.
	snapshot *gpu.Snapshot
	// known is false before the label of the Node and the configuration were read; layout is the label's value, empty
	// when there is none.
	known    bool
	layout   string
	wants    []migapply.Want
	problems []gpu.Cause
	// dynamic are the GPUs whose MIG devices follow from the ledger.
	dynamic map[gpu.UUID]bool
	// modes are the GPUs whose MIG mode has to change, with the reason.
	modes map[gpu.UUID]string
	// differing are the GPUs that are not as wanted, with the reason.
	differing map[gpu.UUID]string
}

// wanted returns what the GPUs are to be. It is computed only when the configuration or the hardware has changed.
func (s *Syncer) wanted() *plan {
	s.planMu.Lock()
	defer s.planMu.Unlock()
	now := s.deps.Config.Current()
	of := inputs{snapshot: s.deps.Hardware.Current(), config: now.Config, mig: now.MIG, waiting: now.Waiting}
	if s.plan == nil || !s.plan.of.same(of) {
		s.computed.Add(1)
		s.plan = compute(of)
	}
	return s.plan
}

// Computed returns how often the wanted layouts were computed.
func (s *Syncer) Computed() int64 { return s.computed.Load() }

// Changing returns the GPUs whose MIG mode is about to change or is changing, with the reason. A GPU is among them as
// soon as the change is wanted, not only when Partition begins it: in between, at a start above all, a pod could be
// given the GPU that is about to be partitioned. A dynamic GPU is not among them: its mode changes while claims hold it, and
// the ledger refuses what does not fit. repartitioned are all GPUs that are to have another layout than they have. It never waits
// for a call of the driver, a file or the API server.
func (s *Syncer) Changing(snapshot *gpu.Snapshot) (changing, repartitioned map[gpu.UUID]string) {
	statuses := s.deps.Partition.Statuses()
	changing = migapply.Pending(statuses)
	plan := s.wanted()
	maps.DeleteFunc(changing, func(id gpu.UUID, _ string) bool { return plan.dynamic[id] })
	for _, status := range statuses {
		at := slices.IndexFunc(plan.wants, func(want migapply.Want) bool { return want.UUID == status.UUID })
		if status.State == migapply.Changing && changing[status.UUID] != "" && at >= 0 {
			// The reason stays the same from the edit to the result, so that the use of the devices does.
			changing[status.UUID] = modeReason(&plan.wants[at])
		}
	}
	for id, reason := range plan.modes {
		given := slices.ContainsFunc(statuses, func(status migapply.Status) bool {
			return status.UUID == id && (status.State == migapply.Failed || status.State == migapply.Refused)
		})
		if snapshot.GPU(id) != nil && !given && changing[id] == "" {
			changing[id] = reason
		}
	}
	return changing, plan.differing
}

// Repartitioned returns the GPUs whose layout by another configuration is not the one that they have, with the reason.
func (s *Syncer) Repartitioned(by *v1alpha1.AgentConfig) map[gpu.UUID]string {
	return compute(inputs{snapshot: s.deps.Hardware.Current(), config: by, mig: s.deps.Config.Current().MIG}).differing
}

// modeReason is why a GPU is withheld whose MIG mode changes.
func modeReason(want *migapply.Want) string {
	return "its MIG mode is about to change for " + want.Source
}

// compute returns the wanted shape of each GPU: from the layout of the Node's label for the GPUs that it names, and
// from the rules of the configuration for the others. Excluded GPUs are not changed.
func compute(of inputs) *plan {
	p := &plan{of: of, snapshot: of.snapshot, known: of.mig.Known && !of.waiting, layout: of.mig.Layout,
		modes: map[gpu.UUID]string{}, dynamic: map[gpu.UUID]bool{}, differing: map[gpu.UUID]string{}}
	if !p.known {
		return p
	}
	var gpus []mig.GPU
	for i := range p.snapshot.GPUs {
		gpus = append(gpus, mig.GPUOf(&p.snapshot.GPUs[i], noHolders))
	}
	p.choose(gpus)
	p.compare(gpus)
	return p
}

// noHolders is used where the holders do not matter.
func noHolders(gpu.DeviceKey) []string { return nil }

func (p *plan) refuse(code string, err error) {
	p.problems = append(p.problems, gpu.Cause{Code: code, Message: err.Error()})
}

// choose sets wants and problems.
func (p *plan) choose(gpus []mig.GPU) {
	named := config.NamedLayouts{ByName: config.Layouts(gpus, p.of.config.MIGLayouts, p.of.mig.Layouts)}
	if p.of.mig.Unread {
		named.Unread = p.of.config.MIGConfigMap
	}
	if p.of.mig.Err != nil {
		p.refuse("MIG_LAYOUTS_REFUSED", p.of.mig.Err)
	}
	var labelled mig.Layout
	if p.layout != "" {
		var err error
		if labelled, err = named.Find(p.layout); err != nil {
			p.refuse("MIG_LAYOUT_UNKNOWN", fmt.Errorf("label %s=%s: %w", configwatch.LabelMIG, p.layout, err))
			return // It is not known which GPUs the layout is for: none is changed.
		}
	}
	deciding := offer.DecidingRules(p.snapshot, config.OfferSettings(p.of.config).GPUs)
	for _, device := range gpus {
		i, ok := deciding[device.UUID]
		rule := v1alpha1.GPURule{}
		if ok {
			rule = p.of.config.GPUs[i]
		}
		if rule.Exclude || device.UUID == "" {
			continue
		}
		wanted, ok := labelled.Wanted(device)
		if rule.DynamicMIG {
			p.dynamic[device.UUID] = device.Capable
			if ok {
				p.refuse("MIG_LAYOUT_DYNAMIC", fmt.Errorf("label %s=%s: the layout names GPU %d, whose MIG devices claims create (gpus[%d].dynamicMIG of the configuration): name other GPUs in the layout, or remove dynamicMIG; the GPU keeps serving claims",
					configwatch.LabelMIG, p.layout, device.Index, i))
			}
			continue
		}
		if ok {
			p.wants = append(p.wants, migapply.Want{UUID: device.UUID, Wanted: wanted,
				Source: fmt.Sprintf("layout %s of label %s", p.layout, configwatch.LabelMIG)})
			continue
		}
		if rule.MIG == nil {
			continue
		}
		wanted, source, ok, err := named.ByRule(device, rule.MIG, fmt.Sprintf("gpus[%d].mig of the configuration", i))
		if err != nil {
			p.refuse("MIG_LAYOUT_UNKNOWN", err)
		} else if ok {
			p.wants = append(p.wants, migapply.Want{UUID: device.UUID, Wanted: wanted, Source: source})
		}
	}
}

// compare fills in modes and differing.
func (p *plan) compare(gpus []mig.GPU) {
	for _, want := range p.wants {
		i := slices.IndexFunc(gpus, func(device mig.GPU) bool { return device.UUID == want.UUID })
		change := mig.PlanGPU(gpus[i], want.Wanted)
		if change.Changes() {
			p.differing[want.UUID] = "it is about to change for " + want.Source
		}
		if change.Refused == "" && change.SetMode != nil {
			p.modes[want.UUID] = modeReason(&want)
		}
	}
}
