package gangs

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

const (
	// mostReads is how many members that are gone the keeper reads at a time, and readers how many of these at once.
	mostReads, readers = 64, 16
	// readTime is how long a read can take: a member that could not be read by then counts as deleted.
	readTime = 2 * time.Second
)

// gone notes that the informer does not have a pod any more, which is as it was last, or earlier where that is stale. The scheduler's
// informer has only pods that have not ended (1.37.1, pkg/scheduler/scheduler.go:654). One that succeeds is therefore deleted there, and
// the event has it as it was before (k8s.io/apiserver 0.37.1, pkg/storage/cacher/cache_watcher.go:400). The keeper reads which one it is.
// Until then the pod is as it was, and its place is kept.
func (r *registry) gone(pod *v1.Pod, stale bool) released {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil && !stale {
		return r.remove(pod)
	}
	r.mu.Lock()
	key, known := r.ofPod[pod.UID]
	if known {
		r.beforeLoss(r.gangs[key])
		r.errands.inquiries[pod.UID] = pod
		r.keepPlace(r.gangs[key], pod)
	}
	r.mu.Unlock()
	if !known {
		return r.remove(pod)
	}
	r.wakeKeeper()
	return released{}
}

// keepPlace holds the place of a member that a gang has lost which needs it, so that the member that takes its place gets it before others.
func (r *registry) keepPlace(g *gang, pod *v1.Pod) {
	if g.presence != presenceWhole || pod.Spec.NodeName == "" || pod.Status.Phase == v1.PodSucceeded || !r.ours(pod) {
		return
	}
	if g.least == 0 {
		r.build(g)
	}
	have := 0
	for uid, member := range g.pods {
		ended := member.DeletionTimestamp != nil || member.Status.Phase == v1.PodSucceeded || member.Status.Phase == v1.PodFailed
		if uid != pod.UID && member.Spec.NodeName != "" && !ended {
			have++
		}
	}
	if have == 0 || have >= g.least {
		return
	}
	r.holds.add(&hold{
		pod:      pod.UID,
		gang:     g.key,
		node:     pod.Spec.NodeName,
		requests: r.requests(pod),
		amounts:  gangplan.Amounts(pod),
		until:    r.clock.Now().Add(r.limits.Lost),
		lost:     true,
		priority: corev1helpers.PodPriority(pod),
	})
}

// wakeKeeper has the keeper look for work.
func (r *registry) wakeKeeper() {
	select {
	case r.errands.wake <- struct{}{}:
	default:
	}
}

// inquired returns members that are gone and have to be read, and whether there are more.
func (r *registry) inquired() (list []*v1.Pod, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range r.errands.inquiries {
		if len(list) == mostReads {
			return list, true
		}
		list = append(list, pod)
	}
	return list, false
}

// answered notes what a pod is that is gone: nil stands for one that was deleted.
func (r *registry) answered(asked, found *v1.Pod) released {
	r.mu.Lock()
	_, open := r.errands.inquiries[asked.UID]
	delete(r.errands.inquiries, asked.UID)
	r.mu.Unlock()
	if !open {
		return released{} // It is back.
	}
	if found != nil {
		asked = found
	}
	return r.remove(asked)
}

// inquire reads members that are gone.
func (k *keeper) inquire(ctx context.Context) {
	list, more := k.gangs.inquired()
	workqueue.ParallelizeUntil(ctx, readers, len(list), func(i int) {
		found, err := k.read(ctx, list[i])
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read a member of a gang that has ended or was deleted; it counts as deleted", "pod", klog.KObj(list[i]))
		}
		undo(k.handle, k.gangs.answered(list[i], found))
	})
	if more {
		k.gangs.wakeKeeper()
	}
}

// read returns a pod as it is now, nil if it does not exist. It lists one name, since the scheduler has no right to get pods; the API
// server reads one object for that (k8s.io/apiserver 0.37.1, pkg/registry/generic/registry/store.go:482).
func (k *keeper) read(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	list, err := k.handle.ClientSet().CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name).String(),
	})
	if err != nil {
		return nil, err
	}
	return withUID(list.Items, pod.UID), nil
}

// withUID returns the pod with a UID, nil for none.
func withUID(list []v1.Pod, uid types.UID) *v1.Pod {
	for i := range list {
		if list[i].UID == uid {
			return &list[i]
		}
	}
	return nil
}

// forget forgets a gang whose pods have all succeeded a while ago, and returns whether it did: no other pod takes the place of one that has
// failed.
func (r *registry) forget(g *gang) bool {
	if g.ended.IsZero() || r.clock.Since(g.ended) < r.limits.Lost {
		return false
	}
	if g.ended = (time.Time{}); g.living() > 0 {
		return false
	}
	for done := range g.pods {
		delete(r.ofPod, done)
	}
	delete(r.gangs, g.key)
	return true
}
