package gangplan

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestRanks(t *testing.T) {
	jobSet := func(job, index, global, completion string) option {
		return func(p *corev1.Pod) {
			p.Labels["jobset.sigs.k8s.io/replicatedjob-name"], p.Labels["jobset.sigs.k8s.io/job-index"] = job, index
			p.Labels["batch.kubernetes.io/job-name"], p.Labels["batch.kubernetes.io/job-completion-index"] = "j-"+job+"-"+index, completion
			if global != "" {
				p.Labels["jobset.sigs.k8s.io/job-global-index"] = global
			}
		}
	}
	leaderWorker := func(group, worker, stateful string) option {
		return func(p *corev1.Pod) {
			p.Labels["leaderworkerset.sigs.k8s.io/group-index"], p.Labels["leaderworkerset.sigs.k8s.io/worker-index"] = group, worker
			p.Labels["apps.kubernetes.io/pod-index"] = stateful
		}
	}
	kubeflow := func(kind, index string) option {
		return func(p *corev1.Pod) {
			p.Labels["training.kubeflow.org/replica-type"], p.Labels["training.kubeflow.org/replica-index"] = kind, index
		}
	}
	job := func(name, index string) option {
		return func(p *corev1.Pod) {
			p.Labels["batch.kubernetes.io/job-name"], p.Labels["batch.kubernetes.io/job-completion-index"] = name, index
		}
	}
	uid := func(uid types.UID) option { return func(p *corev1.Pod) { p.UID = uid } }
	const completion = "batch.kubernetes.io/job-completion-index"
	tests := map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"completion index": {[]*corev1.Pod{pod("z", label(completion, "9")), pod("b", label(completion, "10")), pod("c", label(completion, "0"))}, "c z b"},
		"an annotation":    {[]*corev1.Pod{pod("z", annotation(completion, "9")), pod("b", annotation(completion, "10")), pod("c", label(completion, "0"))}, "c z b"},
		"label before annotation": {
			[]*corev1.Pod{pod("a", label(completion, "2"), annotation(completion, "0")), pod("b", label(completion, "1"))}, "b a",
		},
		"two Jobs":    {[]*corev1.Pod{pod("a", job("w-10", "0")), pod("b", job("w-9", "1")), pod("c", job("w-10", "1")), pod("d", job("w-9", "0")), pod("e", job("v-11", "0"))}, "e d b a c"},
		"StatefulSet": {[]*corev1.Pod{pod("z-9", label("apps.kubernetes.io/pod-index", "9")), pod("z-10", label("apps.kubernetes.io/pod-index", "10"))}, "z-9 z-10"},
		"StatefulSet by its index": {
			[]*corev1.Pod{pod("z-3", label("apps.kubernetes.io/pod-index", "0")), pod("z-1", label("apps.kubernetes.io/pod-index", "5"))}, "z-3 z-1",
		},
		"JobSet by the global index": {
			[]*corev1.Pod{
				pod("a", jobSet("workers", "10", "11", "0")), pod("b", jobSet("leader", "0", "0", "0")), pod("c", jobSet("workers", "2", "3", "1")), pod("d", jobSet("workers", "2", "3", "0")),
				pod("e", jobSet("aux", "0", "12", "0")),
			}, "b d c a e",
		},
		"JobSet without it": {
			[]*corev1.Pod{
				pod("a", jobSet("workers", "10", "", "0")), pod("b", jobSet("leader", "0", "", "0")), pod("c", jobSet("workers", "2", "", "1")), pod("d", jobSet("workers", "2", "", "0")),
			}, "b d c a",
		},
		"LeaderWorkerSet": {
			[]*corev1.Pod{pod("a", leaderWorker("1", "0", "1")), pod("b", leaderWorker("0", "10", "10")), pod("c", leaderWorker("0", "9", "9")), pod("d", leaderWorker("0", "0", "0"))}, "d c b a",
		},
		"Kubeflow": {
			[]*corev1.Pod{pod("a", kubeflow("worker", "10")), pod("b", kubeflow("worker", "9")), pod("c", kubeflow("master", "0"))}, "c b a",
		},
		"Volcano": {
			[]*corev1.Pod{
				pod("a", annotation("volcano.sh/task-spec", "w"), annotation("volcano.sh/task-index", "10")), pod("b", annotation("volcano.sh/task-spec", "w"), annotation("volcano.sh/task-index", "2")),
				pod("c", annotation("volcano.sh/task-spec", "m"), annotation("volcano.sh/task-index", "7")),
			}, "c b a",
		},
		"Kueue's group": {
			[]*corev1.Pod{pod("a", label("kueue.x-k8s.io/pod-group-pod-index", "10")), pod("b", label("kueue.x-k8s.io/pod-group-pod-index", "9"))}, "b a",
		},
		"names":                     {[]*corev1.Pod{pod("w-10"), pod("w-9"), pod("w-0")}, "w-0 w-9 w-10"},
		"names, then creation":      {[]*corev1.Pod{pod("v-1", createdAt(102)), pod("w-1", createdAt(101)), pod("x-0", createdAt(103))}, "x-0 w-1 v-1"},
		"numbers before names":      {[]*corev1.Pod{pod("launcher", createdAt(50)), pod("w-1"), pod("w-0")}, "w-0 w-1 launcher"},
		"generated names":           {[]*corev1.Pod{pod("w-x8z25", createdAt(101)), pod("w-bc9d1", createdAt(102)), pod("w-aaaaa", createdAt(102))}, "w-x8z25 w-aaaaa w-bc9d1"},
		"names, not UIDs":           {[]*corev1.Pod{pod("a", uid("2")), pod("b", uid("1"))}, "a b"},
		"digits alone":              {[]*corev1.Pod{pod("10"), pod("9")}, "9 10"},
		"an index before the names": {[]*corev1.Pod{pod("w-0"), pod("w-7", label(completion, "3"))}, "w-7 w-0"},
		"the same index":            {[]*corev1.Pod{pod("w-10", label(completion, "3")), pod("w-9", label(completion, "3"))}, "w-9 w-10"},
		"an index that is no number": {
			[]*corev1.Pod{pod("w-1", label(completion, "-1")), pod("w-0", label(completion, "1e3")), pod("w-2", annotation(completion, "99999999999999999999"))}, "w-0 w-1 w-2",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				byRank(tc.pods)
				if got := names(tc.pods); got != tc.want {
					t.Fatalf("%s, want %s", got, tc.want)
				}
				rand.Shuffle(len(tc.pods), func(i, k int) { tc.pods[i], tc.pods[k] = tc.pods[k], tc.pods[i] })
			}
		})
	}
}

// TestEqualNames: pods of one name, of which one replaces the other, have an order too.
func TestEqualNames(t *testing.T) {
	old, replacement := pod("w-0"), pod("w-0")
	old.UID, replacement.UID = "1", "2"
	pods := []*corev1.Pod{replacement, old}
	byRank(pods)
	if pods[0] != old {
		t.Errorf("%s precedes %s", pods[0].UID, pods[1].UID)
	}
}
