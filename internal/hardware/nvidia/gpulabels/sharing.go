package gpulabels

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
)

// sharing describes how devices are shared, with the values of the labels.
type sharing struct {
	replicas int
	strategy string
	// renamed is true where the replicas have a resource name of their own, which distinguishes them from whole devices.
	renamed bool
}

// suffix returns the end of the product label, which marks devices that are shared under the name of the whole device.
func (s sharing) suffix() string {
	if s.replicas > 1 && !s.renamed {
		return "-SHARED"
	}
	return ""
}

// sharingOf returns how a model's GPUs are shared. GPUs that are partitioned are not advertised as a whole; a model that has only
// such GPUs has no replicas.
func (b *builder) sharingOf(kind *model) sharing {
	var keys []gpu.DeviceKey
	for _, g := range kind.gpus {
		if !g.MIG.Enabled {
			keys = append(keys, gpu.DeviceKey{GPU: g.UUID})
		}
	}
	if len(keys) == 0 {
		return sharing{strategy: labelset.SharingNone}
	}
	return b.common(keys, b.ResourceName)
}

// common returns how most of the devices are shared and, if several ways have the same number, the one with the fewest
// replicas. Without sharing they are advertised as the resource. Devices that are not advertised do not count.
func (b *builder) common(keys []gpu.DeviceKey, resource string) sharing {
	counts := map[sharing]int{}
	best := sharing{replicas: 1, strategy: labelset.SharingNone}
	var ways []sharing
	for _, key := range keys {
		use := b.Uses[key]
		if use.Sharing == "" {
			continue
		}
		way := sharing{replicas: 1, strategy: labelset.SharingNone}
		if use.Sharing != labelset.SharingNone && use.Replicas > 1 {
			way = sharing{replicas: use.Replicas, strategy: use.Sharing, renamed: use.Resource != resource}
		}
		if counts[way] == 0 {
			ways = append(ways, way)
		}
		counts[way]++
	}
	if len(ways) > 0 {
		best = slices.MinFunc(ways, func(x, y sharing) int {
			return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x.replicas, y.replicas),
				cmp.Compare(x.strategy, y.strategy), cmp.Compare(number(x.renamed), number(y.renamed)))
		})
	}
	return best
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
