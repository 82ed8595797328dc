package evidence

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxClaimRecord is more than the claims of a node need.
const maxClaimRecord = 64 << 20

func resourceClaims() schema.GroupVersionResource {
	return resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
}

// ours reports whether a device of a claim is of Berth's driver, which can have another name: its devices are named by UUIDs.
func ours(driver, device string) bool {
	return driver == pool.DefaultDriver || pool.IsDeviceName(device)
}

// claimRecord reads the kubelet's record of prepared claims. A kubelet without the record has prepared none.
func (c *collector) claimRecord() {
	path := under(c.places.KubeletDir, prepared.FileName)
	if path == "" {
		return
	}
	text, err := readFile(path, maxClaimRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		c.unread(trace.ClaimRecord, path, why(err))
		return
	}
	claims, err := prepared.ParseDevices(text, pool.DevicePrefix, ours)
	if err != nil {
		c.unread(trace.ClaimRecord, path, err.Error())
		return
	}
	source := trace.Source{Kind: trace.ClaimRecord, Path: path}
	c.read(source)
	for _, claim := range claims {
		if len(claim.Devices) == 0 {
			continue // Of another driver, or not prepared.
		}
		fact := trace.ClaimFact{Source: source, Claim: trace.ClaimRef{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name}}
		for _, device := range claim.Devices {
			fact.Devices = append(fact.Devices, trace.ClaimDevice{ID: device.Name, Requests: device.Requests, CDINames: device.CDINames})
		}
		for _, uid := range claim.PodUIDs {
			fact.Pods = append(fact.Pods, trace.Ref{UID: uid})
		}
		c.local.Claims = append(c.local.Claims, fact)
	}
}

// claimHolding returns what the ledger has of a claim on one device.
func claimHolding(source trace.Source, holding *ledger.Holding) trace.ClaimFact {
	holder := holding.Holder
	fact := trace.ClaimFact{
		Source: source, Claim: trace.ClaimRef{UID: holder.ID, Namespace: holder.Namespace, Name: holder.Name},
		Devices: []trace.ClaimDevice{{ID: claimedID(holding), Requests: holding.Requests}},
	}
	for _, pod := range holding.Pods {
		fact.Pods = append(fact.Pods, trace.Ref{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name})
	}
	return fact
}

// claimedID returns the UUID of a device that a claim holds. A MIG device that is not made yet has none; it is named by its GPU and place.
func claimedID(holding *ledger.Holding) string {
	if holding.Key.Placement.Known() {
		return holding.Key.String()
	}
	return offer.DeviceID(holding.Key)
}

// claimHolder returns what a GPUNode has of a claim on one device.
func claimHolder(source trace.Source, id string, holder *v1alpha1.Holder) trace.ClaimFact {
	fact := trace.ClaimFact{
		Source: source, Claim: trace.ClaimRef{UID: holder.ID, Namespace: holder.Namespace, Name: holder.Claim},
		Devices: []trace.ClaimDevice{{ID: id, Requests: holder.Requests}},
	}
	for _, pod := range holder.Pods {
		ref := trace.Ref{UID: pod.UID}
		if pod.Name != "" {
			ref.Namespace, ref.Name = holder.Namespace, pod.Name
		}
		fact.Pods = append(fact.Pods, ref)
	}
	return fact
}

// namePools adds the names that the devices have in ResourceSlices.
func namePools(devices []trace.DeviceFact) {
	for i := range devices {
		fact := &devices[i]
		if fact.Parent == "" {
			fact.PoolName = pool.DeviceName(fact.UUID, mig.Placed{})
		} else if fact.Instance.Size > 0 {
			fact.PoolName = pool.DeviceName(fact.Parent, mig.Placed{Profile: fact.Profile, Start: fact.Instance.Start, Size: fact.Instance.Size})
		}
	}
}

// Claim reads one ResourceClaim. It returns its pods, and the API's error.
func (a API) Claim(ctx context.Context, e *trace.Evidence, ref trace.ClaimRef) ([]trace.Ref, error) {
	source := trace.Source{Kind: trace.ResourceClaim, Path: "resourceclaims/" + ref.Namespace + "/" + ref.Name}
	if slices.Contains(e.Read, source) {
		return nil, nil
	}
	object, err := a.Client.Resource(resourceClaims()).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	claim := &resourceapi.ResourceClaim{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, claim)
	}
	if err != nil {
		e.Unread = append(e.Unread, trace.Unread{Source: source, Why: err.Error()})
		return nil, err
	}
	e.Read = append(e.Read, source)
	fact := claimFact(source, claim)
	e.Claims = append(e.Claims, fact)
	return fact.Pods, nil
}

func claimFact(source trace.Source, claim *resourceapi.ResourceClaim) trace.ClaimFact {
	fact := trace.ClaimFact{Source: source, Claim: trace.ClaimRef{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name}}
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			fact.Pods = append(fact.Pods, trace.Ref{UID: string(consumer.UID), Namespace: claim.Namespace, Name: consumer.Name})
		}
	}
	if claim.Status.Allocation == nil {
		return fact
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if ours(result.Driver, result.Device) {
			fact.Devices = append(fact.Devices, trace.ClaimDevice{
				ID: result.Device, Requests: []string{result.Request}, Admin: result.AdminAccess != nil && *result.AdminAccess,
			})
		}
	}
	return fact
}

// addClaims adds which containers of a pod use which claims, and reads these claims.
func (a API) addClaims(ctx context.Context, e *trace.Evidence, pod *corev1.Pod) {
	uses := usesOf(pod)
	e.Uses = append(e.Uses, uses...)
	for _, use := range uses {
		_, _ = a.Claim(ctx, e, use.Claim) // Claim records an error in e.Unread.
	}
}

// usesOf returns the claims that the containers of a pod use: those that the pod names, and the one that the scheduler made for its
// extended resources.
func usesOf(pod *corev1.Pod) []trace.UseFact {
	path := "pods/" + pod.Namespace + "/" + pod.Name
	ref := trace.Ref{UID: podUID(pod), Namespace: pod.Namespace, Name: pod.Name}
	names := claimNames(pod)
	var uses []trace.UseFact
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, use := range c.Resources.Claims {
			name := names[use.Name]
			if name == "" {
				continue // The claim is not made yet, or the pod needs none.
			}
			fact := trace.UseFact{
				Source: trace.Source{Kind: trace.PodSpec, Path: path}, Pod: ref, Container: c.Name,
				Claim: trace.ClaimRef{Namespace: pod.Namespace, Name: name},
			}
			if use.Request != "" {
				fact.Requests = []string{use.Request}
			}
			uses = append(uses, fact)
		}
	}
	made := pod.Status.ExtendedResourceClaimStatus
	if made == nil {
		return uses
	}
	for _, mapping := range made.RequestMappings {
		uses = append(uses, trace.UseFact{
			Source: trace.Source{Kind: trace.PodStatus, Path: path + " extendedResourceClaimStatus"}, Pod: ref, Container: mapping.ContainerName,
			Claim: trace.ClaimRef{Namespace: pod.Namespace, Name: made.ResourceClaimName}, Requests: []string{mapping.RequestName},
			Resource: mapping.ResourceName,
		})
	}
	return uses
}

// claimNames returns the names of the ResourceClaims by the pod's own names for them.
func claimNames(pod *corev1.Pod) map[string]string {
	names := map[string]string{}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			names[claim.Name] = *claim.ResourceClaimName
		}
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			names[status.Name] = *status.ResourceClaimName
		}
	}
	return names
}

// ClaimNames lists the claims of a namespace as NAMESPACE/NAME.
func (a API) ClaimNames(ctx context.Context, namespace string) ([]string, error) {
	list, err := a.Client.Resource(resourceClaims()).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: listLimit})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		names = append(names, strings.Join([]string{list.Items[i].GetNamespace(), list.Items[i].GetName()}, "/"))
	}
	return names, nil
}

// isClaim reports whether a holder is a ResourceClaim.
func isClaim(kind string) bool { return gpu.HolderKind(kind) == gpu.HolderClaim }
