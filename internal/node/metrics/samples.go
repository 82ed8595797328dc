package metrics

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// Samples returns the input as an object for programs and for berth top.
func Samples(in Input) v1alpha1.GPUSamples {
	v := join(in)
	out := v1alpha1.GPUSamples{
		TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUSamples),
		Node:     in.Node, Time: metav1.NewMicroTime(in.Sample.Time.UTC()), Seconds: in.Sample.Took.Seconds(),
		Items: make([]v1alpha1.GPUSample, 0, len(v.gpus)),
	}
	for i := range v.gpus {
		out.Items = append(out.Items, sampleOf(&v.gpus[i]))
		if in.Snapshot.SeveralVendors() {
			out.Items[i].Vendor = v.gpus[i].Vendor
		}
	}
	return out
}

func sampleOf(c *gpuView) v1alpha1.GPUSample {
	r := &c.sample.Readings
	out := v1alpha1.GPUSample{
		UUID: string(c.UUID), Index: c.Index, Product: c.Product, Partitioned: c.MIG.Enabled,
		Health:                   trace.HealthText(c.Health),
		TemperatureCelsius:       known(r, gpu.TemperatureGPU),
		MemoryTemperatureCelsius: known(r, gpu.TemperatureMemory),
		PowerWatts:               known(r, gpu.PowerUsage),
		PowerLimitWatts:          known(r, gpu.PowerLimit),
		SMClockHertz:             known(r, gpu.ClockSM),
		Utilization:              known(r, gpu.UtilizationGPU),
		MemoryUtilization:        known(r, gpu.UtilizationMemory),
		GPUSampleUse:             useOf(r, &c.use),
	}
	for i := range c.devices {
		d := &c.devices[i]
		out.Devices = append(out.Devices, v1alpha1.MIGSample{
			UUID: string(d.UUID), Profile: d.Profile, Index: d.Index,
			Health: trace.HealthText(d.Health), GPUSampleUse: useOf(&d.sample.Readings, &d.use),
		})
	}
	for _, s := range c.sample.Sources {
		if !s.OK {
			out.Troubles = append(out.Troubles, v1alpha1.SampleTrouble{Source: s.Name, Message: s.Trouble})
		}
	}
	return out
}

func known(r *gpu.Readings, m gpu.Measure) *float64 {
	if value, ok := r.Get(m); ok {
		return &value
	}
	return nil
}

func useOf(r *gpu.Readings, u *use) v1alpha1.GPUSampleUse {
	out := v1alpha1.GPUSampleUse{
		MemoryBytes: known(r, gpu.MemorySize), MemoryUsedBytes: known(r, gpu.MemoryUsed),
		Active: known(r, gpu.GraphicsActive), Tensor: known(r, gpu.TensorActive),
	}
	holds := func(o Owner) bool {
		return slices.ContainsFunc(u.holdings, func(h Holding) bool { return h.Owner == o })
	}
	pod := func(o Owner) v1alpha1.PodSample {
		return v1alpha1.PodSample{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, PodUID: o.PodUID, Held: holds(o)}
	}
	for _, s := range u.byOwner {
		one := pod(s.Owner)
		one.Processes = &s.processes
		if s.memoryKnown {
			used := float64(s.memory)
			one.MemoryUsedBytes = &used
		}
		if s.activityKnown {
			one.SMUtilization = &s.sm
		}
		out.Pods = append(out.Pods, one)
	}
	if len(u.byOwner) == 0 { // the GPU did not report its processes; the holders are known without them
		for i, h := range u.holdings {
			if i == 0 || h.Owner != u.holdings[i-1].Owner {
				out.Pods = append(out.Pods, pod(h.Owner))
			}
		}
	}
	return out
}
