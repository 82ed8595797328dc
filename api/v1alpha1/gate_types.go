package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GateState is how far a node is on its way to accepting pods with GPUs. Each state includes those before it.
//
// +kubebuilder:validation:Enum=Found;DriverReady;RuntimeReady;SpecReady;Held;Validated
type GateState string

// The states, in their order.
const (
	// GateFound: the node has GPUs on its PCI bus.
	GateFound GateState = "Found"
	// GateDriverReady: the driver answers for each of them.
	GateDriverReady GateState = "DriverReady"
	// GateRuntimeReady: the container runtime injects CDI devices.
	GateRuntimeReady GateState = "RuntimeReady"
	// GateSpecReady: the CDI spec on disk can inject each device that is advertised, and what it names exists.
	GateSpecReady GateState = "SpecReady"
	// GateHeld: the devices are advertised, and wait for their validation.
	GateHeld GateState = "Held"
	// GateValidated: the node accepts pods with GPUs.
	GateValidated GateState = "Validated"
)

// GateMode is what the gate does while a node is not validated.
//
// +kubebuilder:validation:Enum=enforce;report;disabled
type GateMode string

// The modes.
const (
	// GateEnforce: the Node has a taint until it is validated.
	GateEnforce GateMode = "enforce"
	// GateReport: the state is reported, and there is no taint.
	GateReport GateMode = "report"
	// GateDisabled: there is no gate, and nothing is reported.
	GateDisabled GateMode = "disabled"
)

// GateTimeout is what the gate does when no operator has validated the node in time.
//
// +kubebuilder:validation:Enum=hold;open
type GateTimeout string

// What the gate does then.
const (
	GateHold GateTimeout = "hold"
	GateOpen GateTimeout = "open"
)

const (
	// TaintNotValidated is the default key of the gate's taint.
	TaintNotValidated = "berth.dev/not-validated"
	// TaintNotValidatedValue is the value of the taint; one of another program under the same key has another value.
	TaintNotValidatedValue = "gpus-not-validated"
	// ValidationKeyAnnotation of a validation pod has the key of what it validates, [GateStatus.Key].
	ValidationKeyAnnotation = "berth.dev/validation-key"
	// ValidationLabel of a validation pod has the value "node".
	ValidationLabel = "berth.dev/validation"
	// NodeConditionReady is the type of the Node's condition that reports the gate.
	NodeConditionReady = "GPUsReady"
)

// Gate has the settings of the gate.
type Gate struct {
	// Mode is enforce by default.
	// +optional
	// +kubebuilder:default=enforce
	Mode GateMode `json:"mode,omitempty"`
	// TaintKey is the key of the taint; berth.dev/not-validated by default. Its effect is NoSchedule.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	TaintKey string `json:"taintKey,omitempty"`
	// Timeout is how long a node waits for an operator before it reports GATE_NO_OPERATOR, 10m by default.
	// +optional
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// OnTimeout is what happens then: hold (the default) keeps the taint, open removes it.
	// +optional
	OnTimeout GateTimeout `json:"onTimeout,omitempty"`
}

// GateStatus is the state of the gate on one node.
type GateStatus struct {
	State GateState `json:"state"`
	// Since is when the node reached the state, or stopped at it for another reason.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
	Mode  GateMode    `json:"mode"`
	// TaintKey is the key of the taint that the Node has while it is not validated.
	// +optional
	TaintKey string `json:"taintKey,omitempty"`
	// Tainted is true while the agent wants the taint on the Node.
	// +optional
	Tainted bool `json:"tainted,omitempty"`
	// Code says why the node does not reach the next state, when that is a problem of the catalogue.
	// +optional
	Code string `json:"code,omitempty"`
	// Message says what the node waits for, with the evidence and what to do, or who validated it.
	// +optional
	Message string `json:"message,omitempty"`
	// Key identifies what is to be validated: boot, driver, CDI edits, and the version of the checks. It is absent before SpecReady.
	// +optional
	Key string `json:"key,omitempty"`
	// By is who validated the node: pod, agent (the GPUs were in use), or timeout.
	// +optional
	By GateBy `json:"by,omitempty"`
}

// GateBy is who validated a node.
//
// +kubebuilder:validation:Enum=pod;agent;timeout
type GateBy string

// Who validates a node.
const (
	GateByPod     GateBy = "pod"
	GateByAgent   GateBy = "agent"
	GateByTimeout GateBy = "timeout"
)
