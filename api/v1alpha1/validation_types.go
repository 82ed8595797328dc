package v1alpha1

// ValidationResult is the result of berth-agent validate, which a validation pod's container writes as its termination message.
type ValidationResult struct {
	// APIVersion is that of the group, and Kind is ValidationResult.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Passed     bool   `json:"passed"`
	// Resource is the name that was requested; absent when none was given.
	Resource string `json:"resource,omitempty"`
	// Code and Message say what failed, with the evidence; absent when all passed.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Driver is the version of the kernel driver, where it could be read.
	Driver string `json:"driver,omitempty"`
	// Devices are the UUIDs that CUDA reported, sorted.
	Devices []string `json:"devices,omitempty"`
	// Steps are the steps that were made, in order.
	Steps []ValidationStep `json:"steps,omitempty"`
}

// ValidationStep is one step of a validation.
type ValidationStep struct {
	Name string `json:"name"`
	// Milliseconds is how long it took.
	Milliseconds int64 `json:"milliseconds"`
}
