package devicemanager

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/simtest"
	"github.com/berth-gpu/berth/internal/node/agent"
	"github.com/berth-gpu/berth/internal/node/agent/hardware"
	"github.com/berth-gpu/berth/internal/node/configwatch"
)

// busy returns the delays of a busy node, and the lag of a watch of the API.
func busy() delays {
	return delays{pull: 60 * time.Millisecond, notice: 20 * time.Millisecond, cleanup: 30 * time.Millisecond, status: 30 * time.Millisecond}
}

const watchLag = 30 * time.Millisecond

// berthNode is a node with a running kubelet and a running agent with eight GPUs.
func berthNode(t testing.TB, how delays, before func(ctx context.Context, resource string)) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: not root: containers need cgroups and device nodes of their own (try: sudo make test)")
	}
	n := newNode(t, watchLag, how)
	n.before = before
	n.runtime = newRuntime(t, filepath.Join(n.dir, "containerd"), filepath.Join(n.dir, "cdi"))
	n.startKubelet()
	machine, err := sim.Create(filepath.Join(n.dir, "sim"), "a100x8-40g")
	if err != nil {
		t.Fatal(err)
	}
	api, err := dynamic.NewForConfig(&rest.Config{Host: n.cluster.serve(t), QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	n.t.Cleanup(n.startAgent(agentOptions{api: api, machine: machine}))
	n.awaitDevices(gpuResource, 8)
	return n
}

// agentOptions are what distinguishes the agents of the tests.
type agentOptions struct {
	api     dynamic.Interface
	machine *sim.Machine
	// kube is nil for an agent without DRA, file empty for one without a configuration file.
	kube kubernetes.Interface
	file string
	// fault is called at each step; nil for nothing.
	fault func(step string) error
}

// newAgent returns an agent of the node in dir, with the kubelet's cgroups below cgroupRoot.
func newAgent(dir, cgroupRoot string, with agentOptions, log *slog.Logger) (*agent.Agent, error) {
	watcher, err := configwatch.Open(configwatch.Deps{File: with.file, Log: log, Override: func(c *v1alpha1.AgentConfig) {
		c.NodeName, c.Labels.Output = nodeName, v1alpha1.LabelsNone
		c.KubeletDir, c.StateDir, c.PersistentDir = dir, filepath.Join(dir, "state"), filepath.Join(dir, "persistent")
		c.CDIDir, c.HookDir, c.MPSRoot = filepath.Join(dir, "cdi"), filepath.Join(dir, "hooks"), filepath.Join(dir, "mps")
		c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
		c.ContainerdStateDir, c.CgroupRoot = filepath.Join(dir, "containerd"), cgroupRoot
	}})
	if err != nil {
		return nil, err
	}
	machine, err := hardware.Open(filepath.Join(dir, "sim"), watcher.Base())
	if err != nil {
		return nil, err
	}
	machine.Library, machine.SMI = with.machine.NVML(), simtest.SMI(with.machine)
	hook := filepath.Join(dir, "hook") // It is installed, and no container of this test runs it.
	if err := os.WriteFile(hook, []byte("#!/bin/sh\n"), 0o700); err != nil {
		return nil, err
	}
	return agent.New(agent.Deps{
		Config: watcher, Hardware: machine, HookSource: hook, API: with.api, Kube: with.kube, Fault: with.fault, Log: log,
	})
}

// agentLog opens the agent's log in a node's directory.
func agentLog(dir string) (*os.File, *slog.Logger, error) {
	log, err := os.OpenFile(filepath.Join(dir, "agent.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	level := slog.LevelInfo
	if os.Getenv(envLogs) != "" {
		level = slog.LevelDebug
	}
	return log, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})), nil
}

// startAgent starts an agent; stop ends it.
func (n *node) startAgent(with agentOptions) (stop func()) {
	n.t.Helper()
	log, logger, err := agentLog(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	made, err := newAgent(n.dir, "/"+n.runtime.root, with, logger)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- made.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("the agent ended with %v", err)
		}
		log.Close()
		if n.t.Failed() {
			n.keepLog(log.Name())
		}
	}
}

// keepLog prints the end of the agent's log, and stores the whole log if the environment names a folder.
func (n *node) keepLog(path string) {
	blob, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if dir := os.Getenv(envLogs); dir != "" {
		os.WriteFile(filepath.Join(dir, strings.ReplaceAll(n.t.Name(), "/", "-")+".log"), blob, 0o600)
	}
	lines := strings.Split(string(blob), "\n")
	n.t.Logf("the end of the agent's log:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
}

// check fails the test for each device with two holders, and for each refusal of a device that no other running pod
// has. If anyRefusal is set, it fails for every refusal.
func (n *node) check(anyRefusal bool) {
	n.t.Helper()
	n.mu.Lock()
	n.t.Logf("%d pods admitted, %d rejected: %s", n.admitted, len(n.rejected), n.truth)
	n.mu.Unlock()
	if list := n.truth.doubleHolders; len(list) > 0 {
		n.t.Errorf("%d devices have two running holders:\n  %s", len(list), firstOf(list, 5))
	}
	if list := n.truth.falseRefusals; len(list) > 0 {
		n.t.Errorf("%d Allocates of free devices were refused:\n  %s", len(list), firstOf(list, 5))
	}
	if list := n.truth.refused; !anyRefusal && len(list) > 0 {
		n.t.Errorf("%d Allocates were refused, want none:\n  %s", len(list), firstOf(list, 5))
	}
}

// TestForeignList creates and deletes pods of all kinds while another client lists PodResources every 20 ms. No device
// may have two running holders, and only real double offers may be refused.
func TestForeignList(t *testing.T) {
	count := 300
	if soak() {
		count = 10_000
	}
	random := rand.New(rand.NewPCG(seed(t), 0))
	plans := make([]plan, count)
	for i := range plans {
		plans[i] = randomPlan(random, i)
	}
	// A delay between the kubelet's choice and the end of an Allocate widens the race window.
	slow := func(context.Context, string) { pause(10 * time.Millisecond) }
	n := berthNode(t, busy(), slow)
	stop := n.foreign(20 * time.Millisecond)
	start := time.Now()
	n.crowd(count, func(i int) plan { return plans[i] })
	t.Logf("%d pods in %s, %d lists by another client", count, time.Since(start).Round(time.Millisecond), stop())
	if n.truth.doubleOffers == 0 {
		t.Log("the kubelet offered no device twice")
	}
	n.check(true)
}

// TestNoRefusal checks that, if no other client talks to the kubelet, the agent refuses nothing and no device has two
// holders, in all situations of a node.
func TestNoRefusal(t *testing.T) {
	jobs := func(name string, end ending) func(*node, *rand.Rand) {
		return func(n *node, random *rand.Rand) {
			n.crowd(40, func(i int) plan {
				return single(fmt.Sprintf("%s-%d", name, i), 1, time.Duration(50+i*37%200)*time.Millisecond, end)
			})
		}
	}
	initial := func(count int, steps ...step) func(*node, *rand.Rand) {
		return func(n *node, random *rand.Rand) {
			n.crowd(count, func(i int) plan {
				p := single(fmt.Sprintf("pod-%d", i), 1+i%2, 100*time.Millisecond, finish)
				p.init = steps
				return p
			})
		}
	}
	for name, run := range map[string]func(n *node, random *rand.Rand){
		"all kinds without a foreign List": func(n *node, random *rand.Rand) {
			plans := make([]plan, 60)
			for i := range plans {
				plans[i] = randomPlan(random, i)
				// A device whose pod the kubelet has forgotten is a double offer.
				if plans[i].end == forceDelete {
					plans[i].end = deleted
				}
			}
			n.crowd(len(plans), func(i int) plan { return plans[i] })
		},
		"init container then container": initial(30, step{name: "init", gpus: 1, life: 30 * time.Millisecond}),
		"larger init container":         initial(20, step{name: "init", gpus: 4, life: 30 * time.Millisecond}),
		"two init containers": initial(20, step{name: "a", gpus: 1, life: 20 * time.Millisecond},
			step{name: "b", gpus: 2, life: 20 * time.Millisecond}),
		"init container alone": func(n *node, random *rand.Rand) { n.crowd(20, initAlone) },
		"sidecar":              initial(20, step{name: "sidecar", gpus: 1, sidecar: true}),
		"init container and sidecar": initial(20, step{name: "init", gpus: 1, life: 20 * time.Millisecond},
			step{name: "sidecar", gpus: 1, sidecar: true}),
		"container that restarts": func(n *node, random *rand.Rand) {
			n.crowd(16, func(i int) plan {
				p := single(fmt.Sprintf("pod-%d", i), 1, 300*time.Millisecond, finish)
				p.restarts = 3
				return p
			})
		},
		"finished jobs": jobs("job", finish),
		"deleted pods":  jobs("pod", deleted),
		"StatefulSet pod created again under its name": func(n *node, random *rand.Rand) {
			var group sync.WaitGroup
			for set := range 8 {
				group.Go(func() {
					for range 6 {
						<-n.create(single(fmt.Sprintf("web-%d", set), 1, 80*time.Millisecond, deleted)).finished
					}
				})
			}
			group.Wait()
		},
		"force deletion": func(n *node, random *rand.Rand) {
			// Four at a time: another device is always free, and the preference has to find it.
			n.crowdOf(4, 40, func(i int) plan {
				p := single(fmt.Sprintf("pod-%d", i), 1, 60*time.Millisecond, forceDelete)
				p.linger = 150 * time.Millisecond
				return p
			})
		},
		"a second plugin that fails": func(n *node, random *rand.Rand) {
			nics := startStub(n.t, n.dir, nicResource, 8, 5*time.Millisecond)
			n.awaitDevices(nicResource, 8)
			n.crowd(40, func(i int) plan {
				p := single(fmt.Sprintf("pod-%d", i), 1, 80*time.Millisecond, finish)
				p.main[0].nics = i % 2
				if i%3 == 0 {
					nics.fail(errNoLink)
				} else {
					nics.fail(nil)
				}
				return p
			})
		},
		"kubelet restart with the checkpoint intact": restarts(nil),
		"kubelet restart with the checkpoint lost": restarts(func(dir string) {
			os.Remove(filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"))
		}),
		"kubelet restart with the checkpoint damaged": restarts(func(dir string) {
			path := filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint")
			if blob, err := os.ReadFile(path); err == nil {
				os.WriteFile(path, blob[:len(blob)/2], 0o600)
			}
		}),
		"API away": func(n *node, random *rand.Rand) {
			jobs("before", finish)(n, random)
			n.cluster.leave(true)
			jobs("during", finish)(n, random)
			jobs("deleted", deleted)(n, random)
			n.cluster.leave(false)
			jobs("after", finish)(n, random)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := berthNode(t, busy(), nil)
			run(n, rand.New(rand.NewPCG(seed(t), 0)))
			n.workers.Wait()
			n.check(false)
		})
	}
}

// initAlone is a pod in which only an init container has a GPU; the kubelet keeps the GPU assigned for the pod's
// lifetime.
func initAlone(i int) plan {
	return plan{
		name: fmt.Sprintf("pod-%d", i), init: []step{{name: "init", gpus: 1, life: 30 * time.Millisecond}},
		main: []step{{name: "main"}}, life: 100 * time.Millisecond, end: finish,
	}
}

// restarts restarts the kubelet while some pods run; new pods start before and after.
func restarts(damage func(dir string)) func(*node, *rand.Rand) {
	return func(n *node, random *rand.Rand) {
		var group sync.WaitGroup
		for round := range 3 {
			var running []*pod
			for i := range 3 {
				running = append(running, n.create(single(fmt.Sprintf("running-%d-%d", round, i), 1, 10*time.Second, finish)))
			}
			p := single(fmt.Sprintf("restarting-%d", round), 1, 400*time.Millisecond, finish)
			p.restarts = 4
			running = append(running, n.create(p))
			for _, p := range running {
				n.awaitRunning(p)
			}
			n.restartKubelet(damage)
			n.awaitDevices(gpuResource, 8)
			for i := range 12 {
				group.Go(func() {
					<-n.create(single(fmt.Sprintf("new-%d-%d", round, i), 1, 50*time.Millisecond, finish)).finished
				})
			}
			group.Wait()
			for _, p := range running {
				p.kill()
				<-p.finished
			}
		}
	}
}
