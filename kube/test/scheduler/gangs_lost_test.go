package scheduler

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/kube/internal/plugins"
)

// losses is a plugin that refuses a pod at Reserve a few times, and a queue that loses each other pod that is refused after that, as the
// scheduler's queue does when a pod is taken from it before it counts as returned (kubernetes/kubernetes#139186).
type losses struct {
	queue.SchedulingQueue
	pod string

	mu       sync.Mutex
	refusals int
	reserved map[types.UID]bool
	lost     int
}

func (*losses) Name() string { return "Refuser" }

func (l *losses) Reserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pod.Name == l.pod && l.refusals > 0 {
		l.refusals--
		return fwk.NewStatus(fwk.Unschedulable, "not yet")
	}
	l.reserved[pod.UID] = true
	return nil
}

func (*losses) Unreserve(context.Context, fwk.CycleState, *corev1.Pod, string) {}

func (l *losses) AddUnschedulablePodIfNotPresent(log klog.Logger, info *framework.QueuedPodInfo, cycle int64) error {
	l.mu.Lock()
	loses := l.reserved[info.Pod.UID]
	delete(l.reserved, info.Pod.UID)
	if loses {
		l.lost++
	}
	l.mu.Unlock()
	if loses {
		l.Done(info.Pod.UID)
		return nil
	}
	return l.SchedulingQueue.AddUnschedulablePodIfNotPresent(log, info, cycle)
}

// TestGangMembersLost: members that the scheduler's queue loses when their plan is given up come back to it, each time.
func TestGangMembersLost(t *testing.T) {
	l := gangLab(t, 4)
	losing := &losses{pod: "train-2", refusals: 2, reserved: map[types.UID]bool{}}
	l.queue = func(own queue.SchedulingQueue) queue.SchedulingQueue {
		losing.SchedulingQueue = own
		return losing
	}
	registry := plugins.For(l.factory, gangs.Limits{Look: 50 * time.Millisecond, Reserve: time.Minute})
	registry[losing.Name()] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return losing, nil }
	l.run(t, strings.Replace(profileWithPodGroups, "enabled: [{name: BerthPlacement", "enabled: [{name: Refuser}, {name: BerthPlacement", 1), registry)
	l.create(t, "train", 3, 3, 4)
	l.all(t, "train", 3)
	losing.mu.Lock()
	defer losing.mu.Unlock()
	if losing.refusals > 0 || losing.lost < 2 {
		t.Errorf("%d pods were lost, and %d refusals are left", losing.lost, losing.refusals)
	}
}
