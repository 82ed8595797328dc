package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
)

const (
	// mostMeasured is of how many nodes the metrics are read at a time, and atOnce how many of them at once.
	mostMeasured = 32
	atOnce       = 8
)

// remoteSamples returns the devices of a node from its GPUNode, with the measurements in its agent's metrics, read
// through the API server. If those could not be read, it returns the samples and an unreadError.
func remoteSamples(ctx context.Context, api *evidence.API, node *v1alpha1.GPUNode) (samples *v1alpha1.GPUSamples, unread error) {
	all, err := (&remoteFleet{metrics: map[string]measured{}}).read(ctx, api, []v1alpha1.GPUNode{*node})
	return all[0], err
}

// remoteFleet reads the samples of nodes through the API server. Of many nodes it reads the metrics of some at a time, and keeps those of
// the others.
type remoteFleet struct {
	metrics map[string]measured
	next    int // how many nodes have been read
}

// read returns the samples of nodes in the order of their names, and an unreadError if metrics were not read.
func (r *remoteFleet) read(ctx context.Context, api *evidence.API, nodes []v1alpha1.GPUNode) ([]*v1alpha1.GPUSamples, error) {
	unread := r.measure(ctx, api, nodes)
	all := make([]*v1alpha1.GPUSamples, len(nodes))
	missing := len(nodes)
	for i := range nodes {
		all[i] = samplesOf(&nodes[i])
		if families, ok := r.metrics[nodes[i].Name]; ok {
			addMetrics(all[i], families)
			missing--
		}
	}
	slices.SortFunc(all, func(a, b *v1alpha1.GPUSamples) int { return strings.Compare(a.Node, b.Node) })
	if unread == nil && missing > 0 {
		unread = fmt.Errorf("the metrics of %d of %d nodes, of which %d are read at a time; name nodes to read theirs", missing, len(nodes), mostMeasured)
	}
	if unread != nil {
		return all, &unreadError{unread}
	}
	return all, nil
}

// measure reads the metrics of the next nodes. It returns the error of the first node by name whose metrics were not read.
func (r *remoteFleet) measure(ctx context.Context, api *evidence.API, nodes []v1alpha1.GPUNode) error {
	if len(nodes) == 0 {
		return nil
	}
	agents, err := api.AgentPods(ctx)
	if err != nil {
		return fmt.Errorf("find the agents' pods: %w", err)
	}
	some := r.turn(nodes)
	errs := make([]error, len(some))
	found := make([]measured, len(some))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, name := range some {
		group.Go(func() error {
			pod, err := api.AgentPod(agents, name)
			if err == nil {
				found[i], err = api.AgentMetrics(ctx, pod)
			}
			errs[i] = err
			return nil
		})
	}
	_ = group.Wait() // The errors are in errs.
	err = nil
	for i, name := range some {
		delete(r.metrics, name)
		if errs[i] == nil {
			r.metrics[name] = found[i]
		} else if err == nil {
			err = errs[i]
		}
	}
	return err
}

// turn returns the names of the next nodes to measure: first those that hold most GPUs.
func (r *remoteFleet) turn(nodes []v1alpha1.GPUNode) []string {
	byHeld := make([]*v1alpha1.GPUNode, len(nodes))
	for i := range nodes {
		byHeld[i] = &nodes[i]
	}
	slices.SortFunc(byHeld, func(a, b *v1alpha1.GPUNode) int {
		return cmp.Or(b.Status.Summary.Held-a.Status.Summary.Held, strings.Compare(a.Name, b.Name))
	})
	some := make([]string, min(len(nodes), mostMeasured))
	for i := range some {
		some[i] = byHeld[(r.next+i)%len(byHeld)].Name
	}
	r.next = (r.next + len(some)) % len(byHeld)
	slices.Sort(some)
	return some
}

// measured are the metric families of the agent, by name.
type measured map[string]*dto.MetricFamily

// labelsOf returns the labels of a series.
func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

func valueOf(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
}

// of returns the value for a device, or nil if there is none.
func (f measured) of(name, uuid string) *float64 {
	for _, m := range f[name].GetMetric() {
		if labelsOf(m)["uuid"] == uuid {
			value := valueOf(m)
			return &value
		}
	}
	return nil
}

// alone returns the value of a metric with one series, or 0.
func (f measured) alone(name string) float64 {
	for _, m := range f[name].GetMetric() {
		return valueOf(m)
	}
	return 0
}

// addMetrics adds the measurements to the devices.
func addMetrics(samples *v1alpha1.GPUSamples, families measured) {
	const gpu, mig = "berth_gpu_", "berth_gpu_mig_"
	samples.AgeSeconds = families.alone(gpu + "sample_age_seconds")
	samples.Seconds = families.alone(gpu + "sample_duration_seconds")
	if at := families.alone(gpu + "sample_timestamp_seconds"); at > 0 {
		samples.Time = metav1.NewMicroTime(time.UnixMilli(int64(at * 1000)).UTC())
	}
	use := func(out *v1alpha1.GPUSampleUse, prefix, uuid string) {
		if size := families.of(prefix+"memory_size_bytes", uuid); size != nil {
			out.MemoryBytes = size
		}
		out.MemoryUsedBytes = families.of(prefix+"memory_used_bytes", uuid)
		out.Active = families.of(prefix+"graphics_engine_active_ratio", uuid)
		out.Tensor = families.of(prefix+"tensor_active_ratio", uuid)
		families.addPods(out, uuid)
	}
	for i := range samples.Items {
		s := &samples.Items[i]
		s.TemperatureCelsius = families.of(gpu+"temperature_celsius", s.UUID)
		s.MemoryTemperatureCelsius = families.of(gpu+"memory_temperature_celsius", s.UUID)
		s.PowerWatts = families.of(gpu+"power_usage_watts", s.UUID)
		s.PowerLimitWatts = families.of(gpu+"power_limit_watts", s.UUID)
		s.SMClockHertz = families.of(gpu+"sm_clock_hertz", s.UUID)
		s.Utilization = families.of(gpu+"utilization_ratio", s.UUID)
		s.MemoryUtilization = families.of(gpu+"memory_utilization_ratio", s.UUID)
		use(&s.GPUSampleUse, gpu, s.UUID)
		for k := range s.Devices {
			use(&s.Devices[k].GPUSampleUse, mig, s.Devices[k].UUID)
		}
	}
}

// addPods adds the usage of each pod's processes, and of processes of the node itself.
func (f measured) addPods(out *v1alpha1.GPUSampleUse, uuid string) {
	for _, kind := range []string{"pod", "host"} {
		prefix := "berth_gpu_" + kind + "_"
		for _, m := range f[prefix+"processes"].GetMetric() {
			labels := labelsOf(m)
			if labels["uuid"] != uuid {
				continue
			}
			of := func(name string) *float64 {
				for _, other := range f[prefix+name].GetMetric() {
					if l := labelsOf(other); l["uuid"] == uuid && l["pod_uid"] == labels["pod_uid"] &&
						l["container"] == labels["container"] {
						value := valueOf(other)
						return &value
					}
				}
				return nil
			}
			processes := int(valueOf(m))
			pod := podIn(out, v1alpha1.PodSample{Namespace: labels["namespace"], Pod: labels["pod"],
				Container: labels["container"], PodUID: labels["pod_uid"]})
			pod.Processes, pod.MemoryUsedBytes, pod.SMUtilization = &processes, of("memory_used_bytes"), of("sm_utilization_ratio")
		}
	}
}

// podIn returns the container among the holders of a device, or adds it as one that does not hold the device.
func podIn(out *v1alpha1.GPUSampleUse, want v1alpha1.PodSample) *v1alpha1.PodSample {
	for i := range out.Pods {
		if p := &out.Pods[i]; want.PodUID != "" && p.PodUID == want.PodUID && p.Container == want.Container {
			return p
		}
	}
	out.Pods = append(out.Pods, want)
	return &out.Pods[len(out.Pods)-1]
}
