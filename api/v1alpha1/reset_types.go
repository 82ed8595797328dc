package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindGPUReset is the kind of GPUReset.
const KindGPUReset = "GPUReset"

// GPUReset is what berth reset prints with -o json and -o yaml.
type GPUReset struct {
	metav1.TypeMeta `json:",inline"`
	UUID            string `json:"uuid,omitempty"`
	Index           int    `json:"index"`
	// Done is true when the GPU was reset and is advertised again; otherwise Error says why not.
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
	// State and Causes are the verdict of the scan after the reset; empty before it.
	State  string  `json:"state,omitempty"`
	Causes []Cause `json:"causes,omitempty"`
	// Steps are in the order in which they were taken.
	Steps []GPUResetStep `json:"steps,omitempty"`
}

// GPUResetStep is one step of a reset.
type GPUResetStep struct {
	Time    metav1.Time `json:"time"`
	Message string      `json:"message"`
}

// GPUResetLine is a line of the agent's answer: a step, or at the end the result.
type GPUResetLine struct {
	Step   *GPUResetStep `json:"step,omitempty"`
	Result *GPUReset     `json:"result,omitempty"`
}
