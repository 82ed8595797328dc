package devicemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// facts is a kubelet with a stub of eight GPUs, and the state of one check.
type facts struct {
	*node
	gpus *stub

	mu sync.Mutex
	// during is called once, while the next Allocate is in progress.
	during func()
}

func newFacts(t *testing.T) *facts {
	f := &facts{node: newNode(t, 0, delays{})}
	f.before = func(context.Context, string) {
		f.mu.Lock()
		call := f.during
		f.during = nil
		f.mu.Unlock()
		if call != nil {
			call()
		}
	}
	f.startKubelet()
	f.plug()
	return f
}

// plug starts the plugin. A kubelet that starts removes all sockets.
func (f *facts) plug() {
	f.t.Helper()
	f.gpus = startStub(f.t, f.dir, gpuResource, 8, 0)
	f.awaitDevices(gpuResource, 8)
}

// meanwhile runs call while the next Allocate is in progress.
func (f *facts) meanwhile(call func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.during = call
}

// add adds a pod to the kubelet, and admits it.
func (f *facts) add(plan plan) (*pod, error) {
	p := f.know(plan)
	return p, f.admit(p)
}

func (f *facts) know(plan plan) *pod {
	p := &pod{Pod: plan.pod(), plan: plan}
	f.node.mu.Lock()
	f.pods = append(f.pods, p)
	f.node.mu.Unlock()
	return p
}

func (f *facts) mustAdd(plan plan) *pod {
	f.t.Helper()
	p, err := f.add(plan)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// finish makes a pod inactive.
func (f *facts) finish(p *pod) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	p.terminal = true
}

// allocated returns the devices that the kubelet has in memory for a container.
func (f *facts) allocated(p *pod, container string) []string { return f.held(p.UID, container) }

// overlap reports whether two pods have a device in common.
func (f *facts) overlap(p, q *pod) bool {
	return slices.ContainsFunc(f.allocated(p, "main"), func(id string) bool { return slices.Contains(f.allocated(q, "main"), id) })
}

// file returns the devices that the checkpoint lists for a container of a pod.
func (f *facts) file(p *pod, container string) []string {
	f.t.Helper()
	checkpoint, err := kubelet.ReadCheckpoint(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	var ids []string
	for _, a := range checkpoint.Assignments {
		if a.PodUID == string(p.UID) && a.Container == container && a.Resource == gpuResource {
			ids = append(ids, a.DeviceIDs...)
		}
	}
	return ids
}

func (f *facts) podResources(call func(client podresourcesapi.PodResourcesListerClient) error) {
	f.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(f.dir, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		err = call(podresourcesapi.NewPodResourcesListerClient(conn))
	}
	if err != nil {
		f.t.Error(err)
	}
}

func (f *facts) list() {
	f.podResources(func(client podresourcesapi.PodResourcesListerClient) error {
		_, err := client.List(context.Background(), &podresourcesapi.ListPodResourcesRequest{})
		return err
	})
}

// want fails the test if ok is false; what describes the expectation.
func (f *facts) want(ok bool, what string) {
	f.t.Helper()
	if !ok {
		f.t.Errorf("not true: %s", what)
	}
}

func (f *facts) allocates() int { asked, _ := f.gpus.calls(); return len(asked) }

func one(name string, gpus int) plan { return single(name, gpus, 0, finish) }

// TestFacts checks, with the kubelet's own code, each fact in the package comment of internal/node/kubelet that a
// safety property depends on.
func TestFacts(t *testing.T) {
	for fact, try := range map[string]func(f *facts){
		"an init container's device reaches the plugin again by a bare Allocate": func(f *facts) {
			p := one("p", 1)
			p.init = []step{{name: "init", gpus: 1}}
			f.mustAdd(p)
			asked, preferred := f.gpus.calls()
			f.want(len(asked) == 2 && slices.Equal(asked[0], asked[1]), "both containers got the same device")
			f.want(len(preferred) == 1, "there was no GetPreferredAllocation for the second container")
		},
		"an init container's devices must be included when a later container needs more": func(f *facts) {
			p := one("p", 2)
			p.init = []step{{name: "init", gpus: 1}}
			f.mustAdd(p)
			asked, preferred := f.gpus.calls()
			f.want(len(preferred) == 2 && slices.Equal(preferred[1].MustIncludeDeviceIDs, asked[0]),
				"the second request has the first device as must-include")
		},
		"a sidecar's device is not passed on": func(f *facts) {
			p := one("p", 1)
			p.init = []step{{name: "sidecar", gpus: 1, sidecar: true}}
			f.mustAdd(p)
			asked, _ := f.gpus.calls()
			f.want(len(asked) == 2 && !slices.Equal(asked[0], asked[1]), "the two containers have different devices")
		},
		"a pod rejected after its Allocate stays in memory and file until the next allocation": func(f *facts) {
			p := f.mustAdd(one("p", 1))
			f.finish(p)
			f.want(len(f.allocated(p, "main")) == 1 && len(f.file(p, "main")) == 1, "memory and file still have it")
			f.mustAdd(one("q", 1))
			f.want(len(f.allocated(p, "main")) == 0 && len(f.file(p, "main")) == 0, "after the next allocation neither has it")
		},
		"the file is written before the next Allocate, and lists pods that have ended until after it": func(f *facts) {
			gone := f.mustAdd(one("gone", 1))
			f.finish(gone)
			running := f.know(one("running", 1))
			f.meanwhile(func() {
				f.want(len(f.file(gone, "main")) == 1, "during the next Allocate the file lists the pod that has ended")
				f.want(len(f.allocated(gone, "main")) == 0, "the memory does not")
			})
			if err := f.admit(running); err != nil {
				f.t.Fatal(err)
			}
			next := f.know(one("next", 1))
			f.meanwhile(func() {
				f.want(len(f.file(running, "main")) == 1, "during the Allocate after that the file lists the pod admitted before")
			})
			if err := f.admit(next); err != nil {
				f.t.Fatal(err)
			}
		},
		"when another plugin's Allocate fails, ours is in memory and not in the file": func(f *facts) {
			nics := startStub(f.t, f.dir, nicResource, 8, 0)
			f.awaitDevices(nicResource, 8)
			nics.fail(errNoLink)
			// The kubelet iterates over a container's resources in the order of a Go map.
			for i := range 100 {
				both := one("p", 1)
				both.main[0].nics = 1
				before := f.allocates()
				p, err := f.add(both)
				f.want(err != nil, "the admission failed")
				if f.allocates() == before {
					f.finish(p)
					f.want(i < 99, "our plugin was first once in a hundred times")
					continue
				}
				f.want(len(f.allocated(p, "main")) == 1 && len(f.file(p, "main")) == 0, "the memory has it and the file has not")
				f.manager.PluginListAndWatchReceiver(klog.Logger{}, "example.com/other", &pluginapi.ListAndWatchResponse{})
				f.want(len(f.file(p, "main")) == 1, "a device list of any plugin brings it into the file")
				return
			}
		},
		"List makes the kubelet forget ended pods in memory only": func(f *facts) {
			p := f.mustAdd(one("p", 1))
			f.finish(p)
			f.list()
			f.want(len(f.allocated(p, "main")) == 0 && len(f.file(p, "main")) == 1, "the file has it and the memory has not")
		},
		"a List during an Allocate makes the kubelet offer the device again": func(f *facts) {
			gone := f.mustAdd(one("gone", 1))
			first := f.know(one("first", 1))
			f.meanwhile(func() { f.finish(gone); f.list() })
			if err := f.admit(first); err != nil {
				f.t.Fatal(err)
			}
			second := f.mustAdd(one("second", 2))
			f.want(f.overlap(first, second), "both running pods have one device")
			f.want(slices.Contains(f.file(second, "main"), f.file(first, "main")[0]), "the file lists it for both")
		},
		"a List during an Allocate does no harm when no pod has ended": func(f *facts) {
			first := f.know(one("first", 1))
			f.meanwhile(f.list)
			if err := f.admit(first); err != nil {
				f.t.Fatal(err)
			}
			second := f.mustAdd(one("second", 2))
			f.want(!f.overlap(first, second), "the two pods have two devices")
		},
		"Get during an Allocate changes nothing": func(f *facts) {
			gone := f.mustAdd(one("gone", 1))
			first := f.know(one("first", 1))
			f.meanwhile(func() {
				f.finish(gone)
				f.podResources(func(client podresourcesapi.PodResourcesListerClient) error {
					_, err := client.Get(context.Background(),
						&podresourcesapi.GetPodResourcesRequest{PodNamespace: "default", PodName: "first"})
					return err
				})
				f.want(len(f.allocated(gone, "main")) == 1, "the pod that has ended is still in memory")
			})
			if err := f.admit(first); err != nil {
				f.t.Fatal(err)
			}
			f.finish(gone)
			second := f.mustAdd(one("second", 2))
			f.want(!f.overlap(first, second), "the two pods have two devices")
		},
		"an allocation by a pod's worker during an admission ends the kubelet by a panic": func(f *facts) {
			// A worker allocates for a container that starts without an entry, as after the loss of the file.
			restarting := f.know(one("restarting", 1))
			first := f.know(one("first", 1))
			f.meanwhile(func() {
				if _, err := f.manager.options(context.Background(), restarting.Pod, &restarting.Spec.Containers[0]); err != nil {
					f.t.Error(err)
				}
			})
			defer func() {
				f.want(recover() != nil, "the admission panicked")
				f.want(slices.Equal(f.file(first, "main"), f.allocated(first, "main")), "by then the file lists what was granted")
			}()
			f.admit(first)
		},
		"an error from Allocate makes the kubelet correct its checkpoint": func(f *facts) {
			gone := f.mustAdd(one("gone", 1))
			first := f.know(one("first", 1))
			f.meanwhile(func() { f.finish(gone); f.list() })
			if err := f.admit(first); err != nil {
				f.t.Fatal(err)
			}
			f.gpus.fail(errors.New("in use"))
			refused, err := f.add(one("refused", 1))
			f.want(err != nil && strings.Contains(err.Error(), "in use"), "the pod was refused with the plugin's message")
			f.finish(refused)
			f.gpus.fail(nil)
			second := f.mustAdd(one("second", 2))
			f.want(!f.overlap(first, second), "the next pod has another device")
		},
		"List and Get never show a plain init container": func(f *facts) {
			p := plan{name: "p", init: []step{{name: "init", gpus: 1}}, main: []step{{name: "main"}}}
			made := f.mustAdd(p)
			f.want(len(f.allocated(made, "init")) == 1, "the kubelet has the device for the init container")
			f.podResources(func(client podresourcesapi.PodResourcesListerClient) error {
				answer, err := client.Get(context.Background(),
					&podresourcesapi.GetPodResourcesRequest{PodNamespace: "default", PodName: "p"})
				for _, c := range answer.GetPodResources().GetContainers() {
					f.want(len(c.Devices) == 0 && c.Name != "init", "the device is not listed")
				}
				return err
			})
		},
		"the loss of the file has no effect on a running kubelet": func(f *facts) {
			p := f.mustAdd(one("p", 1))
			os.Remove(filepath.Join(f.dir, kubelet.CheckpointFile))
			q := f.mustAdd(one("q", 1))
			f.want(len(f.file(p, "main")) == 1 && len(f.file(q, "main")) == 1, "the next write brings back all")
		},
		"GetPreferredAllocation is not asked when the aligned devices are as many as needed": func(f *facts) {
			affinity, err := bitmask.NewBitMask(1)
			if err != nil {
				f.t.Fatal(err)
			}
			f.manager.stop()
			f.manager = startManager(f.t, managerDeps{dir: f.dir, pods: f.node,
				affinity: topologymanager.NewFakeManagerWithHint(klog.Logger{},
					&topologymanager.TopologyHint{NUMANodeAffinity: affinity, Preferred: true})})
			f.manager.sources.AddSource("api")
			aligned := newStub(f.dir, gpuResource, 8, 0)
			aligned.numa, aligned.socket = 2, "aligned.sock"
			aligned.serve(f.t)
			aligned.register(f.t)
			f.awaitDevices(gpuResource, 8)
			f.mustAdd(one("p", 4))
			asked, preferred := aligned.calls()
			f.want(len(preferred) == 0 && len(asked) == 1 && len(asked[0]) == 4, "Allocate came without a GetPreferredAllocation")
			f.mustAdd(one("q", 1))
			_, preferred = aligned.calls()
			f.want(len(preferred) == 1, "the next pod, for which none is aligned, had a GetPreferredAllocation")
		},
	} {
		t.Run(fact, func(t *testing.T) {
			t.Parallel()
			try(newFacts(t))
		})
	}
}

// TestFactsOfRestarts checks the facts about a kubelet that has just started.
func TestFactsOfRestarts(t *testing.T) {
	lost := func(dir string) { os.Remove(filepath.Join(dir, kubelet.CheckpointFile)) }
	damaged := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, kubelet.CheckpointFile), []byte(`{"Data":`), 0o600); err != nil {
			t.Error(err)
		}
	}
	for fact, tc := range map[string]struct {
		damage func(dir string)
		// running means that the container runs while the kubelet restarts; registered means that the plugin registers
		// before the pod is admitted again.
		running    bool
		registered bool
		wantErr    string
		// wantHeld is how many devices the kubelet then has in memory; wantAllocates is the number of its requests.
		wantHeld      int
		wantAllocates int
	}{
		"intact, running":                      {running: true, wantHeld: 1},
		"intact, not running":                  {wantErr: "no healthy devices present", wantHeld: 1},
		"intact, not running, registered":      {registered: true, wantHeld: 1},
		"lost, running":                        {damage: lost, running: true},
		"lost, running, registered":            {damage: lost, running: true, registered: true},
		"lost, not running":                    {damage: lost},
		"lost, not running, registered":        {damage: lost, registered: true, wantHeld: 1, wantAllocates: 1},
		"damaged, running, registered":         {damage: damaged, running: true, registered: true},
		"damaged, not running, not registered": {damage: damaged},
	} {
		t.Run(fact, func(t *testing.T) {
			t.Parallel()
			f := newFacts(t)
			p := f.mustAdd(one("p", 1))
			p.containers = []*container{{id: "id", name: "main"}}
			if !tc.running {
				p.ended = []string{"id"}
			}
			f.gpus.stop()
			var err error
			f.restartAround(tc.damage, func() {
				if tc.registered {
					f.plug()
				}
				err = f.admit(p)
			})
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("the pod was admitted again with %v, want %q", err, tc.wantErr)
			}
			if got := len(f.allocated(p, "main")); got != tc.wantHeld {
				t.Errorf("the kubelet has %d devices in memory, want %d", got, tc.wantHeld)
			}
			if got := f.allocates(); got != tc.wantAllocates {
				t.Errorf("the kubelet allocated %d times, want %d", got, tc.wantAllocates)
			}
			// The kubelet allocates for a container that starts later without an entry; an error only delays the start.
			if tc.damage != nil && tc.wantHeld == 0 {
				if !tc.registered {
					f.plug()
				}
				f.gpus.fail(errors.New("in use"))
				if _, err := f.manager.options(t.Context(), p.Pod, &p.Spec.Containers[0]); err == nil {
					t.Error("the container started although the plugin refused")
				}
				f.gpus.fail(nil)
				if _, err := f.manager.options(t.Context(), p.Pod, &p.Spec.Containers[0]); err != nil || len(f.allocated(p, "main")) != 1 {
					t.Errorf("the container's start gave it %v, %v; want one device", f.allocated(p, "main"), err)
				}
			}
		})
	}
}
