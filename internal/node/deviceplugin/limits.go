package deviceplugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// limit says why a container cannot have the picked devices together.
func (v *view) limit(picked []int) error {
	if len(picked) < 2 {
		return nil
	}
	if v.refuseMany {
		return fmt.Errorf("invalid allocation request for %q: maximum request size for shared resources is 1; found %d: a second share gives a container no more of a GPU; ask for %s: 1, or set failRequestsGreaterThanOne to false in the agent's configuration",
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
	return fmt.Errorf("invalid allocation request for %q: it would take shares of %s: a container can be the client of one MPS daemon only, and each GPU has its own; ask for no more shares than one GPU has free, or delete the pod and try again when one has",
		v.resource, enumerate(append(daemons, others...)))
}

// enumerate makes a phrase of at least two names.
func enumerate(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// name is the card or MIG device for people.
func (d *device) name() string {
	kind := "GPU"
	if d.Key.MIG != "" {
		kind = "MIG device"
	}
	return fmt.Sprintf("%s %s (%s)", kind, d.Index, d.Key.Device())
}

// crowded says that a container got several time-sliced shares of one device, which is not what
// it hoped for when it asked; empty when it did not. That MPS shares are of one GPU is meant.
func (v *view) crowded(picked []int) string {
	if len(picked) < 2 {
		return ""
	}
	counts := map[gpu.UUID]int{}
	var crowds []string
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
			crowds = append(crowds, fmt.Sprintf("%d of them are on %s", n, d.name()))
		case n == 2:
			crowds = append(crowds, "both are on "+d.name())
		default:
			crowds = append(crowds, "all are on "+d.name())
		}
	}
	if len(crowds) == 0 {
		return ""
	}
	fix := "let other GPUs have shares free"
	if v.shares.policy == placement.Packed {
		fix = "set sharedDevicesAllocationPolicy to distributed"
	}
	return fmt.Sprintf("container asked for %d of %s and %s: it gets no more of that than with one share; ask for one, or %s",
		len(picked), v.resource, strings.Join(crowds, ", "), fix)
}
