package labels

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// sharing is how devices are shared, in the words of the labels.
type sharing struct {
	replicas int
	strategy string
	// renamed is true where the shares have a name of their own, so that nobody takes one
	// for a whole device.
	renamed bool
}

// suffix is what a product that is shared under the name of the whole device ends with.
func (s sharing) suffix() string {
	if s.replicas > 1 && !s.renamed {
		return "-SHARED"
	}
	return ""
}

// sharingOf is that of a model's cards. Cards that are partitioned give nothing out as a whole; a
// model that has only such cards has no replicas.
func (b *builder) sharingOf(kind *model) sharing {
	var keys []gpu.DeviceKey
	for _, card := range kind.cards {
		if !card.MIG.Enabled {
			keys = append(keys, gpu.DeviceKey{GPU: card.UUID})
		}
	}
	if len(keys) == 0 {
		return sharing{strategy: "none"}
	}
	return b.common(keys, b.ResourceName)
}

// common is how most of the devices are shared, of equals the way with the fewest replicas. Unshared
// they would be given out as the resource. Those that are not given out do not count.
func (b *builder) common(keys []gpu.DeviceKey, resource string) sharing {
	counts := map[sharing]int{}
	best := sharing{replicas: 1, strategy: "none"}
	var ways []sharing
	for _, key := range keys {
		use, ok := b.uses[key]
		if !ok || use.Mode == offer.Unknown {
			continue
		}
		way := sharing{replicas: 1, strategy: "none"}
		if use.Mode != offer.Whole && use.Replicas > 1 {
			way = sharing{replicas: use.Replicas, strategy: strategy(use.Mode), renamed: use.Resource != resource}
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

func strategy(mode offer.Mode) string {
	if mode == offer.MPS {
		return "mps"
	}
	return "time-slicing"
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
