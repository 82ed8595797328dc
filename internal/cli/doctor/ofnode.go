package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

const checkAllocatable = "allocatable"

// OfNode checks a node from its API objects and the metrics of its agent; it can run on any machine.
func OfNode(ctx context.Context, api API, name string) *v1alpha1.Doctor {
	r := newReport(name)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := api.Node(ctx, name)
	if err != nil {
		r.unknown(checkNodeConditions, "nodes/%s: %v", name, err)
	} else {
		r.kubeletVersion(node)
		r.nodeConditions(node)
	}
	said := r.agentPod(ctx, api)
	gpuNode := r.gpuNode(ctx, api)
	if gpuNode != nil {
		r.status(gpuNode)
	}
	if node != nil {
		r.allocatable(node, gpuNode, said)
		r.quotas(ctx, api, node)
	}
	r.notChecked("the node itself", "run berth doctor on the node itself, as root")
	return r.done()
}

// agentSaid is what the metrics of a node's agent contain; its maps are nil if they were not read.
type agentSaid struct {
	// healthy is the number of devices that the agent advertises as healthy, by resource.
	healthy map[string]int
}

// agentPod checks the agent's pod of the node, and reads its metrics.
func (r *report) agentPod(ctx context.Context, api API) agentSaid {
	all, err := api.AgentPods(ctx)
	if err != nil {
		r.unknown(checkAgent, "the agent's pods: %v", err)
		return agentSaid{}
	}
	if len(all) == 0 {
		r.notChecked(checkAgent, "no pod of berth-agent was found; set its namespace with --agent-namespace")
		return agentSaid{}
	}
	var here []*corev1.Pod
	for i := range all {
		if all[i].Spec.NodeName == r.out.Node {
			here = append(here, &all[i])
		}
	}
	if len(here) == 0 {
		r.problem(checkAgent, "AGENT_UNREACHABLE", "no pod of berth-agent is on the node; other nodes have %d", len(all))
		return agentSaid{}
	}
	// During an upgrade there are two pods; one ready pod is enough.
	pod, why := here[0], podUnready(here[0])
	for _, other := range here[1:] {
		if reason := podUnready(other); reason == "" {
			pod, why = other, ""
		}
	}
	path := "pods/" + pod.Namespace + "/" + pod.Name
	if why != "" {
		r.problem(checkAgent, "AGENT_NOT_READY", "%s: %s", path, why)
		return agentSaid{}
	}
	families, err := api.AgentMetrics(ctx, pod)
	if err != nil {
		r.ok(checkAgent, "%s is ready", path)
		r.notChecked("the agent's metrics", "%v", err)
		return agentSaid{}
	}
	r.ok(checkAgent, "%s is ready, and its metrics are served", path)
	said := agentSaid{healthy: map[string]int{}}
	for _, m := range families["berth_device_plugin_healthy_devices"].GetMetric() {
		said.healthy[metricLabel(m, "resource")] = int(m.GetGauge().GetValue())
	}
	for _, m := range families["berth_device_plugin_registered"].GetMetric() {
		if m.GetGauge().GetValue() == 0 {
			r.problem(checkAgent, "AGENT_NOT_READY",
				"%s: the kubelet has no connection for %s (berth_device_plugin_registered)", path, metricLabel(m,
					"resource"))
		}
	}
	return said
}

func metricLabel(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// podUnready returns the reason why a pod is not ready, or "".
func podUnready(pod *corev1.Pod) string {
	text := fmt.Sprintf("its phase is %s and it has no condition Ready", cmp.Or(string(pod.Status.Phase), "not known"))
	for _, condition := range pod.Status.Conditions {
		switch {
		case condition.Type != corev1.PodReady:
		case condition.Status == corev1.ConditionTrue:
			return ""
		default:
			text = fmt.Sprintf("condition Ready is %s: %s", condition.Status,
				cmp.Or(condition.Message, condition.Reason, "no reason given"))
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			text += fmt.Sprintf("; container %s waits: %s %s", status.Name, waiting.Reason, waiting.Message)
		}
	}
	return text
}

// allocatable compares the allocatable devices that the kubelet publishes with the healthy devices: those that the
// agent advertises or, if its metrics were not read, those in the GPUNode.
func (r *report) allocatable(node *corev1.Node, gpuNode *v1alpha1.GPUNode, said agentSaid) {
	type bounds struct {
		low  int
		high int
	}
	want, source := map[string]bounds{}, "the agent advertises"
	for resource, n := range said.healthy {
		want[resource] = bounds{n, n}
	}
	if said.healthy == nil {
		if gpuNode == nil {
			return
		}
		source = "the GPUNode has"
		add := func(offer *v1alpha1.DeviceOffer, health *v1alpha1.DeviceHealth) {
			if offer == nil {
				return
			}
			n := max(1, offer.Replicas)
			b := want[offer.Resource]
			state := gpu.Healthy
			if health != nil {
				state = cmp.Or(gpu.State(health.State), gpu.Healthy)
			}
			switch {
			case offer.Draining != "":
				b.high += n // an unhealthy device that is held may still be allocatable
			case (gpu.Health{State: state}).OK():
				b.low, b.high = b.low+n, b.high+n
			case state == gpu.Draining:
				b.high += n
			}
			want[offer.Resource] = b
		}
		for _, device := range gpuNode.Status.Devices {
			add(device.Offered, &device.Health)
			for _, mig := range device.MIGDevices {
				add(mig.Offered, mig.Health)
			}
		}
	}
	var resources []string
	for resource := range want {
		resources = append(resources, resource)
	}
	slices.Sort(resources)
	for _, resource := range resources {
		b := want[resource]
		quantity := node.Status.Allocatable[corev1.ResourceName(resource)]
		got := int(quantity.Value())
		if got < b.low || got > b.high {
			r.problem(checkAllocatable, "ALLOCATABLE_DIFFERS", "nodes/%s has %d of %s allocatable, and %s %s",
				node.Name, got, resource, source, phrase.Count(b.low, "healthy device"))
			continue
		}
		r.ok(checkAllocatable, "%d of %s, as %s", got, resource, source)
	}
}
