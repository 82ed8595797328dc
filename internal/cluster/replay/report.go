package replay

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// APIVersion is the version of Report.
const APIVersion = "replay.berth.dev/v1"

// Report is the output of berth replay. Percentages are of the GPU capacity, unless they say otherwise; those of several
// seeds are means.
type Report struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Nodes      int     `json:"nodes"`
	GPUs       int64   `json:"gpus"`
	Pods       int     `json:"pods"`
	Typical    int     `json:"typicalShapes"`
	Inflate    float64 `json:"inflate"`
	// AllocationPercent is that of the only policy; it is missing when there are several.
	AllocationPercent map[string]float64 `json:"allocationPercent,omitempty"`
	Results           []Result           `json:"results"`
}

// Result is what a policy made of a trace.
type Result struct {
	Policy string   `json:"policy"`
	Seeds  []uint64 `json:"seeds"`
	// AllocationPercent is what was allocated when that much was requested: at100, and at the end, for which 1.3 is at130.
	AllocationPercent map[string]float64 `json:"allocationPercent"`
	// StandardDeviation is that of AllocationPercent over the seeds.
	StandardDeviation map[string]float64 `json:"standardDeviation"`
	// FragmentationPercent is the fragmentation of the capacity, FragmentationOfIdlePercent of the idle GPUs.
	FragmentationPercent       map[string]float64 `json:"fragmentationPercent"`
	FragmentationOfIdlePercent map[string]float64 `json:"fragmentationOfIdlePercent"`
	// Unplaced are the pods that fitted nowhere, over all seeds, most first.
	Unplaced []UnplacedShape `json:"unplaced"`
	// Pods counts the decisions over all seeds, Evaluations the checks of a node that they took.
	Pods        int    `json:"pods"`
	Evaluations uint64 `json:"evaluations"`
	// Published is what the publication has for the policy, where it is known.
	Published map[string]PublishedRange `json:"published,omitempty"`
	// Curve has one point for each per cent that was requested.
	Curve []Point `json:"curve"`
}

// UnplacedShape counts the pods of a shape that fitted nowhere.
type UnplacedShape struct {
	CPUMilli  int64  `json:"cpuMilli"`
	MemoryMiB int64  `json:"memoryMiB"`
	GPUs      int32  `json:"gpus"`
	GPUMilli  int32  `json:"gpuMilli"`
	Models    string `json:"models,omitempty"`
	Pods      int    `json:"pods"`
	Text      string `json:"text"`
}

// PublishedRange is a published mean with the smallest and the largest of its seeds, in per cent.
type PublishedRange struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Point is a point of a curve, in per cent.
type Point struct {
	Requested           int     `json:"requested"`
	Allocated           float64 `json:"allocated"`
	FragmentationOfIdle float64 `json:"fragmentationOfIdle"`
}

// Key returns the key of what was allocated when that many per cent were requested.
func Key(percent int) string { return fmt.Sprintf("at%d", percent) }

// NewReport summarises the runs of a trace, which are grouped by policy.
func NewReport(t *Trace, o Options, runs []Run, published []Published) *Report {
	report := &Report{
		APIVersion: APIVersion, Kind: "Replay", Nodes: len(t.Nodes), GPUs: t.capacity() / fleet.Whole, Pods: len(t.Pods),
		Typical: len(fleet.TypicalShapes(t.Pods, TypicalCover)), Inflate: o.Inflate, Results: []Result{},
	}
	for group := range slices.Chunk(runs, len(o.Seeds)) {
		result := newResult(group, EndPercent(o.Inflate))
		for _, p := range published {
			if p.Policy == result.Policy {
				result.Published = map[string]PublishedRange{Key(100): PublishedRange(p.At100), Key(130): PublishedRange(p.At130)}
			}
		}
		report.Results = append(report.Results, result)
	}
	if len(report.Results) == 1 {
		report.AllocationPercent = report.Results[0].AllocationPercent
	}
	return report
}

// EndPercent is how much of the capacity has been requested at the end, in whole per cent.
func EndPercent(inflate float64) int { return int(math.Round(100 * inflate)) }

func newResult(group []Run, end int) Result {
	result := Result{
		Policy: group[0].Policy, AllocationPercent: map[string]float64{}, StandardDeviation: map[string]float64{},
		FragmentationPercent: map[string]float64{}, FragmentationOfIdlePercent: map[string]float64{}, Unplaced: []UnplacedShape{}, Curve: []Point{},
	}
	unplaced := map[fleet.Shape]int{}
	length := math.MaxInt
	for i := range group {
		run := &group[i]
		result.Seeds = append(result.Seeds, run.Seed)
		result.Pods += run.arrivalsOf
		result.Evaluations += run.Stats.Evaluations
		length = min(length, len(run.Samples))
		for shape, pods := range run.Unplaced {
			unplaced[shape] += pods
		}
	}
	for i := range length {
		mean := func(of func(Sample) float64) float64 { return meanOf(group, i, of) }
		result.Curve = append(result.Curve, Point{i, mean(func(s Sample) float64 { return s.Allocated }), mean(func(s Sample) float64 { return s.FragmentedIdle })})
	}
	// The last pod may leave the end a little short of its per cent.
	at := map[string]int{Key(end): length - 1}
	if length > 100 {
		at[Key(100)] = 100
	}
	for key, i := range at {
		mean := meanOf(group, i, func(s Sample) float64 { return s.Allocated })
		result.AllocationPercent[key] = mean
		result.StandardDeviation[key] = math.Sqrt(meanOf(group, i, func(s Sample) float64 { return (s.Allocated - mean) * (s.Allocated - mean) }))
		result.FragmentationPercent[key] = meanOf(group, i, func(s Sample) float64 { return s.Fragmented })
		result.FragmentationOfIdlePercent[key] = meanOf(group, i, func(s Sample) float64 { return s.FragmentedIdle })
	}
	for shape, pods := range unplaced {
		result.Unplaced = append(result.Unplaced, UnplacedShape{shape.CPU, shape.Memory, shape.GPUs, shape.Share, shape.Models.String(), pods, shape.String()})
	}
	slices.SortFunc(result.Unplaced, func(a, b UnplacedShape) int {
		return cmp.Or(-cmp.Compare(a.Pods, b.Pods), -cmp.Compare(a.GPUs, b.GPUs), -cmp.Compare(a.GPUMilli, b.GPUMilli), cmp.Compare(a.Text, b.Text))
	})
	return result
}

func meanOf(group []Run, i int, of func(Sample) float64) float64 {
	sum := 0.0
	for _, run := range group {
		sum += of(run.Samples[min(i, len(run.Samples)-1)])
	}
	return sum / float64(len(group))
}
