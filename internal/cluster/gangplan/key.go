package gangplan

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Source is the API by which pods say that they are a gang.
type Source uint8

// The sources, in the order in which they count: a pod that names gangs by several belongs to the first.
const (
	// Labels are Berth's own: the pods say all, there is no object of the gang.
	Labels Source = iota
	// SchedulerPlugins is the PodGroup of kubernetes-sigs/scheduler-plugins (apis/scheduling/v1alpha1/types.go, v0.35): pods name it by a
	// label.
	SchedulerPlugins
	// Volcano is the PodGroup of volcano-sh/volcano (staging/src/volcano.sh/apis/pkg/apis/scheduling/v1beta1/types.go): pods name it by an
	// annotation.
	Volcano
	// Kubernetes is the PodGroup of Kubernetes' own API (k8s.io/api/scheduling/v1beta1): pods name it by spec.schedulingGroup. KeyOf never
	// returns it.
	Kubernetes
)

// String returns the API group of the source.
func (s Source) String() string {
	switch s {
	case SchedulerPlugins:
		return "scheduling.x-k8s.io"
	case Volcano:
		return "scheduling.volcano.sh"
	case Kubernetes:
		return "scheduling.k8s.io"
	default:
		return "berth.dev"
	}
}

// Resource returns where the API server has the PodGroups of a source, which for Labels is nowhere: false.
func (s Source) Resource() (schema.GroupVersionResource, bool) {
	switch s {
	case SchedulerPlugins:
		return schema.GroupVersionResource{Group: s.String(), Version: "v1alpha1", Resource: "podgroups"}, true
	case Volcano:
		return schema.GroupVersionResource{Group: s.String(), Version: "v1beta1", Resource: "podgroups"}, true
	case Kubernetes:
		return schema.GroupVersionResource{Group: s.String(), Version: "v1beta1", Resource: "podgroups"}, true
	default:
		return schema.GroupVersionResource{}, false
	}
}

// Names by which a pod says which gang it belongs to.
const (
	// PodGroup is a label of pods, or an annotation where a value is no label's. The label counts when a pod has both.
	PodGroup = "berth.dev/pod-group"
	// MinMember is a label or annotation: how many pods have to start together.
	MinMember = "berth.dev/min-member"

	// podGroupLabel is PodGroupLabel of scheduler-plugins, apis/scheduling/v1alpha1/types.go.
	podGroupLabel = "scheduling.x-k8s.io/pod-group"
	// groupNameAnnotation is KubeGroupNameAnnotationKey of Volcano, v1beta1/labels.go. Its scheduler reads no other name
	// (pkg/scheduler/api/job_info.go, getJobID), though the API also has scheduling.volcano.sh/group-name.
	groupNameAnnotation = "scheduling.k8s.io/group-name"
	// volcanoJobName is JobNameKey of Volcano, batch/v1alpha1/labels.go: an annotation and label of the pods of its Job.
	volcanoJobName = "volcano.sh/job-name"
	// volcanoJobGroup is the API group of Volcano's Job (volcano-sh/apis, pkg/apis/batch/v1alpha1/register.go).
	volcanoJobGroup = "batch.volcano.sh"

	// GroupIndex is GroupIndexLabelKey of LeaderWorkerSet, api/leaderworkerset/v1/leaderworkerset_types.go, v0.8.0: a label of its pods
	// with the index of their group. The other two are SetNameLabelKey, a label, and SizeAnnotationKey: how many pods a group has.
	GroupIndex            = "leaderworkerset.sigs.k8s.io/group-index"
	leaderWorkerSetName   = "leaderworkerset.sigs.k8s.io/name"
	leaderWorkerGroupSize = "leaderworkerset.sigs.k8s.io/size"
)

// Key names a gang.
type Key struct {
	Source    Source
	Namespace string
	Name      string
	// Group names a group of a LeaderWorkerSet that is a gang of its own, as the group's leader is named; it is empty for other gangs.
	Group string
}

// String returns the namespace and the name, and the group in brackets. It is printable and bounded, whatever the names are.
func (k Key) String() string {
	text := plain(k.Namespace) + "/" + plain(k.Name)
	if k.Group != "" {
		text += "[" + plain(k.Group) + "]"
	}
	return text
}

// title names the PodGroup of a gang.
func (k Key) title() string { return "PodGroup " + k.String() + " of " + k.Source.String() }

// KeyOf returns the gang of a pod, false for none. A pod with spec.schedulingGroup belongs to a PodGroup of Kubernetes' own API, which the
// scheduler's own cycle for groups places, and never to a gang here. An empty name is none.
//
// The pods of all groups of a LeaderWorkerSet have the same labels of Berth's: each group is a gang of its own where the least number of
// members is no more than a group has.
func KeyOf(pod *corev1.Pod) (Key, bool) {
	if pod.Spec.SchedulingGroup != nil {
		return Key{}, false
	}
	if name := labelOrAnnotation(pod, PodGroup); name != "" {
		return Key{Source: Labels, Namespace: pod.Namespace, Name: name, Group: groupOf(pod)}, true
	}
	if name := pod.Labels[podGroupLabel]; name != "" {
		return Key{Source: SchedulerPlugins, Namespace: pod.Namespace, Name: name}, true
	}
	if name := pod.Annotations[groupNameAnnotation]; name != "" {
		return Key{Source: Volcano, Namespace: pod.Namespace, Name: name}, true
	}
	return Key{}, false
}

// groupOf returns the group of a LeaderWorkerSet that is a gang of its own, empty for none.
func groupOf(pod *corev1.Pod) string {
	set, index := pod.Labels[leaderWorkerSetName], pod.Labels[GroupIndex]
	if set == "" || index == "" {
		return ""
	}
	size, known := digits(pod.Annotations[leaderWorkerGroupSize])
	least, valid := digits(labelOrAnnotation(pod, MinMember))
	if !known || !valid || least > size {
		return ""
	}
	return set + "-" + index
}

func labelOrAnnotation(pod *corev1.Pod, name string) string {
	if value := pod.Labels[name]; value != "" {
		return value
	}
	return pod.Annotations[name]
}

// ofVolcanoJob tells whether Volcano's Job created a pod. That controller creates pods only when Volcano's scheduler has moved the PodGroup
// past the phase Pending (pkg/controllers/job/job_controller_actions.go, syncJob).
func ofVolcanoJob(pod *corev1.Pod) bool {
	if labelOrAnnotation(pod, volcanoJobName) != "" {
		return true
	}
	for i := range pod.OwnerReferences {
		o := &pod.OwnerReferences[i]
		if group, _, _ := strings.Cut(o.APIVersion, "/"); group == volcanoJobGroup && o.Kind == "Job" {
			return true
		}
	}
	return false
}
