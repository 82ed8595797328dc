package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version are the two halves of APIVersion.
const (
	Group      = "berth.dev"
	Version    = "v1alpha1"
	APIVersion = Group + "/" + Version
)

// The kinds of the group.
const (
	KindGPUNode        = "GPUNode"
	KindGPUQuota       = "GPUQuota"
	KindGPUStack       = "GPUStack"
	KindNodeOperation  = "NodeOperation"
	KindStatusReport   = "StatusReport"
	KindAgentConfig    = "AgentConfig"
	KindGPUClaimConfig = "GPUClaimConfig"
	KindTrace          = "Trace"
	KindGPUList        = "GPUList"
	KindGPUTopology    = "GPUTopology"
)

// GPUNodeResource is the plural name of GPUNode in API paths and in RBAC rules.
const GPUNodeResource = "gpunodes"

// GroupVersion is the group with its version.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// GPUNodes names the resource for dynamic clients.
func GPUNodes() schema.GroupVersionResource { return GroupVersion().WithResource(GPUNodeResource) }

// GPUStacks names the resource for dynamic clients.
func GPUStacks() schema.GroupVersionResource { return GroupVersion().WithResource("gpustacks") }

// NodeOperations names the resource for dynamic clients.
func NodeOperations() schema.GroupVersionResource {
	return GroupVersion().WithResource("nodeoperations")
}

// TypeMeta is the head of an object of one of the group's kinds.
func TypeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: kind}
}

// AddToScheme registers the kinds that an API server serves with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &GPUNode{}, &GPUNodeList{}, &GPUQuota{}, &GPUQuotaList{},
		&GPUStack{}, &GPUStackList{}, &NodeOperation{}, &NodeOperationList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
