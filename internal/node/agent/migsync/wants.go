package migsync

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// wantInputs are all that the wanted layouts depend on.
type wantInputs struct {
	// Snapshot is the hardware of the vendor whose GPUs have MIG.
	Snapshot *gpu.Snapshot
	Config   *v1alpha1.AgentConfig
	MIG      configwatch.MIG
	// Waiting is true while the configuration is not known.
	Waiting bool
	// TurnedOn are the GPUs whose MIG mode was turned on for claims, sorted.
	TurnedOn []gpu.UUID
}

// same reports whether both lead to the same plan. Snapshot and configuration are never changed, so that comparing
// pointers suffices.
func (in wantInputs) same(other wantInputs) bool {
	return in.Snapshot == other.Snapshot && in.Config == other.Config && in.Waiting == other.Waiting && slices.Equal(in.TurnedOn, other.TurnedOn) && reflect.DeepEqual(in.MIG, other.MIG)
}

// wantPlan has the wanted shapes of the GPUs. It is never changed.
type wantPlan struct {
	of wantInputs
	// Known is false before the label of the Node and the configuration were read; Layout is the label's value, empty
	// when there is none.
	Known    bool
	Layout   string
	Wants    []migapply.Want
	Problems []gpu.Cause
	// TwoAPIs is why there are no wants when both APIs would serve a resource name because of them.
	TwoAPIs error
	// Dynamic are the GPUs whose MIG devices follow from the ledger.
	Dynamic map[gpu.UUID]bool
	// Modes are the GPUs whose MIG mode has to change, with the reason.
	Modes map[gpu.UUID]string
	// Differing are the GPUs that are not as wanted.
	Differing map[gpu.UUID]bool
}

// wantsCache has the last plan. Its zero value is ready for use.
type wantsCache struct {
	mu   sync.Mutex
	plan *wantPlan
	// computed counts the computations.
	computed atomic.Int64
}

// Get returns what the GPUs are to be. It is computed only when the configuration or the hardware has changed.
func (c *wantsCache) Get(of wantInputs) *wantPlan {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan == nil || !c.plan.of.same(of) {
		c.computed.Add(1)
		c.plan = computeWants(of)
	}
	return c.plan
}

// Computed returns how often a plan was computed.
func (c *wantsCache) Computed() int64 { return c.computed.Load() }

// modeReason is why a GPU is withheld whose MIG mode changes.
func modeReason(want *migapply.Want) string {
	return "its MIG mode is about to change for " + want.Source
}

// computeWants returns the wanted shape of each GPU: from the layout of the Node's label for the GPUs that it names, and
// from the rules of the configuration for the others. Excluded GPUs are not changed.
func computeWants(of wantInputs) *wantPlan {
	p := &wantPlan{of: of, Known: of.MIG.Known && !of.Waiting, Layout: of.MIG.Layout,
		Modes: map[gpu.UUID]string{}, Dynamic: map[gpu.UUID]bool{}, Differing: map[gpu.UUID]bool{}}
	if !p.Known {
		return p
	}
	var gpus []mig.GPU
	for i := range p.of.Snapshot.GPUs {
		gpus = append(gpus, mig.GPUOf(&p.of.Snapshot.GPUs[i], noHolders))
	}
	p.choose(gpus)
	p.compare(gpus)
	return p
}

const (
	// sourceClaims names the origin of a dynamic GPU's state in messages.
	sourceClaims = "claims"
	// sourceEnd names the origin of the state of a GPU that is not dynamic any more.
	sourceEnd = "the end of dynamicMIG, for which it was turned on"
)

// noHolders is used where the holders do not matter.
func noHolders(gpu.DeviceKey) []string { return nil }

func (p *wantPlan) refuse(code string, err error) {
	p.Problems = append(p.Problems, gpu.Cause{Code: code, Message: err.Error()})
}

// choose sets wants and problems.
func (p *wantPlan) choose(gpus []mig.GPU) {
	named := config.NamedLayouts{ByName: config.Layouts(gpus, p.of.Config.MIGLayouts, p.of.MIG.Layouts)}
	if p.of.MIG.Unread {
		named.Unread = p.of.Config.MIGConfigMap
	}
	if p.of.MIG.Err != nil {
		p.refuse("MIG_LAYOUTS_REFUSED", p.of.MIG.Err)
	}
	var labelled mig.Layout
	if p.Layout != "" {
		var err error
		if labelled, err = named.Find(p.Layout); err != nil {
			p.refuse("MIG_LAYOUT_UNKNOWN", fmt.Errorf("label %s=%s: %w", configwatch.LabelMIG, p.Layout, err))
			return // It is not known which GPUs the layout is for: none is changed.
		}
	}
	deciding := offer.DecidingRules(p.of.Snapshot, config.OfferSettings(p.of.Config, offer.DevicePlugin).GPUs)
	for _, device := range gpus {
		i, ok := deciding[device.UUID]
		rule := v1alpha1.GPURule{}
		if ok {
			rule = p.of.Config.GPUs[i]
		}
		if rule.Exclude || device.UUID == "" {
			continue
		}
		wanted, ok := labelled.Wanted(device)
		if rule.DynamicMIG {
			p.Dynamic[device.UUID] = device.Capable
			if ok {
				p.refuse("MIG_LAYOUT_DYNAMIC", fmt.Errorf("label %s=%s: the layout names GPU %d, whose MIG devices claims create (gpus[%d].dynamicMIG of the configuration): name other GPUs in the layout, or remove dynamicMIG; the GPU keeps serving claims",
					configwatch.LabelMIG, p.Layout, device.Index, i))
			}
			continue
		}
		if ok {
			p.Wants = append(p.Wants, migapply.Want{UUID: device.UUID, Wanted: wanted,
				Source: fmt.Sprintf("layout %s of label %s", p.Layout, configwatch.LabelMIG)})
			continue
		}
		p.byRule(named, device, rule.MIG, i)
	}
}

// byRule sets what a rule wants of a GPU; without a layout MIG is off after it was turned on for claims.
func (p *wantPlan) byRule(named config.NamedLayouts, device mig.GPU, rule *v1alpha1.MIGSettings, i int) {
	want := migapply.Want{UUID: device.UUID}
	ok, err := false, error(nil)
	if rule != nil {
		want.Wanted, want.Source, ok, err = named.ByRule(device, rule, fmt.Sprintf("gpus[%d].mig of the configuration", i))
	}
	switch {
	case err != nil:
		p.refuse("MIG_LAYOUT_UNKNOWN", err)
	case ok:
		p.Wants = append(p.Wants, want)
	case slices.Contains(p.of.TurnedOn, device.UUID):
		p.Wants = append(p.Wants, migapply.Want{UUID: device.UUID, Source: sourceEnd})
	}
}

// compare fills in Modes and Differing.
func (p *wantPlan) compare(gpus []mig.GPU) {
	changes := map[gpu.UUID]*mig.GPUPlan{}
	for _, want := range p.Wants {
		i := slices.IndexFunc(gpus, func(device mig.GPU) bool { return device.UUID == want.UUID })
		change := mig.PlanGPU(gpus[i], want.Wanted)
		if change.Changes() {
			p.Differing[want.UUID] = true
			changes[want.UUID] = &change
		}
		if change.Refused == "" && change.SetMode != nil {
			p.Modes[want.UUID] = modeReason(&want)
		}
	}
	p.separateAPIs(changes)
}

// Snapshot returns the hardware that the plan is for.
func (p *wantPlan) Snapshot() *gpu.Snapshot { return p.of.Snapshot }

// Static leaves out dynamic GPUs.
func (p *wantPlan) Static(statuses []migapply.Status) []migapply.Status {
	return slices.DeleteFunc(slices.Clone(statuses), func(status migapply.Status) bool { return p.Dynamic[status.UUID] })
}

// Claimed returns the wanted state of the dynamic GPUs, in the order of the snapshot.
func (p *wantPlan) Claimed(held []ledger.Holding) []migapply.Want {
	var wants []migapply.Want
	for i := range p.of.Snapshot.GPUs {
		device := &p.of.Snapshot.GPUs[i]
		if !p.Dynamic[device.UUID] {
			continue
		}
		if wanted, ok := migapply.Claimed(device, held); ok {
			wants = append(wants, migapply.Want{UUID: device.UUID, Wanted: wanted, Source: sourceClaims, Claims: true})
		}
	}
	return wants
}
