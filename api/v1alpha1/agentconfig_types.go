package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentConfig is the file that berth-agent --config reads. It is strict: the agent does not start with an unknown key
// or a wrong type. Every field has a default, and the flag for a field overrides the file. The names are those of
// NVIDIA's device plugin where it has the same setting.
//
// +kubebuilder:object:root=true
// +kubebuilder:skip
type AgentConfig struct {
	metav1.TypeMeta `json:",inline"`

	// ResourceName is what a whole GPU is advertised as. Default nvidia.com/gpu.
	ResourceName string `json:"resourceName,omitempty"`
	// DeviceListStrategy says how a container gets its devices: any of cdi-cri,
	// cdi-annotations, envvar, volume-mounts; cdi-cri and cdi-annotations exclude
	// each other. Default [cdi-cri].
	DeviceListStrategy []DeviceListStrategy `json:"deviceListStrategy,omitempty"`
	// DeviceIDStrategy says by which name: uuid or index. Default uuid.
	DeviceIDStrategy DeviceIDStrategy `json:"deviceIDStrategy,omitempty"`
	// PassDeviceSpecs also names the device nodes to the kubelet, which a container
	// needs when the CPU manager rewrites its cgroup; not together with CDI.
	PassDeviceSpecs bool `json:"passDeviceSpecs,omitempty"`
	// CDIAnnotationPrefix begins the annotation of cdi-annotations. Default cdi.k8s.io/.
	CDIAnnotationPrefix string `json:"cdiAnnotationPrefix,omitempty"`
	// SharedDevicesAllocationPolicy says how several replicas of one container are allocated among GPUs: distributed or
	// packed. Default distributed.
	SharedDevicesAllocationPolicy SharePolicy `json:"sharedDevicesAllocationPolicy,omitempty"`

	// MIGStrategy says what MIG devices are advertised as: mixed (nvidia.com/mig-PROFILE
	// each), single (all as ResourceName, when they are all alike), or none (a GPU with MIG
	// enabled is advertised whole). Default mixed.
	MIGStrategy MIGStrategy `json:"migStrategy,omitempty"`
	// GPUs has the rules for whole GPUs: the first rule that selects a GPU decides. A GPU that no rule selects is
	// advertised whole as ResourceName.
	GPUs []GPURule `json:"gpus,omitempty"`
	// MIGDevices has the rules for MIG devices, on any GPU. A MIG device that no rule selects is advertised unshared
	// under the name that MIGStrategy gives it.
	MIGDevices []MIGDeviceRule `json:"migDevices,omitempty"`
	// MIGLayouts are named layouts, in the format of mig-parted's mig-configs. Beside them
	// there are those that follow from the hardware: all-disabled, all-enabled,
	// all-balanced, and all-PROFILE for each profile.
	MIGLayouts map[string][]MIGLayoutEntry `json:"migLayouts,omitempty"`
	// MIGConfigMap is NAMESPACE/NAME of a ConfigMap whose key config.yaml holds a mig-parted file; its layouts take
	// precedence over MIGLayouts of the same name.
	MIGConfigMap string `json:"migConfigMap,omitempty"`

	// GDS also injects the device nodes of GPUDirect Storage (/dev/nvidia-fs*) into every container with a GPU.
	GDS bool `json:"gds,omitempty"`
	// GDRCopy also injects the device node of GDRCopy (/dev/gdrdrv) into every container with a GPU.
	GDRCopy bool `json:"gdrcopy,omitempty"`
	// MOFED also injects the InfiniBand devices (/dev/infiniband) into every container with a GPU.
	MOFED bool `json:"mofed,omitempty"`
	// IMEX also injects the channels of the node's IMEX domain, through which GPUs of several nodes share memory.
	IMEX IMEX `json:"imex,omitzero"`

	// DRADriverName is the name of the DRA driver for GPUs with allocation.api dra, and the domain of their attributes
	// and taints. Before it is changed, the node must have no claims; berth-agent uninstall with the former name removes
	// the slices. Default gpu.berth.dev.
	DRADriverName string `json:"draDriverName,omitempty"`

	// DriverRoot is the host's path of the root that holds the driver's files. Default: the first of the usual places that has its
	// library when the agent starts, else /. Set it where the driver can come after the agent and is not below /.
	DriverRoot string `json:"driverRoot,omitempty"`
	// DevRoot is the host's path of the root that holds dev/. Default: DriverRoot, or what belongs to the place that was found.
	DevRoot string `json:"devRoot,omitempty"`
	// HostRoot is the path of the host's root; in a container, the mount point of the host's /. Default /.
	HostRoot string `json:"hostRoot,omitempty"`
	// KubeletDir is the kubelet's root directory. Default /var/lib/kubelet.
	KubeletDir string `json:"kubeletDir,omitempty"`
	// CDIDir is where the CDI spec is written. Default /var/run/cdi.
	CDIDir string `json:"cdiDir,omitempty"`
	// HookDir is the host's directory that the CDI hook program is installed in.
	// Default /opt/berth/bin.
	HookDir string `json:"hookDir,omitempty"`
	// ContainerdStateDir is containerd's state directory on the host, where the OCI specs of
	// running containers are. Default: that of the running container runtime, which is found by its process and socket.
	ContainerdStateDir string `json:"containerdStateDir,omitempty"`
	// CgroupRoot is the kubelet's cgroupRoot; containers outside of it are ignored. Default: every container of the
	// machine belongs to the node.
	CgroupRoot string `json:"cgroupRoot,omitempty"`
	// MPSRoot is the host's directory of the MPS daemons' pipes and shared memory, and
	// of the socket of berth-agent mps. Default /run/berth/mps.
	MPSRoot string `json:"mpsRoot,omitempty"`
	// StateDir has the state that a reboot invalidates: the ledger, the use of each GPU, the GPUs' health. Default
	// /run/berth.
	StateDir string `json:"stateDir,omitempty"`
	// PersistentDir has the state that must survive a reboot: the journal of MIG changes, the last valid configuration
	// and MIG layouts, the last known labels of the Node. Default /var/lib/berth.
	PersistentDir string `json:"persistentDir,omitempty"`

	// PollInterval is the time between two scans. Default 5s.
	PollInterval *metav1.Duration `json:"pollInterval,omitempty"`
	// ScanDeadline is how long a scan may take before the call that it is in is reported. Default 10s. A scan continues
	// without a GPU that has not responded for 5s, and reports it.
	ScanDeadline *metav1.Duration `json:"scanDeadline,omitempty"`
	// HealthClasses override the catalogue's class of a cause, by its code (XID94, NVLINK_DOWN): ignore, degrade,
	// restart-app, drain, inspect, reset or reboot. The variables DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS of
	// NVIDIA's device plugin are read too.
	HealthClasses map[string]string `json:"healthClasses,omitempty"`
	// TaintUnhealthy taints the Node (berth.dev/gpu-unhealthy, NoSchedule) while a GPU is
	// Unhealthy or worse; one that is Degraded or Draining does not. Default false.
	TaintUnhealthy bool `json:"taintUnhealthy,omitempty"`
	// Labels say where the labels about the node's GPUs are written.
	Labels Labels `json:"labels,omitzero"`
	// SampleInterval is the time between two measurements of the GPUs. Default 10s.
	SampleInterval *metav1.Duration `json:"sampleInterval,omitempty"`
	// MetricsListen is an address that serves /metrics and nothing else, for Prometheus; the
	// metrics name the pods that hold GPUs. Default: none.
	MetricsListen string `json:"metricsListen,omitempty"`
	// DCGMNames adds dcgm-exporter's names and labels to /metrics, with the fields of its own lists.
	DCGMNames bool `json:"dcgmNames,omitempty"`
	// DCGMCounters is a list of further fields for /metrics in the form of dcgm-exporter, FIELD, type, help in each
	// line, such as "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Uncorrected errors.". A field that cannot be given is a
	// problem with the reason; docs/metrics.md lists the fields.
	DCGMCounters Lines `json:"dcgmCounters,omitempty"`
	// DCGMCountersFile is the path of a file with such a list.
	DCGMCountersFile string `json:"dcgmCountersFile,omitempty"`
	// DCGMHostnameLabel is the label with the node's name under dcgm-exporter's names: Hostname, as all its
	// releases have it, or hostname, as its main branch does. Default Hostname.
	DCGMHostnameLabel string `json:"dcgmHostnameLabel,omitempty"`
	// IgnoredXIDs are further XIDs that do not affect a GPU's health. A change takes effect at the next start.
	IgnoredXIDs []uint64 `json:"ignoredXIDs,omitempty"`
	// NodeName is the node's name in the API. Default: NODE_NAME, then the host name.
	NodeName string `json:"nodeName,omitempty"`
	// Standalone works without an API server: no GPUNode is published.
	Standalone bool `json:"standalone,omitempty"`
}

// Lines is a text of several lines.
type Lines string

// DeviceListStrategy is a way to pass devices to a container.
type DeviceListStrategy string

// The strategies of NVIDIA's device plugin.
const (
	StrategyCDICRI         DeviceListStrategy = "cdi-cri"
	StrategyCDIAnnotations DeviceListStrategy = "cdi-annotations"
	StrategyEnvVar         DeviceListStrategy = "envvar"
	StrategyVolumeMounts   DeviceListStrategy = "volume-mounts"
)

// DeviceListStrategies returns all strategies.
func DeviceListStrategies() []DeviceListStrategy {
	return []DeviceListStrategy{StrategyCDICRI, StrategyCDIAnnotations, StrategyEnvVar, StrategyVolumeMounts}
}

// UsesCDI reports whether the container runtime injects the devices by their CDI names.
func (s DeviceListStrategy) UsesCDI() bool { return s == StrategyCDICRI || s == StrategyCDIAnnotations }

// UsesCDI reports whether any strategy of the configuration uses CDI.
func (c *AgentConfig) UsesCDI() bool {
	return slices.ContainsFunc(c.DeviceListStrategy, DeviceListStrategy.UsesCDI)
}

// DeviceIDStrategy is how a container's devices are named to it.
type DeviceIDStrategy string

// The two names of a device.
const (
	IDStrategyUUID  DeviceIDStrategy = "uuid"
	IDStrategyIndex DeviceIDStrategy = "index"
)

// DeviceIDStrategies returns all strategies.
func DeviceIDStrategies() []DeviceIDStrategy {
	return []DeviceIDStrategy{IDStrategyUUID, IDStrategyIndex}
}

// SharePolicy says how replicas are allocated among GPUs.
type SharePolicy string

// The policies of NVIDIA's device plugin.
const (
	PolicyDistributed SharePolicy = "distributed"
	PolicyPacked      SharePolicy = "packed"
)

// MIGStrategy is what MIG devices are advertised as.
type MIGStrategy string

// The strategies of NVIDIA's device plugin.
const (
	MIGStrategyNone   MIGStrategy = "none"
	MIGStrategySingle MIGStrategy = "single"
	MIGStrategyMixed  MIGStrategy = "mixed"
)

// IMEX are the IMEX channels that containers get.
type IMEX struct {
	// ChannelIDs is [] or [0].
	ChannelIDs []int `json:"channelIDs,omitempty"`
	// Required makes a missing channel an error; otherwise it is left out with a problem.
	Required bool `json:"required,omitempty"`
}

// Labels are where the labels about the node's GPUs go.
type Labels struct {
	// Output is node (the Node itself, by server-side apply), file (for the worker of Node
	// Feature Discovery), nodeFeature (for its master) or none. Default node.
	Output LabelOutput `json:"output,omitempty"`
	// Dir is the folder of the output file. Default
	// /etc/kubernetes/node-feature-discovery/features.d.
	Dir string `json:"dir,omitempty"`
	// NoTimestamp leaves out nvidia.com/gfd.timestamp.
	NoTimestamp bool `json:"noTimestamp,omitempty"`
}

// LabelOutput is where labels go.
type LabelOutput string

// The outputs.
const (
	LabelsNode        LabelOutput = "node"
	LabelsFile        LabelOutput = "file"
	LabelsNodeFeature LabelOutput = "nodeFeature"
	LabelsNone        LabelOutput = "none"
)
