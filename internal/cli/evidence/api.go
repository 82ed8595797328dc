package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/offer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// listLimit is the number of pods per page of a list.
const listLimit = 500

// API reads pods and GPUNodes.
type API struct {
	Client dynamic.Interface
	// REST reads resources that are not objects, such as an agent's metrics through pods/proxy.
	REST rest.Interface
	// AgentNamespace is the namespace of the agent's pods.
	AgentNamespace string
	// Shows tells whether the holders of a namespace may be named; nil names all of them.
	Shows func(namespace string) bool
}

func pods() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// Pod reads one pod and adds its spec and status. It returns the API's error; a pod that does not exist is also an
// Unread, because a node may still run it.
func (a API) Pod(ctx context.Context, e *trace.Evidence, ref trace.Ref) (*corev1.Pod, error) {
	path := "pods/" + ref.Namespace + "/" + ref.Name
	object, err := a.Client.Resource(pods()).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		e.Unread = append(e.Unread, trace.Unread{Source: trace.Source{Kind: trace.PodSpec, Path: path}, Why: err.Error()})
		return nil, err
	}
	pod, err := decodePod(object)
	if err != nil {
		return nil, err
	}
	addPod(e, pod)
	a.addClaims(ctx, e, pod)
	a.addWaits(ctx, e, pod)
	return pod, nil
}

// PodOfUID searches all namespaces for a pod; it returns nil without an error when there is none.
func (a API) PodOfUID(ctx context.Context, e *trace.Evidence, uid string) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := a.eachPod(ctx, metav1.NamespaceAll, func(pod *corev1.Pod) bool {
		if podUID(pod) == uid || string(pod.UID) == uid {
			found = pod
		}
		return found == nil
	})
	if found != nil {
		addPod(e, found)
		a.addClaims(ctx, e, found)
		a.addWaits(ctx, e, found)
	}
	return found, err
}

// Names lists the pods of a namespace as NAMESPACE/NAME.
func (a API) Names(ctx context.Context, namespace string) ([]string, error) {
	var names []string
	err := a.eachPod(ctx, namespace, func(pod *corev1.Pod) bool {
		names = append(names, pod.Namespace+"/"+pod.Name)
		return true
	})
	return names, err
}

// raw returns what the API server sent, or its error. That of Raw lacks the message, such as which right a user does not have.
func raw(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// NodeNames returns the names of the nodes whose labels a selector selects, of which it reads the metadata alone.
func (a API) NodeNames(ctx context.Context, selector string) ([]string, error) {
	names, next := []string{}, ""
	for {
		text, err := raw(a.REST.Get().AbsPath("/api/v1/nodes").Param("labelSelector", selector).Param("limit", strconv.Itoa(listLimit)).Param("continue", next).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json").Do(ctx))
		if err != nil {
			return nil, err
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, fmt.Errorf("decode the nodes: %w", err)
		}
		for i := range page.Items {
			names = append(names, page.Items[i].Name)
		}
		if next = page.Continue; next == "" {
			return names, nil
		}
	}
}

func (a API) eachPod(ctx context.Context, namespace string, visit func(*corev1.Pod) bool) error {
	options := metav1.ListOptions{Limit: listLimit}
	for {
		list, err := a.Client.Resource(pods()).Namespace(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			pod, err := decodePod(&list.Items[i])
			if err != nil {
				return err
			}
			if !visit(pod) {
				return nil
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

func decodePod(object *unstructured.Unstructured) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod); err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return pod, nil
}

// podUID returns the UID that the kubelet uses: for a static pod it is the hash of its file, not the UID of its mirror
// pod.
func podUID(pod *corev1.Pod) string {
	if hash := pod.Annotations["kubernetes.io/config.hash"]; hash != "" && pod.Annotations["kubernetes.io/config.mirror"] != "" {
		return hash
	}
	return string(pod.UID)
}

func addPod(e *trace.Evidence, pod *corev1.Pod) {
	path := "pods/" + pod.Namespace + "/" + pod.Name
	ref := trace.Ref{UID: podUID(pod), Namespace: pod.Namespace, Name: pod.Name}
	source := trace.Source{Kind: trace.PodSpec, Path: path}
	fact := trace.PodFact{Source: source, Ref: ref, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase)}
	states := statesOf(pod)
	for _, c := range pod.Spec.InitContainers {
		role := trace.RoleInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			role = trace.RoleSidecar
		}
		fact.Containers = append(fact.Containers, trace.PodContainer{Name: c.Name, Role: role, State: states[c.Name],
			Asked: asked(c.Resources)})
	}
	for _, c := range pod.Spec.Containers {
		fact.Containers = append(fact.Containers, trace.PodContainer{Name: c.Name, Role: trace.RoleApp,
			State: states[c.Name], Asked: asked(c.Resources)})
	}
	e.Read = append(e.Read, source)
	e.Pods = append(e.Pods, fact)
	addStatus(e, pod, ref, trace.Source{Kind: trace.PodStatus, Path: path + " allocatedResourcesStatus"})
}

// asked returns the resources of a container that a device plugin can advertise: those with a domain, in whole numbers.
// It reads limits, as the scheduler does.
func asked(resources corev1.ResourceRequirements) []trace.Ask {
	var asks []trace.Ask
	for name, quantity := range resources.Limits {
		domain, _, qualified := strings.Cut(string(name), "/")
		if !qualified || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || quantity.Value() == 0 {
			continue
		}
		asks = append(asks, trace.Ask{Resource: string(name), Count: quantity.Value()})
	}
	slices.SortFunc(asks, func(x, y trace.Ask) int { return strings.Compare(x.Resource, y.Resource) })
	return asks
}

func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

func statesOf(pod *corev1.Pod) map[string]string {
	states := map[string]string{}
	for _, status := range statuses(pod) {
		switch {
		case status.State.Running != nil:
			states[status.Name] = trace.StateRunning
		case status.State.Terminated != nil:
			states[status.Name] = trace.StateTerminated
		case status.State.Waiting != nil:
			states[status.Name] = trace.StateWaiting
		}
	}
	return states
}

// addStatus reads allocatedResourcesStatus (KEP-4680), which the kubelet writes since 1.36. An entry for a claim is not
// a device of a device plugin.
func addStatus(e *trace.Evidence, pod *corev1.Pod, ref trace.Ref, source trace.Source) {
	found := false
	for _, status := range statuses(pod) {
		for _, resource := range status.AllocatedResourcesStatus {
			if strings.HasPrefix(string(resource.Name), "claim:") {
				continue
			}
			fact := trace.AssignmentFact{Source: source, Pod: ref, Container: status.Name, Resource: string(resource.Name)}
			for _, health := range resource.Resources {
				fact.IDs = append(fact.IDs, string(health.ResourceID))
			}
			found = true
			e.Assignments = append(e.Assignments, fact)
		}
	}
	if found {
		e.Read = append(e.Read, source)
		return
	}
	if len(usesOf(pod)) > 0 {
		return // A container with claims need not have a device of a device plugin.
	}
	e.Unread = append(e.Unread, trace.Unread{Source: source,
		Why: "the pod's status has none: no container holds a device, or the kubelet is older than 1.36"})
}

// GPUNode reads one node's object; a missing object is an Unread.
func (a API) GPUNode(ctx context.Context, e *trace.Evidence, name string) *v1alpha1.GPUNode {
	object, err := a.Client.Resource(v1alpha1.GPUNodes()).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		node, decodeError := gpunode.Decode(object)
		if decodeError == nil {
			a.addGPUNode(e, node, "")
			return node
		}
		err = decodeError
	}
	e.Unread = append(e.Unread, trace.Unread{Source: gpuNodeSource(name), Why: gpuNodeReason(err)})
	return nil
}

func gpuNodeReason(err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "not found: berth-agent does not run on the node, or may not publish it"
	case apierrors.IsForbidden(err):
		return err.Error() + " (needs get and list on gpunodes.berth.dev)"
	}
	return err.Error()
}

func gpuNodeSource(name string) trace.Source {
	return trace.Source{Kind: trace.GPUNode, Path: v1alpha1.GPUNodeResource + "/" + name}
}

// addGPUNode adds what a GPUNode contains about devices and their holders.
func addGPUNode(e *trace.Evidence, node *v1alpha1.GPUNode) {
	source := gpuNodeSource(node.Name)
	e.Read = append(e.Read, source)
	before := len(e.Devices)
	defer func() { namePools(e.Devices[before:]) }()
	for i := range node.Status.Devices {
		device := &node.Status.Devices[i]
		fact := trace.DeviceFact{
			Source: source, Host: node.Name, UUID: gpu.UUID(device.UUID), Index: strconv.Itoa(device.Index), Minor: device.Minor,
			PCI: device.PCIBusID, Product: device.Product, Architecture: device.Architecture, Capability: device.ComputeCapability,
			MemoryBytes: uint64(device.MemoryBytes), NUMANode: device.NUMANode, Health: HealthText(device.Health),
			Sharing: sharingFact(device.Offered),
		}
		e.Devices = append(e.Devices, fact)
		addHolders(e, source, node.Name, device.UUID, device.Holders)
		for _, mig := range device.MIGDevices {
			part := fact
			part.UUID, part.Parent = gpu.UUID(mig.UUID), gpu.UUID(device.UUID)
			part.Index = fmt.Sprintf("%d:%d", device.Index, mig.Index)
			part.Profile, part.MemoryBytes = mig.Profile, uint64(mig.MemoryBytes)
			part.Instance = trace.InstanceFact{GI: mig.GI, CI: mig.CI, Start: mig.Start, Size: mig.Size}
			part.Sharing = sharingFact(mig.Offered)
			if mig.Health != nil {
				part.Health = HealthText(*mig.Health)
			}
			e.Devices = append(e.Devices, part)
			addHolders(e, source, node.Name, mig.UUID, mig.Holders)
		}
	}
}

func sharingFact(offered *v1alpha1.DeviceOffer) trace.SharingFact {
	if offered == nil {
		return trace.SharingFact{}
	}
	return trace.SharingFact{
		Mode:      offered.Sharing,
		Replicas:  offered.Replicas,
		TimeSlice: offered.TimeSlice,
		MPS:       gpu.MPSLimits(offered.ClaimMPSLimits),
		Draining:  offered.Draining,
	}
}

func addHolders(e *trace.Evidence, source trace.Source, host, id string, holders []v1alpha1.Holder) {
	for i := range holders {
		holder := &holders[i]
		if isClaim(holder.Kind) {
			e.Claims = append(e.Claims, claimHolder(source, id, holder))
			continue
		}
		if holder.PodUID == "" {
			continue
		}
		ref := trace.Ref{UID: holder.PodUID, Namespace: holder.Namespace, Name: holder.Pod}
		e.Pods = append(e.Pods, trace.PodFact{Source: source, Ref: ref, Node: host})
		e.Assignments = append(e.Assignments, trace.AssignmentFact{
			Source: source, Pod: ref, Container: holder.Container, Resource: holder.Resource,
			IDs: []string{offer.DeviceID(gpu.DeviceKey{GPU: gpu.UUID(id), Share: holder.Share})},
		})
	}
}

// HealthText returns the health in one line.
func HealthText(health v1alpha1.DeviceHealth) string {
	plain := gpu.Health{State: gpu.State(health.State)}
	for _, cause := range health.Causes {
		plain.Causes = append(plain.Causes, gpu.Cause{Code: cause.Code})
	}
	return trace.HealthText(plain)
}
