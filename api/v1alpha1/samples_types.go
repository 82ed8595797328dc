package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindGPUSamples is the kind of GPUSamples.
const KindGPUSamples = "GPUSamples"

// KindGPUSamplesList is the kind of GPUSamplesList.
const KindGPUSamplesList = "GPUSamplesList"

// GPUSamplesList is what berth top prints of several nodes with -o json and -o yaml.
type GPUSamplesList struct {
	metav1.TypeMeta `json:",inline"`
	// Items are the nodes by name. One whose measurements were not read has the time of none.
	Items []GPUSamples `json:"items"`
	// NotRead says why measurements were not read.
	NotRead []string `json:"notRead,omitempty"`
}

// GPUSamples has the values of one measurement of a node's GPUs, as berth top shows them. A value that the hardware
// does not report is missing.
type GPUSamples struct {
	metav1.TypeMeta `json:",inline"`
	Node            string `json:"node"`
	// Time is when the measurement ended, AgeSeconds its age when it was returned.
	Time       metav1.MicroTime `json:"time"`
	AgeSeconds float64          `json:"ageSeconds"`
	// Seconds is how long the pass took.
	Seconds float64     `json:"seconds"`
	Items   []GPUSample `json:"items"`
}

// GPUSample is one GPU.
type GPUSample struct {
	UUID string `json:"uuid"`
	// Vendor is the name of the vendor, on a node with GPUs of several.
	Vendor  string `json:"vendor,omitempty"`
	Index   int    `json:"index"`
	Product string `json:"product"`
	// Health is the verdict's state, with the codes of its causes.
	Health string `json:"health"`
	// Partitioned is true for a GPU in MIG mode, which has its holders and its use in Devices.
	Partitioned bool `json:"partitioned,omitempty"`

	TemperatureCelsius       *float64 `json:"temperatureCelsius,omitempty"`
	MemoryTemperatureCelsius *float64 `json:"memoryTemperatureCelsius,omitempty"`
	PowerWatts               *float64 `json:"powerWatts,omitempty"`
	PowerLimitWatts          *float64 `json:"powerLimitWatts,omitempty"`
	SMClockHertz             *float64 `json:"smClockHertz,omitempty"`
	// Utilization and MemoryUtilization are ratios.
	Utilization       *float64 `json:"utilization,omitempty"`
	MemoryUtilization *float64 `json:"memoryUtilization,omitempty"`
	GPUSampleUse      `json:",inline"`
	Devices           []MIGSample `json:"devices,omitempty"`
	// Troubles are the sources that were not read, with the reason.
	Troubles []SampleTrouble `json:"troubles,omitempty"`
}

// MIGSample is one MIG device.
type MIGSample struct {
	UUID         string `json:"uuid"`
	Profile      string `json:"profile"`
	Index        int    `json:"index"`
	Health       string `json:"health"`
	GPUSampleUse `json:",inline"`
}

// GPUSampleUse is the use of a device, with its users.
type GPUSampleUse struct {
	MemoryBytes     *float64 `json:"memoryBytes,omitempty"`
	MemoryUsedBytes *float64 `json:"memoryUsedBytes,omitempty"`
	// Active is the ratio of time in which the compute engine was active; from Hopper on.
	Active *float64 `json:"active,omitempty"`
	// Tensor is the use of the tensor cores, a ratio; from Hopper on.
	Tensor *float64    `json:"tensor,omitempty"`
	Pods   []PodSample `json:"pods,omitempty"`
}

// PodSample is a container's part of a device. One without a pod has the processes outside of pods.
type PodSample struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	// Held is true where the device was given to the container, whether or not it uses it.
	Held            bool     `json:"held"`
	Processes       *int     `json:"processes,omitempty"`
	MemoryUsedBytes *float64 `json:"memoryUsedBytes,omitempty"`
	// SMUtilization is a ratio.
	SMUtilization *float64 `json:"smUtilization,omitempty"`
}

// SampleTrouble is a source of a GPU that was not read.
type SampleTrouble struct {
	Source  string `json:"source"`
	Message string `json:"message"`
}
