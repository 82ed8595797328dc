package fleetview

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Annotations by which a pod says what it needs much of.
const (
	AnnotationBandwidth     = "berth.dev/hbm-bandwidth"
	AnnotationHostBandwidth = "berth.dev/host-bandwidth"
	// High is the only value that counts.
	High = "high"
)

// ProductLabel is the label of a Node that has the model of its GPUs, by which pods select it.
const ProductLabel = "nvidia.com/gpu.product"

// maxRequests bounds the requests of a pod that are distinguished.
const maxRequests = 64

// Resources are the names under which devices of the cluster's GPUs are requested.
type Resources map[string]Offer

// Offer is how a resource is offered in the cluster.
type Offer struct {
	// Unit is what one device is, in thousandths of a GPU: the smallest of all nodes.
	Unit int32
}

// Add adds what a node offers.
func (r Resources) Add(h *Hardware) {
	for i := range h.entries {
		g := &h.entries[i].gpu
		if g.Resource == "" {
			continue
		}
		offer, known := r[g.Resource]
		if !known || g.Unit < offer.Unit {
			offer.Unit = g.Unit
		}
		r[g.Resource] = offer
	}
}

// wellKnown tells whether a name is one by which vendors' own device plugins offer GPUs, so that nodes without a GPUNode count too.
func wellKnown(name string) bool {
	switch name {
	case "nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe":
		return true
	}
	return strings.HasPrefix(name, "nvidia.com/mig-")
}

// Is tells whether a name is one of GPUs.
func (r Resources) Is(name corev1.ResourceName) bool {
	_, known := r[string(name)]
	return known || wellKnown(string(name))
}

// Requests returns what a pod requests, in the order in which the kubelet allocates it: one shape for each request of a container, of
// which the first has the CPU and memory of the pod. Without a request for GPUs it is one shape.
//
// Init containers that end before the others count where they request more than these: their devices are used again by the others.
func (r Resources) Requests(pod *corev1.Pod) []fleet.Shape {
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	base := fleet.Shape{
		CPU: bounded(requests.Cpu().MilliValue()), Memory: mebibytes(requests.Memory().Value()), Models: models(pod), Traffic: traffic(pod),
	}
	shapes := r.devices(pod)
	for i := range shapes {
		shapes[i].Models, shapes[i].Traffic = base.Models, base.Traffic
	}
	if len(shapes) == 0 {
		return []fleet.Shape{{CPU: base.CPU, Memory: base.Memory}}
	}
	shapes[0].CPU, shapes[0].Memory = base.CPU, base.Memory
	return shapes
}

// devices returns the requests for devices.
func (r Resources) devices(pod *corev1.Pod) []fleet.Shape {
	var shapes []fleet.Shape
	sums := map[corev1.ResourceName]int64{}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			shapes = r.of(shapes, c.Resources, sums)
		}
	}
	for i := range pod.Spec.Containers {
		shapes = r.of(shapes, pod.Spec.Containers[i].Resources, sums)
	}
	most := corev1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		for name, quantity := range limits(pod.Spec.InitContainers[i].Resources) {
			if have := most[name]; quantity.Cmp(have) > 0 {
				most[name] = quantity
			}
		}
	}
	for name, quantity := range most {
		if more := quantity.Value() - sums[name]; r.Is(name) && more > 0 {
			quantity.Set(more)
			most[name] = quantity
			continue
		}
		delete(most, name)
	}
	return r.of(shapes, corev1.ResourceRequirements{Limits: most}, sums)
}

// limits returns what a container requests of extended resources: limits, which equal the requests where both are there.
func limits(requirements corev1.ResourceRequirements) corev1.ResourceList {
	if len(requirements.Limits) > 0 {
		return requirements.Limits
	}
	return requirements.Requests
}

// of appends the requests of a container, in the order of names.
func (r Resources) of(shapes []fleet.Shape, requirements corev1.ResourceRequirements, sums map[corev1.ResourceName]int64) []fleet.Shape {
	list := limits(requirements)
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		if r.Is(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		quantity := list[name]
		count := quantity.Value()
		if count <= 0 {
			continue
		}
		sums[name] += count
		// More than a node can have fits nowhere, whatever the number.
		count = min(count, fleet.MaxGPUs)
		if len(shapes) < maxRequests {
			shapes = append(shapes, fleet.Shape{Resource: string(name), GPUs: int32(count)})
		}
	}
	return shapes
}

// Typical returns the requests of pods as a workload mix of their shapes, with what a device is of a GPU.
func (r Resources) Typical(pods []fleet.Shape, covered float64) fleet.Mix {
	mix := fleet.TypicalShapes(pods, covered)
	for i := range mix {
		if offer, known := r[mix[i].Shape.Resource]; known {
			mix[i].Demand = int64(mix[i].Shape.GPUs) * int64(cmp.Or(offer.Unit, fleet.Whole))
		}
	}
	return mix
}

// maxModels bounds the models of a pod that are distinguished. One that names more accepts all, as far as scores go.
const maxModels = 64

// models returns the models that the pod accepts by its node selector or its required node affinity; no model stands for all.
func models(pod *corev1.Pod) fleet.ModelSet {
	if model, ok := pod.Spec.NodeSelector[ProductLabel]; ok {
		return fleet.Models(model)
	}
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return fleet.ModelSet{}
	}
	var names []string
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		found := slices.IndexFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == ProductLabel && e.Operator == corev1.NodeSelectorOpIn
		})
		if found < 0 {
			return fleet.ModelSet{}
		}
		if names = append(names, term.MatchExpressions[found].Values...); len(names) > maxModels {
			return fleet.ModelSet{}
		}
	}
	for _, name := range names {
		if len(name) > validation.LabelValueMaxLength {
			return fleet.ModelSet{}
		}
	}
	return fleet.Models(names...)
}

func traffic(pod *corev1.Pod) fleet.Traffic {
	var t fleet.Traffic
	if pod.Annotations[AnnotationBandwidth] == High {
		t |= fleet.Bandwidth
	}
	if pod.Annotations[AnnotationHostBandwidth] == High {
		t |= fleet.HostBandwidth
	}
	return t
}

// Taken returns what a pod on a node has of its CPU, in thousandths of a core, and memory, in MiB.
func Taken(pod *corev1.Pod) (cpu, memory int64) {
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{UseStatusResources: true})
	return bounded(requests.Cpu().MilliValue()), mebibytes(requests.Memory().Value())
}

// mebibytes rounds up.
func mebibytes(bytes int64) int64 {
	const unit = 1 << 20
	if bytes <= 0 {
		return 0
	}
	return bounded((bytes-1)/unit + 1)
}

func bounded(amount int64) int64 { return max(0, min(amount, fleet.MaxAmount)) }
