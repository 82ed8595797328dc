package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindDoctor is the kind of Doctor.
const KindDoctor = "Doctor"

// Doctor is what berth doctor prints with -o json and -o yaml: what was checked of a node,
// and what is wrong with it.
type Doctor struct {
	metav1.TypeMeta `json:",inline"`
	// Node is the node's name, where it is known.
	Node    string        `json:"node,omitempty"`
	Verdict DoctorVerdict `json:"verdict"`
	// Findings are in the order of the checks: from the driver upwards to the API.
	Findings []DoctorFinding `json:"findings"`
	// NotChecked are checks that do not apply here, with the reason.
	NotChecked []DoctorNotChecked `json:"notChecked,omitempty"`
}

// DoctorVerdict sums the findings up.
type DoctorVerdict string

// The verdicts.
const (
	// DoctorHealthy: nothing is wrong.
	DoctorHealthy DoctorVerdict = "Healthy"
	// DoctorProblems: there is an error or a warning.
	DoctorProblems DoctorVerdict = "Problems"
	// DoctorUnknown: nothing wrong was found, but not everything could be looked at.
	DoctorUnknown DoctorVerdict = "Unknown"
)

// DoctorStatus is the outcome of a check.
type DoctorStatus string

// The outcomes.
const (
	DoctorOK          DoctorStatus = "ok"
	DoctorProblem     DoctorStatus = "problem"
	DoctorCannotCheck DoctorStatus = "unknown"
)

// DoctorFinding is the outcome of a check, or one of the things that it found.
type DoctorFinding struct {
	// Check is what was looked at, such as driver or device nodes.
	Check  string       `json:"check"`
	Status DoctorStatus `json:"status"`
	// Code is the problem's name in docs/problems.md; only for a problem.
	Code string `json:"code,omitempty"`
	// Severity is error, warning or info; only for a problem.
	Severity string `json:"severity,omitempty"`
	// Evidence is what was seen and where.
	Evidence string `json:"evidence"`
	// Fix says what to do; only for a problem.
	Fix string `json:"fix,omitempty"`
}

// DoctorNotChecked is a check that does not apply, and why.
type DoctorNotChecked struct {
	Check string `json:"check"`
	Why   string `json:"why"`
}
