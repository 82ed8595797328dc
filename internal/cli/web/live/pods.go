package live

import (
	"crypto/sha256"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostShared is how many parts of pods are looked for again. The pods of a workload are read one soon after the other.
const mostShared = 1024

// PodKeeper takes from pods what the page and the reasons why pods wait are not computed from, and gives the pods of a workload one copy of
// what they have in common: a cluster has many pods. It is not for several goroutines.
type PodKeeper struct {
	now    map[[sha256.Size]byte]any
	before map[[sha256.Size]byte]any
}

// Keep changes a pod to what is kept of it. Parts of it are those of other pods too, and must not be changed.
func (k *PodKeeper) Keep(pod *corev1.Pod) {
	meta := &pod.ObjectMeta
	kept := metav1.ObjectMeta{
		Name: meta.Name, Namespace: one(meta.Namespace), UID: meta.UID, CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
		Labels: k.labels(meta.Labels), Annotations: k.labels(annotations(meta.Annotations)), OwnerReferences: k.owners(meta.OwnerReferences),
	}
	common := spec(&pod.Spec)
	made := corev1.Pod{ObjectMeta: kept, Spec: *shared(k, common, common.Marshal), Status: status(pod)}
	made.Spec.NodeName = one(pod.Spec.NodeName)
	*pod = made
}

// labels returns equal labels or annotations that were shared before, or a copy of these. Those of the pods of a Job differ in their index,
// and have the rest in common.
func (k *PodKeeper) labels(from map[string]string) map[string]string {
	if len(from) == 0 {
		return nil
	}
	all := make(map[string]string, len(from))
	for key, value := range from {
		all[one(key)] = one(value)
	}
	return shared(k, all, (&metav1.ObjectMeta{Labels: all}).Marshal)
}

func (k *PodKeeper) owners(all []metav1.OwnerReference) []metav1.OwnerReference {
	return shared(k, all, (&metav1.ObjectMeta{OwnerReferences: all}).Marshal)
}

// shared returns an equal part that was shared before, or this one.
func shared[T any](k *PodKeeper, part T, marshal func() ([]byte, error)) T {
	text, err := marshal()
	if err != nil {
		return part
	}
	key := sha256.Sum256(text)
	for _, known := range []map[[sha256.Size]byte]any{k.now, k.before} {
		if found, is := known[key].(T); is {
			part = found
			break
		}
	}
	if len(k.now) >= mostShared || k.now == nil {
		k.now, k.before = map[[sha256.Size]byte]any{}, k.now
	}
	k.now[key] = part
	return part
}

// one returns one copy of equal texts.
func one(text string) string { return unique.Make(text).Value() }

// spec is what schedulers look at.
func spec(from *corev1.PodSpec) *corev1.PodSpec {
	made := &corev1.PodSpec{
		NodeSelector: from.NodeSelector, Affinity: from.Affinity, Tolerations: from.Tolerations, TopologySpreadConstraints: from.TopologySpreadConstraints,
		SchedulerName: from.SchedulerName, SchedulingGates: from.SchedulingGates, SchedulingGroup: from.SchedulingGroup, ResourceClaims: from.ResourceClaims,
		Priority: from.Priority, PriorityClassName: from.PriorityClassName, PreemptionPolicy: from.PreemptionPolicy, Overhead: from.Overhead,
		HostNetwork: from.HostNetwork, Resources: from.Resources, RestartPolicy: from.RestartPolicy, ActiveDeadlineSeconds: from.ActiveDeadlineSeconds,
		InitContainers: containers(from.InitContainers), Containers: containers(from.Containers),
	}
	for i := range from.Volumes {
		if v := &from.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil {
			made.Volumes = append(made.Volumes, *v)
		}
	}
	return made
}

func containers(from []corev1.Container) []corev1.Container {
	if len(from) == 0 {
		return nil
	}
	made := make([]corev1.Container, len(from))
	for i := range from {
		c := &from[i]
		made[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		made[i].Ports = append(made[i].Ports, slices.DeleteFunc(slices.Clone(c.Ports), func(p corev1.ContainerPort) bool { return p.HostPort == 0 })...)
	}
	return made
}

// annotations are those by which Berth and the controllers of gangs say something of a pod's placement, and that of a mirror pod.
func annotations(all map[string]string) map[string]string {
	made := map[string]string{}
	for key, value := range all {
		domain, _, _ := strings.Cut(key, "/")
		if key != corev1.MirrorPodAnnotationKey && domain != "berth.dev" && !strings.HasSuffix(domain, ".berth.dev") && !slices.Contains(
			[]string{"scheduling.k8s.io", "volcano.sh", "leaderworkerset.sigs.k8s.io", "kueue.x-k8s.io", "kai.scheduler"}, domain) {
			continue
		}
		made[key] = value
	}
	return made
}

// status is what is kept of a pod's status: how far it is, and what counts as its requests. A pod without a node keeps what schedulers say.
func status(pod *corev1.Pod) corev1.PodStatus {
	from := &pod.Status
	made := corev1.PodStatus{
		Phase: corev1.PodPhase(one(string(from.Phase))), NominatedNodeName: one(from.NominatedNodeName),
		ResourceClaimStatuses: from.ResourceClaimStatuses, ExtendedResourceClaimStatus: from.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: from.NodeAllocatableResourceClaimStatuses, AllocatedResources: from.AllocatedResources, Resources: from.Resources,
	}
	resizes := false
	for i := range from.Conditions {
		switch c := from.Conditions[i]; {
		case pod.Spec.NodeName == "":
			made.Conditions = append(made.Conditions, c)
		case c.Type == corev1.PodScheduled:
			made.Conditions = append(made.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionStatus(one(string(c.Status))), LastTransitionTime: c.LastTransitionTime,
			})
		case c.Type == corev1.PodReady && pod.Labels["app.kubernetes.io/name"] == "berth-agent":
			made.Conditions = append(made.Conditions, c)
		case c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress:
			resizes = true
		}
	}
	made.Conditions = slices.Clip(made.Conditions)
	if len(made.Conditions) == 0 {
		made.StartTime = from.StartTime
	}
	if resizes {
		made.ContainerStatuses, made.InitContainerStatuses = from.ContainerStatuses, from.InitContainerStatuses
	}
	return made
}
