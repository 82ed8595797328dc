package migapply

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// shape describes a wanted partition: "MIG with 3x 1g.10gb and 1x 4g.40gb".
func shape(wanted mig.Wanted) string {
	if !wanted.Enabled {
		return "MIG off"
	}
	var parts []string
	for _, profile := range slices.Sorted(maps.Keys(wanted.Devices)) {
		if n := wanted.Devices[profile]; n > 0 {
			parts = append(parts, strconv.Itoa(n)+"x "+profile)
		}
	}
	for _, one := range wanted.Placed {
		parts = append(parts, one.String())
	}
	if len(parts) == 0 {
		return "MIG without devices"
	}
	return "MIG with " + phrase.And(parts)
}

// goal returns the shape with the source of the want.
func goal(want Want) string {
	if want.Source == "" {
		return shape(want.Wanted)
	}
	return shape(want.Wanted) + " (" + want.Source + ")"
}

// name is the name of a GPU in messages.
func name(device *gpu.GPU) string { return "GPU " + strconv.Itoa(device.Index) }

// ended names the holders that have to end first: "default/a (3g.40gb at 4) and default/b have ended".
func ended(all []mig.Blocker) string {
	var parts []string
	holders := 0
	for _, b := range all {
		part := phrase.And(b.Holders)
		if b.Instance.Profile != "" {
			part += fmt.Sprintf(" (%s at %d)", b.Instance.Profile, b.Instance.Start)
		}
		parts = append(parts, part)
		holders += len(b.Holders)
	}
	if holders == 1 {
		return parts[0] + " has ended"
	}
	return phrase.And(parts) + " have ended"
}

// holder names who holds a device.
func holder(h ledger.Holding) string {
	if h.Holder.Kind == gpu.HolderOrphan {
		return h.Holder.String() + ", no longer known to the kubelet but still running"
	}
	return h.Holder.String()
}

// differences describes how a GPU differs from the plan although the driver reported success.
func differences(device *gpu.GPU, plan *mig.GPUPlan) string {
	var parts []string
	if plan.Refused != "" {
		parts = append(parts, plan.Refused)
	}
	if plan.SetMode != nil {
		parts = append(parts, "MIG is "+onOff(!*plan.SetMode))
	}
	if device.MIG.PendingEnabled != device.MIG.Enabled {
		parts = append(parts, "MIG will be "+onOff(device.MIG.PendingEnabled)+" after the next reset")
	}
	for _, gone := range plan.Destroy {
		parts = append(parts, fmt.Sprintf("%s at %d still exists", cmp.Or(gone.Profile, "an instance"), gone.Start))
	}
	for _, missing := range plan.Create {
		parts = append(parts, fmt.Sprintf("%s at %d is missing", missing.Profile, missing.Start))
	}
	for _, empty := range device.MIG.Empty {
		parts = append(parts, fmt.Sprintf("%s at %d has no compute instance", empty.Profile, empty.Start))
	}
	return phrase.And(parts)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
