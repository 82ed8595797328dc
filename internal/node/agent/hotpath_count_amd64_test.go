package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// countRoot is the environment variable by which TestHotPathCounts starts itself as the process that is counted; its
// value is the root of the pods' cgroups.
const countRoot = "BERTH_TEST_COUNT_ROOT"

// sharedResource are the replicas of one GPU.
const sharedResource = "nvidia.com/gpu.shared"

// TestHotPathCounts asserts the exact operations of GetPreferredAllocation and Allocate: every file that is opened,
// examined, read, written or synced, every program and connection, every request to the kubelet and to the API server.
// An agent with a fake API server and kubelet runs in a process of its own, whose system calls are counted in the
// kernel, so that no access can be left out; its clock stands still during the calls, so that nothing but the calls
// works. The counts are the same on a host with 5,000 processes in the containers of 100 pods.
func TestHotPathCounts(t *testing.T) {
	if root := os.Getenv(countRoot); root != "" {
		askCounted(t, root)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	none := map[string]int{}
	// The cgroup of a pod can be in three places; each is checked once, after the kubelet's cgroup.
	pods := func(n int, more map[string]int) map[string]int {
		counts := map[string]int{
			"stat cgroups/kubepods": n, "stat cgroups/kubepods/podUID": n,
			"stat cgroups/kubepods/burstable/podUID": n, "stat cgroups/kubepods/besteffort/podUID": n,
		}
		maps.Copy(counts, more)
		return counts
	}
	checkpoint := map[string]int{"stat checkpoint": 3}
	// Without a checkpoint, the modification time of its folder shows that none was written in the meantime.
	noCheckpoint := map[string]int{"stat checkpoint": 3, "stat kubelet/device-plugins": 3}
	// A refusal reads the pod's cgroup and the checkpoint again after the request to the kubelet, and lists the pods
	// that have a cgroup.
	refusal := func(checkpoint map[string]int) map[string]int {
		counts := pods(2, map[string]int{
			"stat cgroups/kubepods": 4, "open cgroups/kubepods": 2, "read cgroups/kubepods": 1,
			"open cgroups/kubepods/burstable": 1, "read cgroups/kubepods/burstable": 1,
			"stat kubelet/pod-resources/kubelet.sock": 1, "connect": 1, "stat checkpoint": 6,
		})
		maps.Copy(counts, checkpoint)
		return counts
	}
	want := map[string]map[string]int{
		"free, checkpoint known/preference":                 none,
		"free, checkpoint known/Allocate":                   none,
		"free, checkpoint unknown/preference":               none,
		"free, checkpoint unknown/Allocate":                 none,
		"free, 64 replicas in a row/Allocate":               none,
		"finished, checkpoint known/preference":             pods(7, checkpoint),
		"finished, checkpoint known/Allocate":               none,
		"finished, checkpoint unknown/preference":           pods(7, noCheckpoint),
		"finished, checkpoint unknown/Allocate":             none,
		"replaced, checkpoint known/Allocate":               pods(1, checkpoint),
		"replaced, checkpoint unknown/Allocate":             pods(1, noCheckpoint),
		"refusal/Allocate":                                  refusal(nil),
		"refusal beside a kubelet that hangs/Allocate":      refusal(nil),
		"refusal after the checkpoint was written/Allocate": refusal(map[string]int{"stat checkpoint": 8, "open kubelet/device-plugins": 1, "open checkpoint": 1, "read checkpoint": 1}),
	}
	for _, processes := range []int{0, 5000} {
		t.Run(fmt.Sprintf("processes=%d", processes), func(t *testing.T) {
			got := countFiles(t, "TestHotPathCounts", countRoot+"="+crowdedCgroups(t, processes))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

// stillClock is a clock that follows the real one while it runs.
type stillClock struct {
	*clocktesting.FakeClock
	mu    sync.Mutex
	still bool
}

func newStillClock(t *testing.T) *stillClock {
	c := &stillClock{FakeClock: clocktesting.NewFakeClock(time.Now())}
	tick := time.NewTicker(5 * time.Millisecond)
	done := make(chan struct{})
	t.Cleanup(func() { tick.Stop(); close(done) })
	go func() {
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				c.mu.Lock()
				if !c.still {
					c.SetTime(time.Now())
				}
				c.mu.Unlock()
			}
		}
	}()
	return c
}

// stop stops the clock, and returns when the work that it has woken has ended.
func (c *stillClock) stop() {
	c.mu.Lock()
	c.still = true
	c.mu.Unlock()
	time.Sleep(300 * time.Millisecond) // Timers that have fired already have had their effect.
}

func (c *stillClock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.still = false
}

// podServer is the kubelet's PodResources API. It counts its calls by method.
type podServer struct {
	podresources.UnimplementedPodResourcesListerServer
	mu    sync.Mutex
	calls map[string]int
	// devices are those of each pod; hangs makes every call wait for its end.
	devices map[string][]string
	hangs   bool
}

func servePods(t *testing.T, kubeletDir string) *podServer {
	t.Helper()
	s := &podServer{calls: map[string]int{}, devices: map[string][]string{}}
	path := filepath.Join(kubeletDir, kubelet.PodResourcesSocket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		s.mu.Lock()
		s.calls[filepath.Base(info.FullMethod)]++
		hangs := s.hangs
		s.mu.Unlock()
		if hangs {
			<-ctx.Done()
		}
		return handler(ctx, request)
	}))
	podresources.RegisterPodResourcesListerServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return s
}

// Get implements the API.
func (s *podServer) Get(_ context.Context, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{
		Name: request.PodName, Namespace: request.PodNamespace, Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: s.devices[request.PodName]}},
		}},
	}}, nil
}

// asked is an agent that receives calls while its process is counted.
type asked struct {
	*pairs
	t     *testing.T
	clock *stillClock
	pods  *podServer
}

// asks asserts how many requests to the kubelet and the API server a call causes, and counts its file operations.
func (a *asked) asks(part string, rpcs map[string]int, call func() error, refused bool) {
	a.t.Helper()
	a.api.ClearActions()
	a.pods.mu.Lock()
	clear(a.pods.calls)
	a.pods.mu.Unlock()
	var err error
	counted(part, func() { err = call() })
	if (err != nil) != refused {
		a.t.Errorf("%s: %v; want an error: %v", part, err, refused)
	}
	a.pods.mu.Lock()
	defer a.pods.mu.Unlock()
	if diff := cmp.Diff(rpcs, a.pods.calls); diff != "" {
		a.t.Errorf("%s: RPCs to the kubelet (-want +got):\n%s", part, diff)
	}
	if actions := a.api.Actions(); len(actions) > 0 {
		a.t.Errorf("%s: %d requests to the API server: %v", part, len(actions), actions)
	}
}

// askCounted is the process that is counted.
func askCounted(t *testing.T, root string) {
	clock := newStillClock(t)
	shared := "gpus: [{select: {index: [7]}, sharing: {mode: timeSlicing, replicas: 64, resourceName: " + sharedResource + "}}]\n"
	a := &asked{t: t, clock: clock, pairs: newPairs(t, "a100x8-40g", root, clock, shared)}
	a.awaitOf(sharedResource, healthy(64))
	a.pods = servePods(t, a.kubeletDir())
	beCounted(t)
	skipFiles(a.machine.Dir()) // The simulated driver is not a file of the agent.
	for _, mount := range []string{"/sys/fs/cgroup/devices", "/sys/fs/cgroup"} {
		nameFiles(mount+root, "cgroups")
	}
	nameFiles(filepath.Join(a.kubeletDir(), kubelet.CheckpointFile), "checkpoint")
	nameFiles(a.kubeletDir()+"/", "kubelet/")
	nameFiles(a.dir+"/", "agent/")
	for _, known := range []bool{true, false} {
		name := map[bool]string{true: "known", false: "unknown"}[known]
		a.cycle("free, checkpoint "+name, known, false)
		a.cycle("finished, checkpoint "+name, known, true)
		a.cycle("replaced, checkpoint "+name, known, true)
	}
	a.refuse()
	a.allocateReplicas()
}

// allocateReplicas allocates 64 free replicas in a row, more than there are grants in advance.
func (a *asked) allocateReplicas() {
	a.clock.stop()
	defer a.clock.resume()
	a.asks("free, 64 replicas in a row/Allocate", map[string]int{}, func() error {
		var failed error
		for i := range 64 {
			_, err := a.kubelet.Allocate(a.t.Context(), sharedResource, []string{fmt.Sprintf("%s::%d", a.bench.uuid(7), i)})
			failed = errors.Join(failed, err)
		}
		return failed
	}, false)
}

// cycle calls GetPreferredAllocation and then Allocate for devices of pods that have finished, which the ledger has
// released or not.
func (a *asked) cycle(part string, known, finished bool) {
	uids := a.allocateAll(a.t)
	if !finished {
		a.finishAll(a.t, uids)
		a.until(a.t, "the GPUs are free", func() bool { return len(a.agent.node.ledger.Holdings()) == 0 })
		a.writeCheckpoint(a.t, nil)
	}
	if !known {
		if err := os.Remove(filepath.Join(a.kubeletDir(), kubelet.CheckpointFile)); err != nil {
			a.t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond) // The agent has seen all these changes.
	a.clock.stop()
	defer a.clock.resume()
	if finished {
		a.finishAll(a.t, uids)
	}
	none := map[string]int{}
	chosen := a.ids[:1]
	if !strings.HasPrefix(part, "replaced") {
		a.asks(part+"/preference", none, func() (err error) {
			chosen, err = a.kubelet.Preferred(a.t.Context(), resource, a.ids, nil, 1)
			return err
		}, false)
	}
	a.asks(part+"/Allocate", none, func() error {
		_, err := a.kubelet.Allocate(a.t.Context(), resource, chosen)
		return err
	}, false)
}

// refuse requests a device of a running pod.
func (a *asked) refuse() {
	uids := a.allocateAll(a.t)
	a.pods.mu.Lock()
	for i, id := range a.ids {
		a.pods.devices[fmt.Sprintf("pod-%d", a.pairs.pods-len(uids)+i+1)] = []string{id}
	}
	a.pods.mu.Unlock()
	time.Sleep(300 * time.Millisecond) // The agent has seen the pods.
	a.clock.stop()
	defer a.clock.resume()
	// The agent has read the checkpoint when it was old enough to be cached.
	allocate := func() error {
		_, err := a.kubelet.Allocate(a.t.Context(), resource, a.ids[:1])
		return err
	}
	a.asks("refusal/Allocate", map[string]int{"Get": 1}, allocate, true)
	a.pods.mu.Lock()
	a.pods.hangs = true
	a.pods.mu.Unlock()
	a.asks("refusal beside a kubelet that hangs/Allocate", map[string]int{"Get": 1}, allocate, true)
	a.pods.mu.Lock()
	a.pods.hangs = false
	a.pods.mu.Unlock()
	path := filepath.Join(a.kubeletDir(), kubelet.CheckpointFile)
	blob, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, blob, 0o600)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // Then the times of the file show that it was not written since.
	a.asks("refusal after the checkpoint was written/Allocate", map[string]int{"Get": 1}, allocate, true)
}
