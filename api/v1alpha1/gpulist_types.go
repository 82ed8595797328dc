package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUList is what berth gpus prints with -o json and -o yaml.
type GPUList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []GPUListItem `json:"items"`
	// NotRead are the sources that were not read, with the reason.
	NotRead []TraceNotRead `json:"notRead,omitempty"`
}

// GPUListItem is one GPU and the node that it is in.
type GPUListItem struct {
	Node      string `json:"node"`
	GPUDevice `json:",inline"`
}

// GPUTopology is what berth topo prints with -o json and -o yaml.
type GPUTopology struct {
	metav1.TypeMeta `json:",inline"`
	Node            string        `json:"node"`
	GPUs            []TopologyGPU `json:"gpus"`
	// Links is the square matrix in the order of GPUs, in nvidia-smi's letters.
	Links [][]string `json:"links"`
}

// TopologyGPU is a row of the matrix.
type TopologyGPU struct {
	// Vendor is the name of the vendor, on a node with GPUs of several.
	Vendor   string `json:"vendor,omitempty"`
	Index    int    `json:"index"`
	UUID     string `json:"uuid"`
	Product  string `json:"product"`
	PCIBusID string `json:"pciBusID"`
	// NUMANode is -1 where the kernel does not report it.
	NUMANode int `json:"numaNode"`
}
