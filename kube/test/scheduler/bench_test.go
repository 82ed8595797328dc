package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// BenchmarkDecision measures what a scheduling cycle costs in the model: Sync, Scores and the prediction, each pod being bound to the best
// node. The nodes have four GPUs each; pods are of 35 shapes, as many as the traces of docs/scheduling.md have.
func BenchmarkDecision(b *testing.B) {
	for _, count := range []int{500, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			m := model.New(model.Deps{})
			reader := fleetview.NewReader()
			var nodes []fwk.NodeInfo
			infos := map[string]*framework.NodeInfo{}
			for i := range count {
				name := fmt.Sprintf("n%04d", i)
				info := framework.NewNodeInfo()
				info.SetNode(makeNode(name))
				nodes, infos[name] = append(nodes, info), info
				m.SetHardware(reader.Read(makeGPUNode(name, []string{"nvlink", "pcie"}[i%2], healthy, nil)))
			}
			random := rand.New(rand.NewPCG(1, 2))
			m.Sync(nodes)
			var scores []fleet.Score
			placed := 0
			b.ResetTimer()
			for i := range b.N {
				pod := makePod(fmt.Sprint(i), []int{1, 1, 1, 2, 4}[random.IntN(5)], 1+random.IntN(7)%3)
				pod.UID = types.UID(fmt.Sprint(i))
				m.Sync(nodes)
				r := m.Requests(pod)
				m.See(pod.UID, r)
				var err error
				if scores, err = m.Scores(fleet.PolicyPack, r, scores[:0]); err != nil {
					b.Fatal(err)
				}
				best := 0
				for k := range scores {
					if scores[k] > scores[best] {
						best = k
					}
				}
				if scores[best] < 0 {
					b.StopTimer()
					for _, info := range infos {
						name := info.Node().Name
						*info = *framework.NewNodeInfo()
						info.SetNode(makeNode(name))
					}
					b.StartTimer()
					continue
				}
				placed++
				name := m.View(best).Node.Name
				m.Assume(pod.UID, name, r, m.Predict(fleet.PolicyPack, best, r))
				infos[name].AddPod(pod)
			}
			b.ReportMetric(float64(placed)/float64(b.N), "placed/op")
		})
	}
}

// BenchmarkRead measures reading a GPUNode of four GPUs of which the topology is known.
func BenchmarkRead(b *testing.B) {
	reader := fleetview.NewReader()
	node := makeGPUNode("n", "nvlink", healthy, map[int]string{0: "a"})
	var last *fleetview.Hardware
	b.ReportAllocs()
	for b.Loop() {
		last = reader.Read((*v1alpha1.GPUNode)(node))
	}
	_ = last
}

// BenchmarkPodGroups measures how long 250 groups of 8 pods with a GPU each take that fill 500 nodes, from the start of the scheduler until
// the last one is bound. The API server is a fake one, and its work is part of the time.
func BenchmarkPodGroups(b *testing.B) {
	const groups, members, nodes, rack = 250, 8, 500, 4
	for _, m := range []mode{on, topology} {
		for _, required := range []bool{false, true} {
			if required && m == on {
				continue
			}
			for name, profile := range map[string]string{"Berth": profileWithPodGroups, "Kubernetes": profileOfKubernetes} {
				b.Run(fmt.Sprintf("%s/required=%v/%s", m, required, name), func(b *testing.B) {
					m.set(b)
					for range b.N {
						b.StopTimer()
						var objects []runtime.Object
						for i := range groups {
							made := podGroup(fmt.Sprintf("g%03d", i), members, members, 1)
							if required {
								made = inRack(made)
							}
							objects = append(objects, made...)
						}
						l := rackLab(nodes, rack, objects...)
						b.StartTimer()
						stop := l.runPodGroups(b, profile)
						bound := 0
						for end := time.After(3 * time.Minute); bound < groups*members; {
							select {
							case <-l.bound:
								bound++
								continue
							case <-end:
							}
							break
						}
						b.ReportMetric(float64(bound), "bound")
						stop()
					}
				})
			}
		}
	}
}
