package values

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// Values are the values of the Helm chart. Each field has its default in charts/berth/values.yaml.
type Values struct {
	// Global are values that a chart which contains this one gives to all its charts. Nothing here reads them.
	Global map[string]any `json:"global,omitempty"`
	// Image says where the images are.
	Image Images `json:"image,omitzero"`
	// Host are the directories of the nodes.
	Host Host `json:"host,omitzero"`
	// Agent is the agent's DaemonSet.
	Agent Agent `json:"agent,omitzero"`
	// Gate keeps pods away from a node with GPUs until it is validated.
	Gate Gate `json:"gate,omitzero"`
	// Configs are the configurations of the agents, by name (docs/configuration.md). A node's label berth.dev/config chooses one; without
	// it the node has the one named default. A change reaches the agents at once and restarts none.
	Configs map[string]v1alpha1.AgentConfig `json:"configs,omitempty"`
	// ConfigFiles are configurations as text, by name, such as a file of NVIDIA's device plugin (version: v1) as it is. One takes the place
	// of the one of that name in configs.
	ConfigFiles map[string]v1alpha1.Lines `json:"configFiles,omitempty"`
	// Rights are rights of the agent that only an option of its configuration needs.
	Rights Rights `json:"rights,omitzero"`
	// MPS is the DaemonSet that supervises MPS daemons.
	MPS MPS `json:"mps,omitzero"`
	// Operator is the operator's Deployment.
	Operator Operator `json:"operator,omitzero"`
	// Scheduler is the scheduler's Deployment.
	Scheduler Scheduler `json:"scheduler,omitzero"`
	// Web is the Deployment of the page.
	Web Web `json:"web,omitzero"`
	// Policies are what the API server refuses, and warns of.
	Policies Policies `json:"policies,omitzero"`
	// Metrics says who may read the metrics of the agents and of the operator.
	Metrics Metrics `json:"metrics,omitzero"`
	// NetworkPolicy limits the connections of the components.
	NetworkPolicy NetworkPolicy `json:"networkPolicy,omitzero"`
	// CriticalPods are for clusters that limit the pods of the priority classes system-node-critical and system-cluster-critical.
	CriticalPods CriticalPods `json:"criticalPods,omitzero"`
	// PodMonitor makes the PodMonitor of the Prometheus operator.
	PodMonitor PodMonitor `json:"podMonitor,omitzero"`
	// Alerts makes the PrometheusRule of the Prometheus operator.
	Alerts Alerts `json:"alerts,omitzero"`
	// Dashboard makes a ConfigMap with the Grafana dashboard.
	Dashboard Dashboard `json:"dashboard,omitzero"`
}

// Images are where the images are, and how they are pulled.
type Images struct {
	// Registry is the registry with the path of the images, without their names.
	Registry string `json:"registry,omitempty" jsonschema:"minLength=1"`
	// PullPolicy says when the kubelet pulls an image.
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty" jsonschema:"enum=Always,enum=IfNotPresent,enum=Never"`
	// PullSecrets are the names of Secrets of the release's namespace, of the type kubernetes.io/dockerconfigjson.
	PullSecrets []string `json:"pullSecrets,omitempty"`
}

// Image is the image of one component. A digest precedes a tag.
type Image struct {
	// Name is the image's name below image.registry.
	Name string `json:"name,omitempty" jsonschema:"minLength=1"`
	// Tag is the image's tag. Empty is the version of the chart.
	Tag string `json:"tag,omitempty" jsonschema:"pattern=^[A-Za-z0-9_.-]*$,maxLength=128"`
	// Digest is the image's digest.
	Digest string `json:"digest,omitempty" jsonschema:"pattern=^(sha256:[0-9a-f]{64})?$"`
}

// Host are the directories of the nodes, as absolute paths.
type Host struct {
	// KubeletDir is the kubelet's root directory.
	KubeletDir string `json:"kubeletDir,omitempty" jsonschema:"pattern=^/"`
	// CDIDir is a directory in which the container runtime looks for CDI specs.
	CDIDir string `json:"cdiDir,omitempty" jsonschema:"pattern=^/"`
	// HookDir is the directory to which the agent copies the program that the CDI spec names. The host must be able to run programs
	// from it.
	HookDir string `json:"hookDir,omitempty" jsonschema:"pattern=^/"`
}

// Pod is what each component's pods have in common.
type Pod struct {
	// PriorityClassName is the pods' priority class.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// NodeSelector limits the nodes to those with these labels.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Affinity limits the nodes further.
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// Tolerations are further tolerations beside those that the component needs.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Resources are what the container requests and its limits.
	Resources Resources `json:"resources,omitzero"`
	// Env are further environment variables.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Annotations are annotations of the pods.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels are further labels of the pods.
	Labels map[string]string `json:"labels,omitempty"`
}

// Resources are what a container requests and its limits.
type Resources struct {
	// Limits are the most that the container may use.
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Requests are what the scheduler reserves.
	Requests corev1.ResourceList `json:"requests,omitempty"`
}

// Agent is the agent's DaemonSet.
type Agent struct {
	// Image is the agent's image.
	Image Image `json:"image,omitzero"`
	Pod   `json:",inline"`
	// UpdateStrategy is how the pods are replaced. One of maxSurge and maxUnavailable has to be 0.
	UpdateStrategy appsv1.DaemonSetUpdateStrategy `json:"updateStrategy,omitzero"`
	// MetricsPort is the port of /metrics.
	MetricsPort int `json:"metricsPort,omitempty" jsonschema:"minimum=1,maximum=65535"`
	// MetricsAddress is the IP address that /metrics is served on. Empty is all of the pod.
	MetricsAddress string `json:"metricsAddress,omitempty" jsonschema:"pattern=^[0-9a-fA-F.:]*$"`
	// DRADriverName is the name of the DRA driver (docs/dra.md). Before it is changed, no node may have claims.
	DRADriverName string `json:"draDriverName,omitempty" jsonschema:"pattern=^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$,maxLength=63"`
	// ValidationFiles writes the files by which programs for NVIDIA's GPU operator see how far a node is, to /run/nvidia/validations.
	ValidationFiles bool `json:"validationFiles,omitempty"`
	// DCGMCounters is a list of further fields of DCGM for /metrics, in the form of dcgm-exporter: FIELD, type, help in each line.
	DCGMCounters v1alpha1.Lines `json:"dcgmCounters,omitempty" jsonschema:"maxLength=65536"`
	// ExtraArgs are further arguments of berth-agent.
	ExtraArgs []string `json:"extraArgs,omitempty"`
	// ExtraVolumes are further volumes of the pods.
	ExtraVolumes []corev1.Volume `json:"extraVolumes,omitempty"`
	// ExtraVolumeMounts are further mounts of the container.
	ExtraVolumeMounts []corev1.VolumeMount `json:"extraVolumeMounts,omitempty"`
}

// Gate keeps pods away from a node with GPUs until it is validated.
type Gate struct {
	// Mode is enforce, report (no taint, only the state) or disabled.
	Mode v1alpha1.GateMode `json:"mode,omitempty" jsonschema:"enum=enforce,enum=report,enum=disabled"`
	// TaintKey is the key of the taint, whose effect is NoSchedule.
	TaintKey string `json:"taintKey,omitempty" jsonschema:"pattern=^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$,maxLength=317"`
	// Timeout is how long a node waits for an operator, such as 10m.
	Timeout string `json:"timeout,omitempty" jsonschema:"pattern=^[1-9][0-9]*(s|m|h)$"`
	// OnTimeout is what the node does then: hold keeps the taint, open removes it.
	OnTimeout v1alpha1.GateTimeout `json:"onTimeout,omitempty" jsonschema:"enum=hold,enum=open"`
}

// Rights are rights of the agent that only an option of its configuration needs. Keep one on until no node uses the option any more.
type Rights struct {
	// DRA is for allocation.api dra and auto: the ResourceSlices of the agent's own Node, the claims that it prepares.
	DRA bool `json:"dra,omitempty"`
	// NodeFeature is for labels.output nodeFeature: the NodeFeature of the agent's own Node.
	NodeFeature bool `json:"nodeFeature,omitempty"`
	// TaintUnhealthy is for taintUnhealthy: the taint berth.dev/gpu-unhealthy on the agent's own Node.
	TaintUnhealthy bool `json:"taintUnhealthy,omitempty"`
	// MIGConfigMap is the NAMESPACE/NAME of the migConfigMap of the configurations, if it is not in the release's namespace.
	MIGConfigMap string `json:"migConfigMap,omitempty" jsonschema:"pattern=^([a-z0-9-]+/[a-z0-9.-]+)?$"`
}

// MPS is the DaemonSet that supervises MPS daemons.
type MPS struct {
	// Enabled is for nodes that share GPUs by MPS.
	Enabled bool `json:"enabled,omitempty"`
	Pod     `json:",inline"`
	// ExtraArgs are further arguments of berth-agent mps.
	ExtraArgs []string `json:"extraArgs,omitempty"`
	// ExtraVolumes are further volumes of the pods.
	ExtraVolumes []corev1.Volume `json:"extraVolumes,omitempty"`
	// ExtraVolumeMounts are further mounts of the container.
	ExtraVolumeMounts []corev1.VolumeMount `json:"extraVolumeMounts,omitempty"`
}

// Operator is the operator's Deployment.
type Operator struct {
	// Image is the operator's image.
	Image Image `json:"image,omitzero"`
	Pod   `json:",inline"`
	// Replicas is the number of pods; one of them works, the others take over from it.
	Replicas int `json:"replicas,omitempty" jsonschema:"minimum=1,maximum=5"`
	// MetricsPort is the port of /metrics.
	MetricsPort int `json:"metricsPort,omitempty" jsonschema:"minimum=1,maximum=65535"`
	// MetricsAddress is the IP address that /metrics is served on. Empty is all of the pod.
	MetricsAddress string `json:"metricsAddress,omitempty" jsonschema:"pattern=^[0-9a-fA-F.:]*$"`
	// ProbePort is the port of /healthz and /readyz.
	ProbePort int `json:"probePort,omitempty" jsonschema:"minimum=1,maximum=65535"`
}

// Scheduler is the Deployment of kube-scheduler with Berth's plugin (docs/install.md#the-scheduler).
type Scheduler struct {
	// Enabled installs it, for the pods whose schedulerName is berth-scheduler, berth-scheduler-spread or berth-scheduler-latency.
	Enabled bool `json:"enabled,omitempty"`
	// ReplaceDefault is for the pods that name no scheduler too. The cluster's own scheduler has to be stopped.
	ReplaceDefault bool `json:"replaceDefault,omitempty"`
	// Image is the scheduler's image.
	Image Image `json:"image,omitzero"`
	Pod   `json:",inline"`
	// Replicas is the number of pods; one of them works, the others take over from it.
	Replicas int `json:"replicas,omitempty" jsonschema:"minimum=1,maximum=5"`
	// SecurePort is the port of /metrics, /livez and /readyz, with TLS.
	SecurePort int `json:"securePort,omitempty" jsonschema:"minimum=1,maximum=65535"`
	// FeatureGates are feature gates of Kubernetes for the scheduler, those that the API server has.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// Gangs is how pods are placed that start together (docs/scheduling.md#gangs).
	Gangs Gangs `json:"gangs,omitzero"`
}

// Gangs is how pods are placed that start together.
type Gangs struct {
	// TopologyLevels are labels of nodes and the names that gangs use for them, the widest first. Without any these are zone, block, rack
	// and clique.
	TopologyLevels []TopologyLevel `json:"topologyLevels,omitempty" jsonschema:"maxItems=8"`
	// ReserveAfterSeconds is how long a gang that does not fit waits before it gets a reservation, if it is the first one in line; -1 is
	// never.
	ReserveAfterSeconds int `json:"reserveAfterSeconds,omitempty" jsonschema:"minimum=-1,maximum=86400"`
}

// TopologyLevel is a level of topology.
type TopologyLevel struct {
	// Name is what gangs call the level.
	Name string `json:"name" jsonschema:"required"`
	// Key is the label of nodes.
	Key string `json:"key" jsonschema:"required"`
}

// Web is the Deployment of the page to which users sign in (docs/howto.md#look-at-a-page).
type Web struct {
	// Enabled installs it.
	Enabled bool `json:"enabled,omitempty"`
	// Image is the image of the command line, which serves the page.
	Image Image `json:"image,omitzero"`
	Pod   `json:",inline"`
	// Port is the port of the page: without TLSSecret on the pod's loopback address, for kubectl port-forward.
	Port int `json:"port,omitempty" jsonschema:"minimum=1024,maximum=65535"`
	// Sessions is how many users can be signed in at the same time, each browser and each token counted.
	Sessions int `json:"sessions,omitempty" jsonschema:"minimum=1,maximum=4096"`
	// TLSSecret is the name of a Secret of the type kubernetes.io/tls in the release's namespace. With it the page has a Service, port 443.
	TLSSecret string `json:"tlsSecret,omitempty" jsonschema:"maxLength=253"`
}

// Policies are ValidatingAdmissionPolicies (docs/install.md#policies).
type Policies struct {
	// OwnNode limits the writes of an agent to its own Node and the objects about it.
	OwnNode bool `json:"ownNode,omitempty"`
	// PrivilegedPods lets only the DaemonSet controller create privileged pods in the release's namespace, and no user add a container to
	// one or change its images.
	PrivilegedPods bool `json:"privilegedPods,omitempty"`
	// Operator limits the writes of the operator to the ResourceQuotas, pods and ResourceClaims that it makes.
	Operator bool `json:"operator,omitempty"`
	// ClaimConfig refuses a wrong GPUClaimConfig where it is written.
	ClaimConfig bool `json:"claimConfig,omitempty"`
	// QuotaNames warns of names in a ResourceQuota that are never counted.
	QuotaNames bool `json:"quotaNames,omitempty"`
	// ShareNames warns of requests for a share of a GPU that nothing serves.
	ShareNames bool `json:"shareNames,omitempty"`
}

// Metrics says who may read the metrics.
type Metrics struct {
	// Auth is none (whoever reaches the port, without TLS) or kubernetes (with TLS, and a token whose account may get the nonResourceURL
	// /metrics).
	Auth string `json:"auth,omitempty" jsonschema:"enum=none,enum=kubernetes"`
}

// NetworkPolicy limits the connections of the components, where the network of the cluster enforces NetworkPolicies.
type NetworkPolicy struct {
	// Enabled allows connections to the ports of metrics and probes, and no others.
	Enabled bool `json:"enabled,omitempty"`
	// APIServerCIDRs are the addresses of the API server. With them the components may connect to these, and to nothing else.
	APIServerCIDRs []string `json:"apiServerCIDRs,omitempty"`
	// APIServerPorts are the ports of the API server.
	APIServerPorts []int `json:"apiServerPorts,omitempty"`
}

// CriticalPods are for clusters that limit the pods of the system's priority classes.
type CriticalPods struct {
	// Quota makes a ResourceQuota that allows such pods in the release's namespace, as GKE needs it.
	Quota bool `json:"quota,omitempty"`
	// Pods is how many the quota allows.
	Pods int `json:"pods,omitempty" jsonschema:"minimum=1"`
}

// PodMonitor is the PodMonitor of the Prometheus operator.
type PodMonitor struct {
	// Enabled makes it; the Prometheus operator's definitions have to be installed.
	Enabled bool `json:"enabled,omitempty"`
	// Interval is the time between two scrapes.
	Interval string `json:"interval,omitempty" jsonschema:"pattern=^[0-9]+(ms|s|m)$"`
	// Labels are further labels, by which Prometheus selects it.
	Labels map[string]string `json:"labels,omitempty"`
	// TokenSecret has the token with which Prometheus reads the metrics, for metrics.auth kubernetes.
	TokenSecret TokenSecret `json:"tokenSecret,omitzero"`
}

// TokenSecret is a key of a Secret of the release's namespace.
type TokenSecret struct {
	// Name is the name of the Secret.
	Name string `json:"name,omitempty" jsonschema:"maxLength=253"`
	// Key is its key.
	Key string `json:"key,omitempty" jsonschema:"minLength=1"`
}

// Alerts is the PrometheusRule of the Prometheus operator.
type Alerts struct {
	// Enabled makes it; the Prometheus operator's definitions have to be installed.
	Enabled bool `json:"enabled,omitempty"`
	// Labels are further labels, by which Prometheus selects it.
	Labels map[string]string `json:"labels,omitempty"`
}

// Dashboard is a ConfigMap with the Grafana dashboard.
type Dashboard struct {
	// Enabled makes it.
	Enabled bool `json:"enabled,omitempty"`
	// Labels are further labels, by which Grafana's sidecar finds it.
	Labels map[string]string `json:"labels,omitempty"`
}
