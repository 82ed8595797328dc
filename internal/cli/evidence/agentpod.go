package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// DefaultAgentNamespace is the namespace of the agent's pods in the documents.
	DefaultAgentNamespace = "berth-system"
	agentLabel            = "app.kubernetes.io/name"
	agentName             = "berth-agent"
	metricsPort           = "metrics"
	maxMetrics            = 16 << 20
)

// AgentPods returns the agent's pods of all nodes. It searches the agent's namespace only: in any other namespace,
// users who can create pods could label one as the agent's.
func (a API) AgentPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := a.Client.Resource(pods()).Namespace(a.AgentNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: agentLabel + "=" + agentName})
	if err != nil {
		return nil, err
	}
	var found []corev1.Pod
	for i := range list.Items {
		pod, err := decodePod(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if a.IsAgent(pod) {
			found = append(found, *pod)
		}
	}
	return found, nil
}

// IsAgent tells whether a pod is one of the agent's.
func (a API) IsAgent(pod *corev1.Pod) bool {
	return pod.Namespace == a.AgentNamespace && pod.Labels[agentLabel] == agentName
}

// AgentPod returns the agent's pod of a node among the agents' pods: the ready one, if there are two during an upgrade.
func (a API) AgentPod(agents []corev1.Pod, node string) (*corev1.Pod, error) {
	var found *corev1.Pod
	for i := range agents {
		if pod := &agents[i]; pod.Spec.NodeName == node && (found == nil || PodReady(pod) && !PodReady(found)) {
			found = pod
		}
	}
	if found == nil {
		return nil, fmt.Errorf("find the agent's pod of node %s: namespace %s has none there (set the namespace "+
			"with --agent-namespace)", node, a.AgentNamespace)
	}
	return found, nil
}

// PodReady tells whether a pod is ready.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unproxied says which value of the chart keeps the API server's proxy from an agent's metrics, by the agent's arguments; nothing if none.
func unproxied(args []string) string {
	for _, arg := range args {
		switch flag, value, _ := strings.Cut(arg, "="); flag {
		case "--metrics-auth":
			if value == "kubernetes" {
				return "metrics.auth is kubernetes, so the agent wants a token, and the API server's proxy passes none on " +
					"(on the node, root reads them without one)"
			}
		case "--metrics-listen":
			host, _, err := net.SplitHostPort(value)
			if address, parsed := netip.ParseAddr(host); err == nil && parsed == nil && address.IsLoopback() {
				return "agent.metricsAddress is " + host + ", which the API server's proxy does not reach (on the node, root reads them)"
			}
		}
	}
	return ""
}

// AgentMetrics reads the metrics of an agent's pod through the API server.
func (a API) AgentMetrics(ctx context.Context, pod *corev1.Pod) (map[string]*dto.MetricFamily, error) {
	path := "pods/" + pod.Namespace + "/" + pod.Name + "/proxy/metrics"
	port := 0
	for _, container := range pod.Spec.Containers {
		if why := unproxied(container.Args); why != "" {
			return nil, fmt.Errorf("read %s: %s", path, why)
		}
		for _, one := range container.Ports {
			if one.Name == metricsPort {
				port = int(one.ContainerPort)
			}
		}
	}
	switch {
	case a.REST == nil:
		return nil, errors.New("read " + path + ": no API server")
	case port == 0:
		return nil, fmt.Errorf("read %s: the pod has no port named %s, as the one of the chart has", path, metricsPort)
	}
	body, err := a.REST.Get().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name+":"+strconv.Itoa(port),
		"proxy/metrics").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s (needs get on pods/proxy in namespace %s): %w", path, pod.Namespace, err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return families, nil
}
