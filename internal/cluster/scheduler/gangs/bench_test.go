package gangs

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
)

const many = gangplan.MaxMembers

// BenchmarkLife measures what the parts of the life of a gang of 4,096 members cost the registry, all members together.
func BenchmarkLife(b *testing.B) {
	created := func() *world {
		w := newWorld()
		for i := range many {
			w.registry.set(pod(i, many, ""))
		}
		return w
	}
	bound := func() *world {
		w := created()
		for i := range many {
			w.registry.set(pod(i, many, "n0"))
		}
		w.registry.overdue()
		return w
	}
	steps := map[string]struct {
		before func() *world
		step   func(w *world, i int)
	}{
		"create":     {newWorld, func(w *world, i int) { w.registry.set(pod(i, many, "")) }},
		"PreEnqueue": {created, func(w *world, i int) { w.why(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))]) }},
		"event":      {created, func(w *world, i int) { w.leads(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))], nil) }},
		"bind": {created, func(w *world, i int) {
			w.registry.bind(w.train().pods[types.UID(fmt.Sprintf("uid-%d", i))], "n0")
			w.registry.set(pod(i, many, "n0"))
		}},
		"run":    {bound, func(w *world, i int) { p := pod(i, many, "n0"); p.Status.Phase = v1.PodRunning; w.registry.set(p) }},
		"delete": {bound, func(w *world, i int) { w.registry.remove(pod(i, many, "n0")) }},
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
		p.Labels = map[string]string{gangplan.PodGroup: fmt.Sprintf("gang-%d", i), gangplan.MinMember: "1"}
		w.registry.set(p)
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
			w.registry.overdue()
		}
	})
}

// BenchmarkFilter measures Filter on a node where something is held, and on another one, for one pod and for 16 goroutines.
func BenchmarkFilter(b *testing.B) {
	w := newWorld()
	for i := range 4 {
		w.holds.add(&hold{pod: types.UID(fmt.Sprint(i)), gang: gangplan.Key{Namespace: "ml", Name: "train"}, node: "n0", amounts: gangplan.Amounts(pod(0, 1, ""))})
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

// BenchmarkCycle measures what the cycles of members cost that plan a gang on 300 nodes of 8 GPUs, in CPU time: the longest one, and what
// is planned beside them.
func BenchmarkCycle(b *testing.B) {
	kinds := func(p *v1.Pod, i int) {
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewQuantity(int64(4+i%16), resource.DecimalSI)
	}
	loads := []struct {
		name   string
		gangs  int
		size   int
		gpus   int64
		change func(p *v1.Pod, i int)
		// used has a pod on every so many nodes, mixed up to three on each, all different.
		used  int
		mixed bool
	}{
		{"equal", 1, 256, 1, nil, 0, false},
		{"kinds", 1, 256, 1, kinds, 0, false},
		{"kinds, nodes differ", 1, 256, 1, kinds, 0, true},
		{"many", 1, 4096, 1, func(p *v1.Pod, i int) {
			if i%4 > 0 {
				delete(p.Spec.Containers[0].Resources.Requests, "nvidia.com/gpu")
			}
		}, 0, false},
		{"segments", 20, 64, 1, func(p *v1.Pod, _ int) {
			p.Annotations = map[string]string{gangplan.AnnotationSegment: "rack", gangplan.AnnotationSegmentSize: "16"}
		}, 0, false},
		{"unfit", 1, 256, 8, nil, 3, false},
		{"unfit kinds, nodes differ", 1, 1024, 2, kinds, 0, true},
	}
	for _, load := range loads {
		b.Run(load.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var cycle, beside time.Duration
			for range b.N {
				s := newScene(b, 300, 8, Limits{})
				for i := 0; load.used > 0 && i < 300; i += load.used {
					s.place(i, sized("other", i, 1, 1))
				}
				for i := 0; load.mixed && i < 900; i++ {
					if p := sized("other", i, 1, 1); i%7 > 2 {
						p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(1000+i), resource.DecimalSI)
						s.place(i%300, p)
					}
				}
				for g := range load.gangs {
					var first *v1.Pod
					for i := range load.size {
						p := sized(fmt.Sprintf("g%d", g), i, load.size, load.gpus)
						if load.change != nil {
							load.change(p, i)
						}
						if s.registry.set(p); i == 0 {
							first = p
						}
					}
					for {
						infos := s.infos()
						s.plugin.model.Sync(infos)
						began := cpu()
						node, text, _, err := s.plugin.decide(first, infos)
						cycle = max(cycle, cpu()-began)
						if err != nil || node == "" && text == "" {
							b.Fatal(err)
						}
						if len(s.jobs) == 0 {
							break
						}
						began = cpu()
						s.work()
						beside = max(beside, cpu()-began)
					}
				}
			}
			b.ReportMetric(float64(cycle.Microseconds())/1000, "ms/cycle")
			b.ReportMetric(float64(beside.Microseconds())/1000, "ms/beside")
		})
	}
}

// cpu is the CPU time of the thread.
func cpu() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(1, &used) // RUSAGE_THREAD; it cannot fail.
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
