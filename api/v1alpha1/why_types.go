package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindWhy is the kind of Why.
const KindWhy = "Why"

// Why is what berth why prints with -o json and -o yaml: why a pod waits, and what would help.
type Why struct {
	metav1.TypeMeta `json:",inline"`
	// Subject is what was asked about: "pod ml/train", "Job ml/train".
	Subject string `json:"subject"`
	// Pod is the pod that the answer is about, as NAMESPACE/NAME; empty when there is none.
	Pod string `json:"pod,omitempty"`
	// Code is the dominant reason, a stable name. Sentence says it in plain words.
	Code     string `json:"code"`
	Sentence string `json:"sentence"`
	// If says what was assumed by --if-gone and --gpus.
	If string `json:"if,omitempty"`
	// Gang is set when the answer is about a gang as a whole.
	Gang *WhyGang `json:"gang,omitempty"`
	// Nodes is how many nodes there are, Fits on which of them the pod fits now.
	Nodes int      `json:"nodes"`
	Fits  []string `json:"fits,omitempty"`
	// Groups are the other nodes, by the worst thing that is in the way there. The first one has the dominant reason.
	Groups []WhyGroup `json:"groups,omitempty"`
	// Changes are those with which the pod fits, the smallest one first. Each was checked by evaluating the changed cluster.
	Changes []WhyChange `json:"changes,omitempty"`
	// NothingHelps is true when no set of the known changes makes the pod fit.
	NothingHelps bool `json:"nothingHelps,omitempty"`
	// SearchLimited is true when the search ended early, so that a smaller change is possible.
	SearchLimited bool `json:"searchLimited,omitempty"`
	// Notes are further facts, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// WhyGang is a gang that an answer is about.
type WhyGang struct {
	// Key is its NAMESPACE/NAME, and Source the API by which its pods say that they are a gang: berth.dev, scheduling.x-k8s.io or
	// scheduling.volcano.sh.
	Key    string `json:"key"`
	Source string `json:"source"`
	// Min is how many members have to start together, 0 where that is not known. Done of them have succeeded.
	Min  int32 `json:"min,omitempty"`
	Done int32 `json:"done,omitempty"`
	// Members is how many there are, and Placed how many of them have a node.
	Members int `json:"members"`
	Placed  int `json:"placed"`
	// Level is the level of topology on which members fit, and Domain its domain where most of them do, Fit of them. Without a level it is
	// the whole cluster.
	Level  string `json:"level,omitempty"`
	Domain string `json:"domain,omitempty"`
	Fit    int    `json:"fit"`
	// Reason is the code of the answer.
	Reason string `json:"reason"`
}

// WhyGroup are nodes with the same worst thing in the way.
type WhyGroup struct {
	// Code is that thing, and Key the taint, label or resource.
	Code string `json:"code"`
	Key  string `json:"key,omitempty"`
	// Message is what is in the way on the nearest node.
	Message string `json:"message"`
	// Same is true when the message holds for all of them.
	Same bool `json:"same,omitempty"`
	// Count is how many nodes there are, Nodes are the names of some, the nearest one first.
	Count int      `json:"count"`
	Nodes []string `json:"nodes"`
}

// WhyChange is a change with which the pod fits.
type WhyChange struct {
	// Message is a sentence.
	Message string `json:"message"`
	// Node is where the pod fits then; a node that is to be added has the name of the one that it is like.
	Node string `json:"node,omitempty"`
	// Acts are all needed.
	Acts []WhyAct `json:"acts,omitempty"`
	// Do are commands, or instructions in words.
	Do []string `json:"do,omitempty"`
}

// WhyAct is one part of a change.
type WhyAct struct {
	// Kind is a stable name, such as EndPod or Tolerate.
	Kind string `json:"kind"`
	Node string `json:"node,omitempty"`
	// Pod is the pod that ends, as NAMESPACE/NAME.
	Pod string `json:"pod,omitempty"`
	// Key is the taint, the label, the model or the resource.
	Key string `json:"key,omitempty"`
	// GPU is the index of a GPU on the node.
	GPU *int `json:"gpu,omitempty"`
	// Count is what is requested then: GPUs, thousandths of a core, or MiB.
	Count int64 `json:"count,omitempty"`
}
