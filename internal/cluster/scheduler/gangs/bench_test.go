package gangs

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/gangview"
)

const many = gangview.MaxMembers

// BenchmarkLife measures what the parts of the life of a gang of 4,096 members cost the registry, all members together.
func BenchmarkLife(b *testing.B) {
	created := func() *world {
		w := newWorld()
		for i := range many {
			w.set(pod(i, many, ""))
		}
		return w
	}
	bound := func() *world {
		w := created()
		for i := range many {
			w.set(pod(i, many, "n0"))
		}
		w.overdue()
		return w
	}
	steps := map[string]struct {
		before func() *world
		step   func(w *world, i int)
	}{
		"create":     {newWorld, func(w *world, i int) { w.set(pod(i, many, "")) }},
		"PreEnqueue": {created, func(w *world, i int) { w.why(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))]) }},
		"event":      {created, func(w *world, i int) { w.leads(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))], nil) }},
		"bind": {created, func(w *world, i int) {
			w.bind(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))], "n0")
			w.set(pod(i, many, "n0"))
		}},
		"run":    {bound, func(w *world, i int) { p := pod(i, many, "n0"); p.Status.Phase = v1.PodRunning; w.set(p) }},
		"delete": {bound, func(w *world, i int) { w.remove(pod(i, many, "n0")) }},
	}
	for _, name := range []string{"create", "PreEnqueue", "event", "bind", "run", "delete"} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := steps[name].before()
				b.StartTimer()
				for i := range many {
					steps[name].step(w, i)
				}
			}
		})
	}
}

// queued is a pod in the queue.
type queued struct {
	fwk.QueuedEntityInfo
	pod *v1.Pod
}

func (q queued) GetPod() *v1.Pod         { return q.pod }
func (q queued) GetPriority() int32      { return 0 }
func (q queued) GetTimestamp() time.Time { return start }

// BenchmarkManyGangs measures what 10,000 gangs of one pod cost: a comparison in the queue, PreEnqueue, and a look of the keeper.
func BenchmarkManyGangs(b *testing.B) {
	w := newWorld()
	var pods []*v1.Pod
	for i := range 10_000 {
		p := pod(i, 1, "")
		p.Labels = map[string]string{gangview.PodGroup: fmt.Sprintf("gang-%d", i), gangview.MinMember: "1"}
		w.set(p)
		pods = append(pods, p)
	}
	p := &Plugin{gangs: w.registry}
	b.Run("Less", func(b *testing.B) {
		for i := range b.N {
			p.Less(queued{pod: pods[i%10_000]}, queued{pod: pods[(i+1)%10_000]})
		}
	})
	b.Run("PreEnqueue", func(b *testing.B) {
		for i := range b.N {
			w.why(pods[i%10_000])
		}
	})
	b.Run("look", func(b *testing.B) {
		for range b.N {
			w.overdue()
		}
	})
}

// BenchmarkFilter measures Filter on a node where something is held, and on another one, for one pod and for 16 goroutines.
func BenchmarkFilter(b *testing.B) {
	w := newWorld()
	for i := range 4 {
		w.holds.add(&hold{pod: types.UID(fmt.Sprint(i)), gang: gangview.Key{Namespace: "ml", Name: "train"}, node: "n0", amounts: gangplan.Amounts(pod(0, 1, ""))})
	}
	p, c, other := &Plugin{gangs: w.registry}, &cycle{seeker: seeker{amounts: gangplan.Amounts(pod(0, 1, ""))}}, pod(0, 1, "")
	for _, name := range []string{"n0", "n1"} {
		node := nodeInfo{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, all: amounts{cpu: 64000, gpus: 64}}
		b.Run(name, func(b *testing.B) {
			for range b.N {
				p.lacks(c, other, node)
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p.lacks(c, other, node)
				}
			})
		})
	}
}
