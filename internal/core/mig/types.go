package mig

import "github.com/berth-gpu/berth/internal/core/gpu"

// Instance is an existing MIG device: a GPU instance with one compute instance of its whole size.
type Instance struct {
	// UUID is empty for a GPU instance without a compute instance.
	UUID    gpu.UUID `json:"uuid,omitempty"`
	GI      int      `json:"gi"`
	Profile string   `json:"profile"`
	// Start and Size are in memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Siblings are the MIG devices of further compute instances in the same GPU instance. They are destroyed with it,
	// and an instance with siblings is in no layout.
	Siblings []gpu.UUID `json:"siblings,omitempty"`
	// Holders are the holders of the device or of a sibling, as phrases for people ("default/train-0"); an instance
	// with a holder is never destroyed. One phrase is one holder. An instance that looks empty has the holders that may
	// use it after all.
	Holders []string `json:"holders,omitempty"`
}

// GPU is the current state of a GPU.
type GPU struct {
	UUID  gpu.UUID
	Index int
	// Product, DeviceID (0xDDDDVVVV) and SubsystemID (0xSSSSVVVV) are what layouts select by.
	Product     string
	DeviceID    uint32
	SubsystemID uint32
	Capable     bool
	Enabled     bool
	// ModeNeedsReset is true if a change of the mode needs a GPU reset.
	ModeNeedsReset bool
	Geometry       gpu.MIGGeometry
	Instances      []Instance
	// Holders hold the whole GPU or replicas of it. A change of the mode and the destruction of any device wait for
	// them.
	Holders []string
}

// Wanted is the wanted state of a GPU: MIG off, or on with either a number of devices of each profile, whose placements the
// plan chooses, or devices at exactly these placements.
type Wanted struct {
	Enabled bool           `json:"enabled"`
	Devices map[string]int `json:"devices,omitempty"`
	Placed  []Placed       `json:"placed,omitempty"`
}

// Placed is an instance at a placement. Start and Size are in memory slices.
type Placed struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
	Size    int    `json:"size"`
}

// Blocker is a holder that blocks a plan.
type Blocker struct {
	// Instance is what it holds; the zero value means the whole GPU or a replica of it.
	Instance Instance `json:"instance,omitzero"`
	Holders  []string `json:"holders"`
}

// GPUPlan is what happens to one GPU.
type GPUPlan struct {
	UUID   gpu.UUID `json:"uuid"`
	Index  int      `json:"index"`
	Wanted Wanted   `json:"wanted"`
	// Refused says why this GPU cannot have the layout even when all holders end: too many devices, an unknown profile,
	// no MIG. Nothing else is set then.
	Refused string `json:"refused,omitempty"`
	// SetMode is set when the mode changes; Reset when that needs a GPU reset.
	SetMode *bool `json:"setMode,omitempty"`
	Reset   bool  `json:"reset,omitempty"`
	// Unplanned is set when the driver lists the GPU's profiles only while MIG is on (R535 and older): the devices are
	// planned once it is.
	Unplanned bool `json:"unplanned,omitempty"`
	// Keep, Destroy and Create are sorted by Start; they are executed in the order Destroy, mode, Create. While there
	// are Blockers, nothing is executed.
	Keep    []Instance `json:"keep,omitempty"`
	Destroy []Instance `json:"destroy,omitempty"`
	Create  []Placed   `json:"create,omitempty"`
	// Blockers is the smallest set of holders that must end first; empty when the plan can be executed now. Keep,
	// Destroy and Create are then the plan for the time after that, so Destroy contains the blocking instances.
	Blockers []Blocker `json:"blockers,omitempty"`
}

// Changes reports whether the plan changes the GPU.
func (p *GPUPlan) Changes() bool {
	return p.SetMode != nil || len(p.Destroy) > 0 || len(p.Create) > 0
}
