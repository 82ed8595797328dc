package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/cli/fit"
	"github.com/berth-gpu/berth/internal/core/why"
)

// The keys of what claims could request instead.
const (
	relaxSelectors   = "selectors"
	relaxConstraints = "constraints"
	relaxCount       = "count="
	relaxClass       = "class="
)

// maxCounts bounds the smaller numbers of devices that are tried.
const maxCounts = 8

// Relaxations implements why.Claims.
func (c *whyClaims) Relaxations() []why.Relaxation {
	var list []why.Relaxation
	exact := c.exact(c.workload.Claims)
	selectors, constraints := false, false
	for _, claim := range c.workload.Claims {
		constraints = constraints || len(claim.Spec.Devices.Constraints) > 0
	}
	for _, e := range exact {
		selectors = selectors || len(e.Selectors) > 0
	}
	if constraints {
		list = append(list, why.Relaxation{Key: relaxConstraints, Text: "its claims had no constraints"})
	}
	if selectors {
		list = append(list, why.Relaxation{Key: relaxSelectors, Text: "its claims had no selectors"})
	}
	if len(exact) == 1 {
		for count := exact[0].Count - 1; count >= max(1, exact[0].Count-maxCounts); count-- {
			list = append(list, why.Relaxation{Key: relaxCount + strconv.FormatInt(count, 10), Text: fmt.Sprintf("its claim requested %d devices instead of %d", count, exact[0].Count)})
		}
		if !slices.Contains(c.classes, exact[0].DeviceClassName) {
			for _, name := range c.classes[:min(len(c.classes), maxCounts)] {
				list = append(list, why.Relaxation{Key: relaxClass + name, Text: "its claim named the DeviceClass " + name})
			}
		}
	}
	return list
}

// exact returns the requests of claims that are for a number of devices.
func (c *whyClaims) exact(claims []*resourceapi.ResourceClaim) (list []*resourceapi.ExactDeviceRequest) {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			if e := claim.Spec.Devices.Requests[i].Exactly; e != nil {
				list = append(list, e)
			}
		}
	}
	return list
}

// relaxed returns the pod with other claims. They have another name, since the cluster has those of their names already.
func (c *whyClaims) relaxed(keys []string) *fit.Workload {
	if len(keys) == 0 {
		return &c.workload
	}
	w := c.workload
	w.Claims = nil
	for _, claim := range c.workload.Claims {
		made := claim.DeepCopy()
		made.Name += "-relaxed"
		w.Claims = append(w.Claims, made)
		if slices.Contains(keys, relaxConstraints) {
			made.Spec.Devices.Constraints = nil
		}
	}
	for _, e := range c.exact(w.Claims) {
		for _, key := range keys {
			if key == relaxSelectors {
				e.Selectors = nil
			}
			if text, ok := strings.CutPrefix(key, relaxCount); ok {
				if count, err := strconv.ParseInt(text, 10, 64); err == nil {
					e.Count = count
				}
			}
			if name, ok := strings.CutPrefix(key, relaxClass); ok {
				e.DeviceClassName = name
			}
		}
	}
	return &w
}
