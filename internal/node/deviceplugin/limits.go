package deviceplugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// limit returns why a container cannot have the picked devices together; nil if it can.
func (v *view) limit(picked []int) error {
	if len(picked) < 2 {
		return nil
	}
	if v.refuseMany {
		return fmt.Errorf("invalid allocation request for %q: maximum request size for shared resources is 1; found %d: a second replica gives a container no more of a GPU; ask for %s: 1, or set failRequestsGreaterThanOne to false in the agent's configuration",
			v.resource, len(picked), v.resource)
	}
	var daemons, others []string
	for _, i := range picked {
		list := &others
		if v.devices[i].Mode == offer.MPS {
			list = &daemons
		}
		if name := v.devices[i].name(); !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	if len(daemons) == 0 || len(daemons)+len(others) == 1 {
		return nil
	}
	return fmt.Errorf("invalid allocation request for %q: it would take replicas of %s: a container can be the client of one MPS daemon only, and each GPU has its own; ask for no more replicas than one GPU has free, or delete the pod and try again when one has",
		v.resource, phrase.And(append(daemons, others...)))
}

// name is the GPU or MIG device in messages.
func (d *device) name() string {
	kind := "GPU"
	if d.Key.MIG != "" {
		kind = "MIG device"
	}
	return fmt.Sprintf("%s %s (%s)", kind, d.Index, d.Key.Device())
}

// sharedWarning says that a container got several time-sliced replicas of one device, which give it no more than one; empty when it did
// not. MPS replicas are chosen from one GPU on purpose.
func (v *view) sharedWarning(picked []int) string {
	if len(picked) < 2 {
		return ""
	}
	counts := map[gpu.UUID]int{}
	var warnings []string
	for _, i := range picked {
		if d := &v.devices[i]; d.Mode == offer.TimeSlicing {
			counts[d.Key.Device()]++
		}
	}
	for _, i := range picked {
		d := &v.devices[i]
		n := counts[d.Key.Device()]
		delete(counts, d.Key.Device())
		switch {
		case n < 2:
		case n < len(picked):
			warnings = append(warnings, fmt.Sprintf("%d of them are on %s", n, d.name()))
		case n == 2:
			warnings = append(warnings, "both are on "+d.name())
		default:
			warnings = append(warnings, "all are on "+d.name())
		}
	}
	if len(warnings) == 0 {
		return ""
	}
	fix := "let other GPUs have replicas free"
	if v.groups.policy == placement.Packed {
		fix = "set sharedDevicesAllocationPolicy to distributed"
	}
	return fmt.Sprintf("container asked for %d of %s and %s: it gets no more of that than with one replica; ask for one, or %s",
		len(picked), v.resource, strings.Join(warnings, ", "), fix)
}
