package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindFit is the kind of Fit.
const KindFit = "Fit"

// Fit is what berth fit prints with -o json and -o yaml: whether claims and pods would get devices now.
type Fit struct {
	metav1.TypeMeta `json:",inline"`
	// Fits: each item fits. Each is checked alone, as if the others did not exist.
	Fits bool `json:"fits"`
	// Items are in the order of the file.
	Items []FitItem `json:"items"`
}

// FitItem is the answer for a ResourceClaim, for a claim of a ResourceClaimTemplate, or for a pod with all of its claims.
type FitItem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Fits: there is a node on which it fits.
	Fits bool `json:"fits"`
	// Reasons are in the way on every node.
	Reasons []FitReason `json:"reasons,omitempty"`
	// Nodes are sorted by name.
	Nodes []FitNode `json:"nodes"`
}

// FitNode is the answer for one node.
type FitNode struct {
	Name string `json:"name"`
	Fits bool   `json:"fits"`
	// Devices are those that the scheduler would allocate on the node now.
	Devices []FitDevice `json:"devices,omitempty"`
	// DevicePlugin are the pod's extended resources that the node's device plugins serve. The scheduler makes no claim for them.
	DevicePlugin []FitPluginResource `json:"devicePlugin,omitempty"`
	// Reasons are in the way on this node.
	Reasons []FitReason `json:"reasons,omitempty"`
}

// FitPluginResource is an extended resource of a device plugin.
type FitPluginResource struct {
	Resource string `json:"resource"`
	// Requested is what the pod requests, and Free what no other pod of the node does.
	Requested int64 `json:"requested"`
	Free      int64 `json:"free"`
}

// FitDevice is a device for a request of a claim.
type FitDevice struct {
	// Claim is the name in the file, or empty for the claim that the scheduler makes for extended resources.
	Claim   string `json:"claim,omitempty"`
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// AdminAccess: the device is not held.
	AdminAccess bool `json:"adminAccess,omitempty"`
}

// FitReason is what is in the way.
type FitReason struct {
	Code FitReasonCode `json:"code"`
	// Message is one sentence.
	Message string `json:"message"`
}

// FitReasonCode says what kind of thing is in the way.
type FitReasonCode string

// What is in the way on every node.
const (
	// FitNoNodes: the cluster has no Node.
	FitNoNodes FitReasonCode = "NoNodes"
	// FitClassMissing: a DeviceClass does not exist.
	FitClassMissing FitReasonCode = "DeviceClassMissing"
	// FitClaimInUse: an allocated claim has no free place for a further pod.
	FitClaimInUse FitReasonCode = "ClaimInUse"
	// FitClaimDeleted: a claim of the cluster is being deleted.
	FitClaimDeleted FitReasonCode = "ClaimDeleted"
	// FitClaimDiffers: the cluster has a claim of the name that requests something else, and claims cannot be changed.
	FitClaimDiffers FitReasonCode = "ClaimDiffers"
	// FitError: the scheduler's allocator returned an error for some node, for which the scheduler tries no other node.
	FitError FitReasonCode = "AllocatorError"
	// FitTimeout: the allocator needed longer than the scheduler gives it.
	FitTimeout FitReasonCode = "AllocatorTimeout"
)

// What is in the way on one node.
const (
	// FitNodeRefuses: the pod's node name, node selector or affinity, or a taint of the Node.
	FitNodeRefuses FitReasonCode = "NodeRefuses"
	// FitClaimElsewhere: a claim is allocated on another node.
	FitClaimElsewhere FitReasonCode = "ClaimElsewhere"
	// FitResourceMissing: no DeviceClass and no device plugin of the node has an extended resource.
	FitResourceMissing FitReasonCode = "ResourceMissing"
	// FitResourceHeld: the device plugin's devices of an extended resource are held by other pods.
	FitResourceHeld FitReasonCode = "ResourceHeld"
	// FitNoDevices: no ResourceSlice has devices for the node.
	FitNoDevices FitReasonCode = "NoDevices"
	// FitPoolIncomplete: ResourceSlices of a pool are missing, so its devices are not allocated.
	FitPoolIncomplete FitReasonCode = "PoolIncomplete"
	// FitPoolInvalid: a pool has two devices or counter sets of one name, or devices that use counters it does not have.
	FitPoolInvalid FitReasonCode = "PoolInvalid"
	// FitClassMatchesNothing: no device of the node is of the class.
	FitClassMatchesNothing FitReasonCode = "ClassMatchesNothing"
	// FitTooFewMatch: fewer devices than requested meet the selectors of a request.
	FitTooFewMatch FitReasonCode = "TooFewMatch"
	// FitHeld: devices are held by other claims.
	FitHeld FitReasonCode = "Held"
	// FitTainted: devices have a taint that the request does not tolerate.
	FitTainted FitReasonCode = "Tainted"
	// FitConstraint: no set of devices meets a constraint.
	FitConstraint FitReasonCode = "Constraint"
	// FitTogether: each request could be met alone, but not all of them together.
	FitTogether FitReasonCode = "Together"
	// FitUnbindable: the scheduler chooses the node, and can never bind the pod to it.
	FitUnbindable FitReasonCode = "Unbindable"
	// FitNotExplained: the allocator needed too long, or failed, when it was asked what is in the way.
	FitNotExplained FitReasonCode = "NotExplained"
)
