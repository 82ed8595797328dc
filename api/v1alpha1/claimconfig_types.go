package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUClaimConfig is the opaque configuration of the driver gpu.berth.dev in a ResourceClaim, a ResourceClaimTemplate or a DeviceClass. It
// is strict: a claim with an unknown key or a wrong type is not prepared. Of several for a request the last one of the claim is in
// force, else the last one of the class; they are not merged. A device for admin access keeps its settings.
//
// +kubebuilder:object:root=true
// +kubebuilder:skip
type GPUClaimConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Sharing is how the containers that use the claim share a GPU. Default: timeSlicing with the driver's time slice.
	Sharing *ClaimSharing `json:"sharing,omitempty"`
}

// ClaimSharing is how containers share the GPUs of a claim.
type ClaimSharing struct {
	// Mode is timeSlicing or mps. With mps the containers are clients of an MPS daemon, which runs as long as the claim is prepared. It
	// is for one whole GPU: a container has one daemon, and MPS does not run on MIG devices here.
	Mode SharingMode `json:"mode"`
	// TimeSlice is how long a process runs before the next: default, short, medium or long. Default: default. It is for mode timeSlicing
	// of whole GPUs.
	TimeSlice TimeSlice `json:"timeSlice,omitempty"`
	// MPS are the limits of mode mps.
	MPS *ClaimMPSLimits `json:"mps,omitempty"`
}
