package mig

import "github.com/berth-gpu/berth/internal/core/gpu"

// Instance is one MIG device (a GPU instance with one compute instance of its whole size) that exists.
type Instance struct {
	// UUID is empty for a GPU instance without a compute instance.
	UUID    gpu.UUID `json:"uuid,omitempty"`
	GI      int      `json:"gi"`
	Profile string   `json:"profile"`
	// Start and Size are in memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Siblings are the MIG devices of further compute instances in the same GPU instance. They
	// go with it, and an instance that has some is in no layout.
	Siblings []gpu.UUID `json:"siblings,omitempty"`
	// Holders are those that hold it or a sibling, as phrases for people ("default/train-0");
	// an instance with a holder is never destroyed. One phrase is one holder. An instance that looks empty has
	// those that may hold it after all.
	Holders []string `json:"holders,omitempty"`
}

// GPU is a GPU as it is.
type GPU struct {
	UUID  gpu.UUID
	Index int
	// Product, DeviceID (0xDDDDVVVV) and SubsystemID (0xSSSSVVVV) are what layouts select by.
	Product     string
	DeviceID    uint32
	SubsystemID uint32
	Capable     bool
	Enabled     bool
	// ModeNeedsReset is true where a change of the mode takes a GPU reset.
	ModeNeedsReset bool
	Geometry       gpu.MIGGeometry
	Instances      []Instance
	// Holders hold the whole GPU or shares of it, which a change of the mode and the
	// destruction of any device must wait for.
	Holders []string
}

// Wanted is what a GPU is to be: MIG off, or on with so many devices of each profile.
type Wanted struct {
	Enabled bool           `json:"enabled"`
	Devices map[string]int `json:"devices,omitempty"`
}

// Placed is an instance to make.
type Placed struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
	Size    int    `json:"size"`
}

// Blocker is a holder in the way of a plan.
type Blocker struct {
	// Instance is what it holds; the zero value means the whole GPU or a share of it.
	Instance Instance `json:"instance,omitzero"`
	Holders  []string `json:"holders"`
}

// GPUPlan is what happens to one GPU.
type GPUPlan struct {
	UUID   gpu.UUID `json:"uuid"`
	Index  int      `json:"index"`
	Wanted Wanted   `json:"wanted"`
	// Refused says why the layout cannot be had on this GPU by anybody's leaving: too
	// many devices, an unknown profile, a GPU that cannot do MIG. Nothing else is set then.
	Refused string `json:"refused,omitempty"`
	// SetMode is set when the mode changes; Reset when that takes a GPU reset.
	SetMode *bool `json:"setMode,omitempty"`
	Reset   bool  `json:"reset,omitempty"`
	// Unplanned is set when the driver names the GPU's profiles only while MIG is on (R535 and older): the devices are planned
	// once it is.
	Unplanned bool `json:"unplanned,omitempty"`
	// Keep, Destroy and Create are in the order of Start; they are carried out as Destroy, mode,
	// Create. While there are Blockers nothing is carried out.
	Keep    []Instance `json:"keep,omitempty"`
	Destroy []Instance `json:"destroy,omitempty"`
	Create  []Placed   `json:"create,omitempty"`
	// Blockers is the smallest set of holders that must end first; empty when the plan can
	// be carried out now. Keep, Destroy and Create are then the plan for after they ended, so the
	// blocking instances are in Destroy.
	Blockers []Blocker `json:"blockers,omitempty"`
}

// Changes tells whether the plan does anything to the GPU.
func (p *GPUPlan) Changes() bool {
	return p.SetMode != nil || len(p.Destroy) > 0 || len(p.Create) > 0
}
