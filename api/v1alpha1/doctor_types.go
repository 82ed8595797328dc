package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindDoctor is the kind of Doctor.
const KindDoctor = "Doctor"

// Doctor is what berth doctor prints with -o json and -o yaml: the checks of a node and the problems that they found.
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
	// DoctorHealthy: no problem was found.
	DoctorHealthy DoctorVerdict = "Healthy"
	// DoctorProblems: there is an error or a warning.
	DoctorProblems DoctorVerdict = "Problems"
	// DoctorUnknown: no problem was found, but not all checks could be made.
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

// DoctorFinding is the result of a check, or one of its findings.
type DoctorFinding struct {
	// Check is the name of the check, such as driver or device nodes.
	Check  string       `json:"check"`
	Status DoctorStatus `json:"status"`
	// Code is the problem's name in docs/problems.md; only for a problem.
	Code string `json:"code,omitempty"`
	// Severity is error, warning or info; only for a problem.
	Severity string `json:"severity,omitempty"`
	// Evidence is what was found and where.
	Evidence string `json:"evidence"`
	// Fix says what to do; only for a problem.
	Fix string `json:"fix,omitempty"`
}

// DoctorNotChecked is a check that does not apply, and why.
type DoctorNotChecked struct {
	Check string `json:"check"`
	Why   string `json:"why"`
}
