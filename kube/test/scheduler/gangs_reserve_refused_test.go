package scheduler

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangs"
	"github.com/berth-gpu/berth/kube/internal/plugins"
)

// refuser is a plugin that refuses a pod at Reserve once.
type refuser struct {
	pod     string
	refused atomic.Bool
}

func (*refuser) Name() string { return "Refuser" }

func (r *refuser) Reserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	if pod.Name == r.pod && r.refused.CompareAndSwap(false, true) {
		return fwk.NewStatus(fwk.Unschedulable, "not yet")
	}
	return nil
}

func (*refuser) Unreserve(context.Context, fwk.CycleState, *corev1.Pod, string) {}

// TestGangReserveRefused: a plugin before BerthGangs refuses a member at Reserve. The plan is given up at once, not after the time in which
// no further member was reserved, and the next one is carried out.
func TestGangReserveRefused(t *testing.T) {
	for _, pod := range []string{"train-0", "train-2"} {
		t.Run(pod, func(t *testing.T) {
			t.Parallel()
			l := gangLab(t, 4)
			refuser := &refuser{pod: pod}
			registry := plugins.For(l.factory, gangs.Limits{Look: 50 * time.Millisecond, Reserve: time.Minute})
			registry[refuser.Name()] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return refuser, nil }
			l.run(t, strings.Replace(profileWithPodGroups, "enabled: [{name: BerthPlacement", "enabled: [{name: Refuser}, {name: BerthPlacement", 1), registry)
			l.create(t, "train", 3, 3, 4)
			l.all(t, "train", 3)
			if !refuser.refused.Load() {
				t.Error("the plugin has refused nothing")
			}
		})
	}
}
