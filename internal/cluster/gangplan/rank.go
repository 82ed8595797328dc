package gangplan

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// index is where a controller writes the rank of a pod: labels or annotations, of which the label counts first.
type index struct {
	// group is the part of the workload, compared before the numbers; or empty.
	group string
	// first has to be a number, second may be one.
	first  string
	second string
}

// indexes returns what is known, in the order in which it counts: the pods of a JobSet are those of Jobs, and the pods of a LeaderWorkerSet
// those of StatefulSets.
//
//   - JobSet: kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go. The global index numbers the Jobs in the order of the JobSet's
//     replicated jobs; before it existed, the replicated job's name and the index of the Job say the same in another order.
//   - LeaderWorkerSet: kubernetes-sigs/lws, api/leaderworkerset/v1/leaderworkerset_types.go.
//   - Kubeflow: kubeflow/training-operator, pkg/apis/kubeflow.org/v1/common_types.go. By name, chief, launcher and master precede worker.
//   - Volcano: volcano-sh/volcano, staging/src/volcano.sh/apis/pkg/apis/batch/v1alpha1/labels.go.
//   - Kueue's groups of pods: kubernetes-sigs/kueue, apis/kueue/v1beta2/topology_types.go.
//   - Job and StatefulSet: k8s.io/api/batch/v1/types.go and k8s.io/api/apps/v1/types.go.
func indexes() [8]index {
	const completion = "batch.kubernetes.io/job-completion-index"
	return [8]index{
		{first: "jobset.sigs.k8s.io/job-global-index", second: completion},
		{group: "jobset.sigs.k8s.io/replicatedjob-name", first: "jobset.sigs.k8s.io/job-index", second: completion},
		{first: "leaderworkerset.sigs.k8s.io/group-index", second: "leaderworkerset.sigs.k8s.io/worker-index"},
		{group: "training.kubeflow.org/replica-type", first: "training.kubeflow.org/replica-index"},
		{group: "volcano.sh/task-spec", first: "volcano.sh/task-index"},
		{first: "kueue.x-k8s.io/pod-group-pod-index"},
		{group: "batch.kubernetes.io/job-name", first: completion},
		{first: "apps.kubernetes.io/pod-index"},
	}
}

// ranked is a pod with what decides on its rank, in the order of the fields.
type ranked struct {
	// kind is the place in indexes, then pods with a number in their name, then the others.
	kind   int
	group  string
	first  int64
	second int64
	// last is the number at the end of the name.
	last int64
	pod  *corev1.Pod
}

func rankOf(pod *corev1.Pod) ranked {
	_, last, numbered := trailing(pod.Name)
	known := indexes()
	for i := range known {
		first, ok := digits(labelOrAnnotation(pod, known[i].first))
		if !ok {
			continue
		}
		r := ranked{kind: i, first: first, last: last, pod: pod}
		if known[i].group != "" {
			r.group = labelOrAnnotation(pod, known[i].group)
		}
		if known[i].second != "" {
			r.second, _ = digits(labelOrAnnotation(pod, known[i].second))
		}
		return r
	}
	if numbered {
		return ranked{kind: len(known), last: last, pod: pod}
	}
	return ranked{kind: len(known) + 1, pod: pod}
}

func (r *ranked) compare(other *ranked) int {
	return cmp.Or(
		cmp.Compare(r.kind, other.kind), natural(r.group, other.group), cmp.Compare(r.first, other.first), cmp.Compare(r.second, other.second),
		cmp.Compare(r.last, other.last), r.pod.CreationTimestamp.Compare(other.pod.CreationTimestamp.Time),
		cmp.Compare(r.pod.Name, other.pod.Name), cmp.Compare(r.pod.UID, other.pod.UID))
}

// byRank sorts pods so that ranks that communicate most are next to one another: by the index that a controller wrote, else by the number
// at the end of the name, then by creation and name. Numbers are compared as numbers: 10 follows 9.
func byRank(pods []*corev1.Pod) {
	list := make([]ranked, len(pods))
	for i := range pods {
		list[i] = rankOf(pods[i])
	}
	slices.SortFunc(list, func(a, b ranked) int { return a.compare(&b) })
	for i := range list {
		pods[i] = list[i].pod
	}
}

// natural compares names, of which those that differ only in the number at their end by that number.
func natural(a, b string) int {
	prefixA, lastA, _ := trailing(a)
	prefixB, lastB, _ := trailing(b)
	return cmp.Or(cmp.Compare(prefixA, prefixB), cmp.Compare(lastA, lastB), cmp.Compare(a, b))
}

// trailing returns the number behind the last dash of a name and what precedes it. Digits that are not all of that part are no number: they
// may be part of a generated name.
func trailing(name string) (prefix string, number int64, ok bool) {
	dash := strings.LastIndexByte(name, '-')
	if number, ok = digits(name[dash+1:]); ok {
		return name[:dash+1], number, true
	}
	return name, 0, false
}
