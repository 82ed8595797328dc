package gangs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

const (
	// look is how often the keeper looks.
	look = time.Second
	// releaseAfter is how long a gang can be bound in part before its members are deleted.
	releaseAfter = 20 * time.Second
)

// keeper releases gangs that are bound in part and cannot be completed. It is woken by a clock, deletes the members of such gangs, and
// waits for nothing but these calls.
type keeper struct {
	gangs  *registry
	handle fwk.Handle
	clock  clock.WithTicker
}

func (k *keeper) run(ctx context.Context) {
	ticker := k.clock.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			k.once(ctx)
		}
	}
}

// once ends holds whose time is over, and releases the gangs whose time is over.
func (k *keeper) once(ctx context.Context) {
	released, lost := k.gangs.overdue()
	for _, out := range released {
		undo(k.handle, out)
	}
	for _, l := range lost {
		for _, pod := range l.pods {
			k.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeWarning, "GangReleased", "Scheduling", "%s", l.text)
			err := k.handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot delete a member of a gang that is bound in part", "pod", klog.KObj(pod))
			}
		}
	}
}

// partly is a gang that is released.
type partly struct {
	pods []*v1.Pod
	text string
}

// overdue returns the members that are to be tried again, since holds or a plan have ended, and the gangs that have been bound in part for
// too long.
func (r *registry) overdue() (again []released, lost []partly) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	expired := r.holds.expire(now)
	for _, g := range slices.SortedFunc(maps.Values(r.gangs), func(a, b *gang) int { return cmp.Compare(a.key.String(), b.key.String()) }) {
		if g.dirty {
			r.note(g)
		}
		if g.plan != nil && !g.plan.permitted && now.Sub(g.plan.made) > planLimit {
			again = append(again, r.release(g, "not all members were reserved in time"))
		} else if expired && g.ready && g.plan == nil {
			if list := r.pending(g); len(list) > 0 {
				again = append(again, released{pods: list[:1]})
			}
		}
		if g.partial.IsZero() || g.whole || now.Sub(g.partial) < releaseAfter || gangplan.Replaces(slices.Collect(maps.Values(g.pods))) {
			continue
		}
		view := r.build(g)
		l := partly{}
		for _, pod := range view.Members {
			if pod.Spec.NodeName != "" {
				l.pods = append(l.pods, pod)
			}
		}
		l.text = fmt.Sprintf("gang %s has %d of at least %d members on nodes, and the others did not get theirs within %v: its members are deleted, so that they hold nothing",
			g.key, len(l.pods), gangplan.Least(view), releaseAfter)
		lost = append(lost, l)
		g.partial = now // Again, if a deletion fails.
	}
	return again, lost
}
