package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/workload"
)

// The environment variables of the tests with large counts:
//
//	BERTH_SOAK=1  200 pods and 50 restarts of the agent instead of 16 and 3; 200 pods beside a foreign List instead of 12
//	BERTH_SEED    repeats the random choices of an earlier run
const (
	envSoak = "BERTH_SOAK"
	envSeed = "BERTH_SEED"
)

const (
	churnAtOnce = 8
	churnMost   = 4 // maximum number of GPUs that a pod requests
)

// churn creates and deletes pods while the agent is restarted.
type churn struct {
	*rig
	t      testing.TB
	major  uint32
	gpus   []int    // how many GPUs each pod requests
	kinds  []string // how each restart is done
	served chan int // receives a value for each pod that was created and deleted

	mu      sync.Mutex
	down    []interval // the times without a running agent
	refused int
	looks   int
	most    int // maximum number of GPUs held at one time
}

// interval is a time without a running agent; the last one may have no end yet.
type interval struct{ from, to time.Time }

// TestChurn runs pods with random numbers of GPUs, eight at a time, and restarts the agent in between. After each step,
// no GPU has two holders among the running containers, according to the OCI specs that they were started with, and the
// GPUs of a deleted pod are free.
func TestChurn(t *testing.T) {
	onSharedCluster(t)
	r := theNode(t)
	pods, restarts, limit := 16, 3, 3*time.Minute
	if os.Getenv(envSoak) != "" {
		pods, restarts, limit = 200, 50, 20*time.Minute
	}
	seed := randomSeed(t)
	c := newChurn(t, r, seed, pods, restarts)
	t.Logf("%s=%d repeats this: %d pods, restarts of the agent: %s", envSeed, seed, pods, strings.Join(c.kinds, " "))
	start := time.Now()
	if err := c.run(timeout(t, limit)); err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d pods and %d restarts of the agent in %s: all containers read %d times, at most %d GPUs held "+
		"at one time, %d pods refused while no agent ran and created again",
		seed, pods, restarts, ms(time.Since(start)), c.looks, c.most, c.refused)
	c.checkNothingLeft(t)
}

// randomSeed returns the seed in the environment, or a new one.
func randomSeed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv(envSeed)
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: want a number", envSeed, text)
	}
	return seed
}

func newChurn(t testing.TB, r *rig, seed uint64, pods, restarts int) *churn {
	random := rand.New(rand.NewPCG(seed, 0))
	c := &churn{rig: r, t: t, major: hardware(t, r.node.SimDir()).Majors.NVIDIA, served: make(chan int, pods)}
	for range pods {
		c.gpus = append(c.gpus, 1+random.IntN(churnMost))
	}
	for range restarts {
		c.kinds = append(c.kinds, []string{"kill", "stop", "upgrade"}[random.IntN(3)])
	}
	return c
}

// run creates and deletes all pods, eight at a time, and restarts the agent at even intervals among them.
func (c *churn) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	next := make(chan int)
	group.Go(func() error {
		defer close(next)
		for i := range c.gpus {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range churnAtOnce {
		group.Go(func() error {
			for i := range next {
				if err := c.serve(ctx, i); err != nil {
					return err
				}
				c.served <- i
			}
			return nil
		})
	}
	group.Go(func() error { return c.restarts(ctx) })
	return group.Wait()
}

// restarts restarts the agent after every few pods.
func (c *churn) restarts(ctx context.Context) error {
	each := max(1, len(c.gpus)/len(c.kinds))
	for _, kind := range c.kinds {
		for range each {
			select {
			case <-c.served:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := c.restart(ctx, kind); err != nil {
			return fmt.Errorf("restart the agent (%s): %w", kind, err)
		}
	}
	return nil
}

func (c *churn) restart(ctx context.Context, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if kind == "upgrade" {
		return c.mode.Upgrade(ctx)
	}
	c.mu.Lock()
	c.down = append(c.down, interval{from: time.Now()})
	c.mu.Unlock()
	end := c.mode.Kill
	if kind == "stop" {
		end = c.mode.Remove
	}
	if err := end(ctx); err != nil {
		return err
	}
	if err := c.mode.Start(ctx); err != nil {
		return err
	}
	// The agent is ready once the kubelet has accepted its registration; what the kubelet reports is decisive.
	err := poll(ctx, "all GPUs are back", func() error { return c.wantHealthy(ctx, nodeGPUs) })
	c.mu.Lock()
	c.down[len(c.down)-1].to = time.Now()
	c.mu.Unlock()
	return err
}

// wasDown reports whether there was a time without an agent since a moment.
func (c *churn) wasDown(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.down, func(d interval) bool { return d.to.IsZero() || d.to.After(since) })
}

// serve creates a pod, checks it and all others, deletes it, and checks that nothing of it is left. If the scheduler
// assigns a pod to the node while no agent runs, the kubelet refuses it, which no device plugin can prevent; such a pod
// is created again.
func (c *churn) serve(ctx context.Context, i int) error {
	for attempt := 0; ; attempt++ {
		name := fmt.Sprintf("churn-%d-%d", i, attempt)
		since := time.Now()
		pod, err := c.admit(ctx, name, c.gpus[i])
		if err == nil {
			err = c.checkHeld(ctx, pod, c.gpus[i])
		}
		gone := c.removeAndForget(ctx, name, pod)
		if !withoutAgent(pod) || !c.wasDown(since) || ctx.Err() != nil {
			return errors.Join(err, gone)
		}
		c.mu.Lock()
		c.refused++
		c.mu.Unlock()
	}
}

// withoutAgent reports whether the kubelet refused a pod because no agent answered; the agent itself did not refuse it.
func withoutAgent(pod *corev1.Pod) bool {
	if pod == nil || pod.Status.Reason != "UnexpectedAdmissionError" {
		return false
	}
	return slices.ContainsFunc([]string{"no healthy devices present", "code = Unavailable", "code = Canceled"}, func(why string) bool {
		return strings.Contains(pod.Status.Message, why)
	})
}

// admit creates a pod and waits until it runs. It sets no time limit: eight pods request more GPUs than there are, and
// the scheduler prefers small pods to a large one as long as there are small ones.
func (c *churn) admit(ctx context.Context, name string, gpus int) (*corev1.Pod, error) {
	if _, err := c.CreatePod(ctx, podWithGPUs(name, gpus)); err != nil {
		return nil, err
	}
	return c.WaitPhase(ctx, metav1.NamespaceDefault, name, corev1.PodRunning)
}

// checkHeld compares the GPUs of a pod with its request, and all running containers with one another.
func (c *churn) checkHeld(ctx context.Context, pod *corev1.Pod, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, _, err := c.ExecInPod(ctx, pod.Namespace, pod.Name, "main", "/workload", "devices")
	if err != nil {
		return err
	}
	var devices []workload.Device
	if err := json.Unmarshal([]byte(out), &devices); err != nil {
		return fmt.Errorf("read the devices of pod %s: %w: %s", pod.Name, err, out)
	}
	var inside []uint32
	for _, d := range devices {
		if gpuNode.MatchString(d.Path) && d.Major == c.major {
			inside = append(inside, d.Minor)
		}
	}
	slices.Sort(inside)
	if len(inside) != want {
		c.t.Errorf("pod %s requested %d GPUs and has %v", pod.Name, want, inside)
	}
	running, err := c.running()
	if err != nil {
		return err
	}
	held := 0
	for _, l := range running {
		held += len(l.gpus)
		if l.pod == pod.Name && !slices.Equal(l.gpus, inside) {
			c.t.Errorf("pod %s: its OCI spec has the GPUs %v, its container %v", pod.Name, l.gpus, inside)
		}
	}
	if !slices.ContainsFunc(running, func(l runningContainer) bool { return l.pod == pod.Name }) {
		c.t.Errorf("pod %s runs and has no running container", pod.Name)
	}
	c.checkHolders(running)
	node, err := c.gpuNode(ctx)
	if err != nil {
		return err
	}
	for _, d := range node.Status.Devices {
		if len(d.Holders) > 1 {
			c.t.Errorf("the GPUNode lists two holders of %s: %+v", d.UUID, d.Holders)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	c.most = max(c.most, held)
	return nil
}

// checkHolders fails the test for each GPU that two containers hold at the same time.
func (c *churn) checkHolders(running []runningContainer) {
	owner := map[uint32]runningContainer{}
	for _, l := range running {
		for _, minor := range l.gpus {
			other, taken := owner[minor]
			// The first may have ended before the second was read.
			if taken && exists(other.pid) {
				c.t.Errorf("GPU %d has two holders: pod %s (container %s) and pod %s (container %s)", minor,
					other.pod, other.id, l.pod, l.id)
			}
			owner[minor] = l
		}
	}
}

// runningContainer is a container whose first process runs.
type runningContainer struct {
	id, pod string
	pid     int
	gpus    []uint32 // minor numbers, ascending
}

// running reads the OCI specs of all running containers of the node, without those that only hold a pod's namespaces.
func (c *churn) running() ([]runningContainer, error) {
	bundles, err := os.ReadDir(c.bundles())
	if err != nil {
		return nil, err
	}
	var found []runningContainer
	for _, bundle := range bundles {
		one, err := c.readBundle(bundle.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // the container is being created or removed
		}
		if err != nil {
			return nil, err
		}
		if one.pod != "" && exists(one.pid) {
			found = append(found, one)
		}
	}
	return found, nil
}

func (c *churn) readBundle(id string) (runningContainer, error) {
	one := runningContainer{id: id}
	blob, err := os.ReadFile(filepath.Join(c.bundles(), id, "config.json"))
	if err != nil {
		return one, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(blob, &spec); err != nil {
		return one, fmt.Errorf("read OCI spec of %s: %w", id, err)
	}
	if spec.Annotations["io.kubernetes.cri.container-type"] == "container" {
		one.pod = spec.Annotations["io.kubernetes.cri.sandbox-name"]
	}
	for _, d := range spec.Linux.Devices {
		if d.Type == "c" && d.Major == int64(c.major) && gpuNode.MatchString(d.Path) {
			one.gpus = append(one.gpus, uint32(d.Minor))
		}
	}
	slices.Sort(one.gpus)
	pid, err := os.ReadFile(filepath.Join(c.bundles(), id, "init.pid"))
	if err != nil {
		return one, err
	}
	if one.pid, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		return one, fs.ErrNotExist // the file is being written
	}
	return one, nil
}

// exists reports whether a process has not ended.
func exists(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// removeAndForget deletes a pod and waits until it holds nothing.
func (c *churn) removeAndForget(ctx context.Context, name string, pod *corev1.Pod) error {
	// It deletes the pod also after a failure elsewhere: the sandbox may be one that remains.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := c.DeletePodAndWait(ctx, metav1.NamespaceDefault, name, -1); err != nil || pod == nil {
		return err
	}
	return poll(ctx, "no GPU is held by pod "+name, func() error {
		node, err := c.gpuNode(ctx)
		if err != nil {
			return err
		}
		for _, d := range node.Status.Devices {
			for _, h := range d.Holders {
				if h.PodUID == string(pod.UID) {
					return fmt.Errorf("the GPUNode lists it as the holder of %s as %s", d.UUID, h.Kind)
				}
			}
		}
		running, err := c.running()
		if err != nil {
			return err
		}
		for _, l := range running {
			if l.pod == name && len(l.gpus) > 0 {
				return fmt.Errorf("container %s of it runs and has the GPUs %v", l.id, l.gpus)
			}
		}
		return nil
	})
}

// checkNothingLeft checks that the node is as it was before, and that one pod can have all GPUs.
func (c *churn) checkNothingLeft(t testing.TB) {
	t.Helper()
	c.waitAllocatable(t, nodeGPUs)
	c.waitNodeStatus(t, nodeGPUs, nodeGPUs)
	c.waitHolders(t, map[string]int{})
	node, err := c.gpuNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range node.Status.Problems {
		t.Errorf("the GPUNode has a problem: %s: %s", problem.Code, problem.Message)
	}
	if sockets := c.agentSockets(t); len(sockets) != 1 {
		t.Errorf("sockets of the agent in device-plugins: %v, want one", sockets)
	}
	all := c.rig.run(t, podWithGPUs("all", nodeGPUs))[0]
	checkFull(t, c.held(t, all))
}
