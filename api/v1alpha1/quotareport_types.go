package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindQuotaReport is the kind of QuotaReport.
const KindQuotaReport = "QuotaReport"

// QuotaReport is what berth quota prints with -o json and -o yaml.
type QuotaReport struct {
	metav1.TypeMeta `json:",inline"`
	// Items are sorted by namespace, quota and name.
	Items []QuotaUse `json:"items"`
}

// QuotaUse is a name of devices that a ResourceQuota limits.
type QuotaUse struct {
	Namespace string `json:"namespace"`
	// Quota is the name of the ResourceQuota.
	Quota string `json:"quota"`
	// GPUQuota is the name of the GPUQuota that it belongs to; absent for one that somebody wrote.
	GPUQuota string `json:"gpuQuota,omitempty"`
	// Name is what is limited, as the ResourceQuota has it.
	Name string `json:"name"`
	// Used and Hard are quantities, such as 4. Used is absent for a name that is not counted.
	Used string `json:"used,omitempty"`
	Hard string `json:"hard"`
	// WriteInstead is the name that is counted, for one that is not: the ResourceQuota limits nothing by it.
	WriteInstead string `json:"writeInstead,omitempty"`
	// Scoped is set for a ResourceQuota with scopes, which counts only the pods that match them. Its holders are not named.
	Scoped bool `json:"scoped,omitempty"`
	// Idle is set for a name of a GPUQuota that nothing uses, and under which no node has had devices.
	Idle bool `json:"idle,omitempty"`
	// Holders are the pods and ResourceClaims that use it, those that use most first.
	Holders []QuotaHolder `json:"holders,omitempty"`
}

// QuotaHolder is a pod or a ResourceClaim that a ResourceQuota counts.
type QuotaHolder struct {
	// Kind is Pod or ResourceClaim.
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Count int64  `json:"count"`
}
