package replay

import (
	"math/rand"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// arrivalsOf returns the pods in the order in which they arrive: the pods of the list, shuffled, and then copies of pods of the
// list, drawn with replacement, until the next one would make the sum of the requested GPUs more than inflate times the
// capacity (in thousandths of a GPU). A list that requests more by itself is not shortened.
//
// The random numbers are those of the published simulator, math/rand with the seed.
func arrivalsOf(pods []fleet.Shape, capacity int64, inflate float64, seed uint64) []fleet.Shape {
	random := rand.New(rand.NewSource(int64(seed)))
	arrivals := slices.Clone(pods)
	random.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
	sum := int64(0)
	for _, pod := range pods {
		sum += pod.Demand()
	}
	if sum == 0 {
		return arrivals
	}
	for limit := int64(inflate * float64(capacity)); sum <= limit; {
		pod := pods[random.Intn(len(pods))]
		if sum += pod.Demand(); sum <= limit {
			arrivals = append(arrivals, pod)
		}
	}
	return arrivals
}
