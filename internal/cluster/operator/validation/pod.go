package validation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	labelValue = "node"
	// hashAnnotation says from which settings a pod or a ResourceClaim was made: one that was made from others is replaced while the pod
	// has not started. What admission changes is no difference.
	hashAnnotation = v1alpha1.Group + "/validation-hash"
	// agentComponent is the component of the GPUStack whose image has the checks.
	agentComponent = "agent"
	// reservedTaint is the key of the taint with which clusters reserve nodes with GPUs.
	reservedTaint = "nvidia.com/gpu"
	claimName     = "devices"
	// user is the one that the other programs without privileges run as.
	user = 65532
	// deadline ends a pod that hangs, in seconds after the kubelet has accepted it.
	deadline = 300
)

// objects are what is created for an operation; claim is nil where no device needs one.
type objects struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
}

// objectsOf returns the objects that validate a node. The error says what the GPUStack lacks.
func (r *Reconciler) objectsOf(op *v1alpha1.NodeOperation, node *v1alpha1.GPUNode, stack *v1alpha1.GPUStackSpec) (objects, error) {
	at := slices.IndexFunc(stack.Components, func(c v1alpha1.StackComponent) bool { return c.Name == agentComponent })
	if at < 0 || stack.Components[at].Image == "" {
		return objects{}, errors.New("the GPUStack default has no image of the component agent")
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		// The scheduler binds the pod, so that it counts what the pod requests.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{op.Spec.Node}}}}}}}},
		Tolerations:                   tolerations(node, stack),
		ActiveDeadlineSeconds:         new(int64(deadline)),
		TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	}
	for _, name := range stack.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	all := demands(node)
	requests := r.requests(all, stack)
	for i, d := range all {
		request := requests[i]
		if request != nil && request.Exactly.Count > 0 {
			d.expect = min(d.expect, request.Exactly.Count)
		}
		c := container(i, d, stack.Components[at].Image, corev1.PullPolicy(stack.PullPolicy))
		if request != nil {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: claimName, Request: request.Name}}
		} else {
			quantity := *resource.NewQuantity(d.count, resource.DecimalSI)
			c.Resources.Requests[corev1.ResourceName(d.resource)], c.Resources.Limits[corev1.ResourceName(d.resource)] = quantity, quantity
		}
		spec.Containers = append(spec.Containers, c)
	}
	made := objects{pod: &corev1.Pod{Spec: spec}}
	if requests = slices.DeleteFunc(requests, func(r *resourceapi.DeviceRequest) bool { return r == nil }); len(requests) > 0 {
		made.pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: claimName, ResourceClaimName: new(podName(op.Spec.Node))}}
		made.claim = &resourceapi.ResourceClaim{}
		for _, request := range requests {
			made.claim.Spec.Devices.Requests = append(made.claim.Spec.Devices.Requests, *request)
		}
	}
	return made, r.describe(op, made)
}

// container returns the container that validates the devices of one name; its resources lack those.
func container(i int, d demand, image string, policy corev1.PullPolicy) corev1.Container {
	return corev1.Container{
		Name: "validate-" + strconv.Itoa(i), Image: image, ImagePullPolicy: policy,
		Args: []string{"validate", "--resource", d.resource, "--expect", strconv.FormatInt(d.expect, 10)},
		Resources: corev1.ResourceRequirements{
			// Zero, and not left out: a node whose CPU and memory are requested to the last unit is validated too.
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		SecurityContext: &corev1.SecurityContext{RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	}
}

// tolerations returns those of the pod: the gate's taint, what the agent tolerates, and the taint of reserved nodes.
func tolerations(node *v1alpha1.GPUNode, stack *v1alpha1.GPUStackSpec) []corev1.Toleration {
	taint := v1alpha1.TaintNotValidated
	if g := node.Status.Gate; g != nil {
		taint = cmp.Or(g.TaintKey, taint) // A toleration without a key would tolerate all taints.
	}
	all := []corev1.Toleration{{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: reservedTaint, Operator: corev1.TolerationOpExists}}
	for _, t := range stack.Tolerations {
		toleration := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect),
			TolerationSeconds: t.TolerationSeconds}
		if !slices.ContainsFunc(all, func(have corev1.Toleration) bool { return apiequality.Semantic.DeepEqual(have, toleration) }) {
			all = append(all, toleration)
		}
	}
	return all
}

// requests returns the requests of the ResourceClaim, by the index of the demand; nil for a demand that a container requests by the name of
// its resource. Devices of a driver with another name are requested so too: the DeviceClasses of Berth do not select them.
func (r *Reconciler) requests(all []demand, stack *v1alpha1.GPUStackSpec) []*resourceapi.DeviceRequest {
	requests := make([]*resourceapi.DeviceRequest, len(all))
	var claimed, devices int64
	byClass := func(d demand) bool {
		return d.dra && r.deps.Classes[d.resource] != "" && cmp.Or(stack.Host.DRADriverName, r.deps.Driver) == r.deps.Driver
	}
	for _, d := range all {
		if byClass(d) {
			claimed, devices = claimed+1, devices+d.devices
		}
	}
	for i, d := range all {
		if !byClass(d) {
			continue
		}
		exact := &resourceapi.ExactDeviceRequest{DeviceClassName: r.deps.Classes[d.resource], AllocationMode: resourceapi.DeviceAllocationModeAll}
		// All means each device of the class, also one that is not healthy, with which nothing would be allocated.
		switch most := int64(resourceapi.AllocationResultsMaxSize); {
		case devices > most: // A claim has a limited number of devices: each class gets one, and a share of the others.
			exact.AllocationMode, exact.Count = resourceapi.DeviceAllocationModeExactCount, 1+(d.devices-1)*(most-claimed)/(devices-claimed)
		case d.others:
			exact.AllocationMode, exact.Count = resourceapi.DeviceAllocationModeExactCount, d.devices
		}
		requests[i] = &resourceapi.DeviceRequest{Name: "request-" + strconv.Itoa(i), Exactly: exact}
	}
	return requests
}

// describe sets the metadata of the objects.
func (r *Reconciler) describe(op *v1alpha1.NodeOperation, made objects) error {
	settings := []any{made.pod.Spec}
	if made.claim != nil {
		settings = append(settings, made.claim.Spec)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("make the pod: %w", err)
	}
	sum := sha256.Sum256(text)
	about := metav1.ObjectMeta{
		Namespace: r.deps.Namespace,
		Name:      podName(op.Spec.Node),
		Labels: map[string]string{v1alpha1.ValidationLabel: labelValue, "app.kubernetes.io/name": PodName, "app.kubernetes.io/part-of": "berth",
			"app.kubernetes.io/managed-by": "berth-operator"},
		Annotations: map[string]string{v1alpha1.ValidationKeyAnnotation: op.Spec.Key, hashAnnotation: hex.EncodeToString(sum[:8])},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindNodeOperation, Name: op.Name, UID: op.UID,
			Controller: new(true)}},
	}
	made.pod.ObjectMeta = about
	if made.claim != nil {
		made.claim.ObjectMeta = *about.DeepCopy()
	}
	return nil
}

// ofOperation reports whether an object is of an operation: not only its name.
func ofOperation(object metav1.Object, op *v1alpha1.NodeOperation) bool {
	return labelled(object) && metav1.IsControlledBy(object, op) && object.GetAnnotations()[v1alpha1.ValidationKeyAnnotation] == op.Spec.Key
}

// labelled reports whether an object has Berth's label.
func labelled(object metav1.Object) bool {
	return object.GetLabels()[v1alpha1.ValidationLabel] == labelValue
}
