package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The kind and version of ValidationResult. The version is its own, since the message of a container that has ended outlives upgrades
// of the programs that wrote and read it.
const (
	KindValidationResult = "ValidationResult"
	ValidationAPIVersion = "validation.berth.dev/v1"
)

// MaxValidationResult is the most that the kubelet keeps of a termination message, in bytes.
const MaxValidationResult = 4096

// ValidationResult is what berth-agent validate found out about the devices of its container. It writes it as the termination message
// of the container, in at most MaxValidationResult bytes.
type ValidationResult struct {
	metav1.TypeMeta `json:",inline"`
	// Resource is the name under which the devices were requested.
	Resource string `json:"resource,omitempty"`
	// Expect is the number of GPUs or MIG devices that were requested.
	Expect int  `json:"expect"`
	Passed bool `json:"passed"`
	// Code is the problem's name in docs/problems.md, Step the step that found it, Evidence what was found and where; empty when all
	// steps passed.
	Code     string `json:"code,omitempty"`
	Step     string `json:"step,omitempty"`
	Evidence string `json:"evidence,omitempty"`
	// Devices are the UUIDs of the devices that CUDA shows, sorted. DevicesLeftOut is how many did not fit into the message.
	Devices        []string `json:"devices,omitempty"`
	DevicesLeftOut int      `json:"devicesLeftOut,omitempty"`
	// DriverVersion is that of the kernel module.
	DriverVersion string `json:"driverVersion,omitempty"`
	// Steps are in their order. Those after a step that failed were not taken.
	Steps []ValidationStep `json:"steps"`
}

// ValidationOutcome is the outcome of a step.
type ValidationOutcome string

// The outcomes.
const (
	ValidationPassed ValidationOutcome = "passed"
	ValidationFailed ValidationOutcome = "failed"
	ValidationNotRun ValidationOutcome = "notRun"
)

// ValidationStep is a step of the validation.
type ValidationStep struct {
	Name         string            `json:"name"`
	Outcome      ValidationOutcome `json:"outcome"`
	Milliseconds int64             `json:"milliseconds"`
	// Evidence is what a step that passed found.
	Evidence string `json:"evidence,omitempty"`
}
