package gangs

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/gangplanner"
	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// streamed is a cluster of four nodes with 8 GPUs, the plugin in it, and a stream of pods with one GPU each of which always some wait.
type streamed struct {
	fwk.Handle
	fwk.SharedLister
	fwk.NodeInfoLister
	*world
	plugin     *Plugin
	nodes      []*streamNode
	generation int64
	ends       map[types.UID]time.Time
	created    int
}

func (s *streamed) SnapshotSharedLister() fwk.SharedLister        { return s }
func (s *streamed) NodeInfos() fwk.NodeInfoLister                 { return s }
func (s *streamed) Activate(klog.Logger, map[string]*v1.Pod)      {}
func (s *streamed) GetWaitingPod(types.UID) fwk.WaitingPod        { return nil }
func (s *streamed) IterateOverWaitingPods(func(w fwk.WaitingPod)) {}

func (s *streamed) List() (list []fwk.NodeInfo, _ error) {
	for _, n := range s.nodes {
		list = append(list, n)
	}
	return list, nil
}

func (s *streamed) Get(name string) (fwk.NodeInfo, error) {
	for _, n := range s.nodes {
		if n.node.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no node %s", name)
}

// streamNode is a node of the snapshot, all of whose pods have one GPU.
type streamNode struct {
	nodeInfo
	generation int64
}

func (n *streamNode) GetGeneration() int64 { return n.generation }

func (n *streamNode) GetRequested() fwk.Resource { return amounts{gpus: int64(len(n.pods))} }

func (n *streamNode) GetPods() (list []fwk.PodInfo) {
	for _, p := range n.pods {
		list = append(list, oneGPU{podInfo: podInfo{pod: p}})
	}
	return list
}

type oneGPU struct{ podInfo }

func (oneGPU) CalculateResource() fwk.PodResource { return fwk.PodResource{Resource: amounts{gpus: 1}} }

// scratch is the state of a scheduling cycle.
type scratch struct {
	fwk.CycleState
	data map[fwk.StateKey]fwk.StateData
}

func (s scratch) Write(key fwk.StateKey, d fwk.StateData) { s.data[key] = d }
func (s scratch) Read(key fwk.StateKey) (fwk.StateData, error) {
	if d, ok := s.data[key]; ok {
		return d, nil
	}
	return nil, fwk.ErrNotFound
}

func newStream() *streamed {
	s := &streamed{world: newWorld(), ends: map[types.UID]time.Time{}}
	m := model.New(model.Deps{})
	resources := fleetview.Resources{}
	s.registry.requests = resources.Requests
	for i := range 4 {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		node.Status.Allocatable = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), v1.ResourceCPU: resource.MustParse("64"), v1.ResourceMemory: resource.MustParse("1Ti")}
		s.nodes = append(s.nodes, &streamNode{nodeInfo: nodeInfo{node: node, all: amounts{cpu: 64000, gpus: 8}}})
	}
	s.plugin = &Plugin{handle: s, model: m, gangs: s.registry, planner: gangplanner.Planner{Model: m}, policy: func() string { return "pack" }, synced: func() bool { return true }}
	return s
}

// end ends the pods whose time is over.
func (s *streamed) end() {
	for _, n := range s.nodes {
		before := len(n.pods)
		n.pods = slices.DeleteFunc(slices.Clone(n.pods), func(p *v1.Pod) bool {
			over := !s.clock.Now().Before(s.ends[p.UID])
			if over {
				delete(s.ends, p.UID)
				s.remove(p)
			}
			return over
		})
		if len(n.pods) < before {
			s.generation++
			n.generation = s.generation
		}
	}
}

// fill starts pods of the stream wherever the plugin lets them, each for a time.
func (s *streamed) fill(t *testing.T, runs func(pod int) time.Duration) {
	t.Helper()
	for _, n := range s.nodes {
		for len(n.pods) < 8 {
			p := running(fmt.Sprintf("job-%d", s.created), 1, func(p *v1.Pod) { p.Spec.NodeName, p.Status.StartTime = "", nil })
			state := scratch{data: map[fwk.StateKey]fwk.StateData{}}
			if _, status := s.plugin.PreFilter(t.Context(), state, p, nil); !status.IsSuccess() && !status.IsSkip() {
				t.Fatal(status)
			}
			if status := s.plugin.Filter(t.Context(), state, p, n); !status.IsSuccess() {
				s.says(t, status.Message())
				break
			}
			p = p.DeepCopy()
			p.Spec.NodeName, p.Status.StartTime = n.node.Name, &metav1.Time{Time: s.clock.Now()}
			s.set(p)
			s.ends[p.UID] = s.clock.Now().Add(runs(s.created))
			s.generation++
			n.pods, n.generation = append(slices.Clone(n.pods), p), s.generation
			s.created++
		}
	}
}

// says checks what the message says to a pod that is kept from reserved places: tools read it.
func (s *streamed) says(t *testing.T, message string) {
	t.Helper()
	want := gangplan.Reserved{Gang: "ml/train", Until: s.train().reservation.until.Format(time.RFC3339)}
	if got, found := gangplan.ReservedIn(message); !found || got != want {
		t.Fatalf("it says %q; want %+v", message, want)
	}
}

// try tries a member of the gang, and tells whether the gang is planned.
func (s *streamed) try(t *testing.T, p *v1.Pod) bool {
	t.Helper()
	nodes, _ := s.List()
	state := scratch{data: map[fwk.StateKey]fwk.StateData{}}
	if result, status := s.plugin.PreFilter(t.Context(), state, p, nodes); status.IsSuccess() {
		return result != nil
	}
	if _, status := s.plugin.PostFilter(t.Context(), state, p, nil); status.Code() == fwk.Error {
		t.Fatal(status)
	}
	return false
}

// upTo6 is how long a pod of the stream runs: one to six minutes.
func upTo6(pod int) time.Duration { return time.Duration(60+pod*37%301) * time.Second }

// TestStream: a gang of all 32 GPUs starts within 2 hours under an endless stream of small pods of which it is not known when they end, and
// where one of them never ends the others run nearly as if there was no gang.
func TestStream(t *testing.T) {
	tests := map[string]struct {
		runs   func(pod int) time.Duration
		long   time.Duration
		starts bool
		least  float64 // of the GPUs are in use at the end of a second, on average
	}{
		"pods of up to 6 minutes": {upTo6, 2 * time.Hour, true, 0.8},
		"one never ends": {func(pod int) time.Duration {
			if pod == 3 {
				return 1000 * time.Hour
			}
			return upTo6(pod)
		}, 65 * time.Minute, false, 0.8},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStream()
			s.fill(t, test.runs)
			var gang []*v1.Pod
			for i := range 4 {
				p := pod(i, 4, "")
				p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
				p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
				s.set(p)
				gang = append(gang, p)
			}
			var reserved []bool // by second
			used, started := 0, time.Duration(-1)
			for second := range int(test.long / time.Second) {
				s.end()
				s.look()
				s.fill(t, test.runs)
				for _, n := range s.nodes {
					used += len(n.pods)
				}
				if s.try(t, gang[0]) {
					started = time.Duration(second) * time.Second
					break
				}
				reserved = append(reserved, s.line.first != nil)
				s.clock.Step(time.Second)
			}
			share := float64(used) / float64(32*len(reserved)+32)
			t.Logf("the gang started after %v, %d other pods ran, on %.2f of the GPUs", started, s.created, share)
			if (started >= 0) != test.starts {
				t.Errorf("the gang started after %v", started)
			}
			if share < test.least {
				t.Errorf("other pods had %.2f of the GPUs; want at least %.2f", share, test.least)
			}
			withinTurns(t, reserved)
		})
	}
}

// withinTurns checks that something is reserved for at most 5 minutes of any 30, and at some time at all.
func withinTurns(t *testing.T, reserved []bool) {
	t.Helper()
	sum, most := 0, 0
	for i, r := range reserved {
		if r {
			sum++
		}
		if i >= 30*60 && reserved[i-30*60] {
			sum--
		}
		most = max(most, sum)
	}
	if most == 0 || most > 5*60+1 {
		t.Errorf("places are reserved for %d s of 30 minutes", most)
	}
}
