package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindValuesReport is the kind of ValuesReport.
const KindValuesReport = "ValuesReport"

// ValuesReport is what berth values check prints with -o json and -o yaml.
type ValuesReport struct {
	metav1.TypeMeta `json:",inline"`
	// Files are the files in the order in which they are merged.
	Files []string `json:"files"`
	// Problems are in the order in which they were found; none means that the files are accepted.
	Problems []ValuesProblem `json:"problems"`
}

// ValuesProblem is something wrong in the values of the chart.
type ValuesProblem struct {
	File string `json:"file,omitempty"`
	// Line counts from 1; it is 0 when the problem concerns no line.
	Line int `json:"line,omitempty"`
	// Key is the path from the top, such as configs[default].gpus[0].sharing.
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	// Fix says what to write instead.
	Fix string `json:"fix,omitempty"`
	// Warning is true for what the chart accepts and probably is not meant.
	Warning bool `json:"warning,omitempty"`
}
