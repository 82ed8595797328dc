package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The bounds of an operator on a large cluster.
const (
	// operatorMemory is the most that it may have in memory, in bytes.
	operatorMemory = 120e6
	// caughtUpGoal is the time from the start of its process until it acts on a change; the test fails above caughtUpLimit.
	caughtUpGoal  = 5 * time.Second
	caughtUpLimit = 3 * caughtUpGoal
	// restTime is how long it may write nothing when all nodes are validated.
	restTime = time.Minute
)

// scale is a cluster of one node with hardware and many API nodes, with the chart installed.
type scale struct {
	*installed
	agents     *apiAgents
	operations dynamic.ResourceInterface
	stacks     dynamic.ResourceInterface
	names      []string
}

// TestOperateScale measures the operator on a cluster of many nodes that are objects of the API only: the time until all are validated, its
// memory, what it writes at rest, and how long a new process needs until it acts. It runs
// with BERTH_SOAK=1 only, on 1,000 nodes.
func TestOperateScale(t *testing.T) {
	soakOnly(t)
	onOwnCluster(t, 1)
	const count = 1000
	c := ownCluster(t, sandbox.Options{Nodes: 1, Profile: profileName(), NoAgent: true, APINodes: count})
	s := newScale(t, c)
	t.Run("Validated", func(t *testing.T) { testScaleValidated(t, s) })
	if t.Failed() {
		return
	}
	t.Run("Rest", func(t *testing.T) { testScaleRest(t, s) })
	t.Run("Rollout", func(t *testing.T) { testScaleRollout(t, s) })
	t.Run("Deleted", func(t *testing.T) {
		s.testRestart(t, s.names[1], caughtUpLimit, func(pod *corev1.Pod, _ kubelet.Process) error {
			now := int64(0)
			return c.Client().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		})
	})
	t.Run("Killed", func(t *testing.T) {
		s.testRestart(t, s.names[2], caughtUpLimit, func(_ *corev1.Pod, process kubelet.Process) error {
			return syscall.Kill(process.PID, syscall.SIGKILL)
		})
	})
}

// newScale installs the chart, with a GPUQuota.
func newScale(t *testing.T, c *sandbox.Cluster) *scale {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := &scale{installed: &installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}, agents: startAPIAgents(t, c),
		operations: client.Resource(v1alpha1.NodeOperations()), stacks: client.Resource(v1alpha1.GPUStacks()), names: c.APINodeNames()}
	ctx := timeout(t, 2*time.Minute)
	values := map[string]any{"gate": map[string]any{"mode": "enforce"}}
	if _, err := s.Helm(ctx, s.merged(values), s.chart("install", "--create-namespace")...); err != nil {
		t.Fatal(err)
	}
	s.waitDefinition(t, "gpuquotas.berth.dev")
	quota := `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUQuota","metadata":{"name":"team"},"spec":{"namespaces":["default"],"limits":[{"max":16}]}}`
	if err := c.ApplyObjects(ctx, decode(t, quota)...); err != nil {
		t.Fatal(err)
	}
	return s
}

// testScaleValidated writes the GPUNodes, and waits until all nodes are validated and no operation is left.
func testScaleValidated(t *testing.T, s *scale) {
	began := time.Now()
	if err := s.WriteAPIGPUNodes(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	written := time.Since(began)
	waitUntil(t, 10*time.Minute, "all nodes are validated", func(ctx context.Context) error {
		if n := s.agents.validated(); n < len(s.names) {
			return fmt.Errorf("%d of %d are", n, len(s.names))
		}
		return s.settled(ctx)
	})
	took := time.Since(began)
	t.Logf("%d nodes are validated %.1f s after their GPUNodes began to be written, which took %.1f s: %.1f nodes/s", len(s.names), took.Seconds(),
		written.Seconds(), float64(len(s.names))/took.Seconds())
	if n, err := s.agents.tainted(t.Context()); err != nil || n > 0 {
		t.Errorf("%d nodes have the gate's taint, %v", n, err)
	}
	s.checkMemory(t, "after the validation of all nodes")
}

// settled returns an error unless no operation is left and the GPUStack says that all nodes are validated.
func (s *scale) settled(ctx context.Context) error {
	operations, err := s.operations.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if n := len(operations.Items); n > 0 {
		o := operations.Items[0].Object
		message, _, _ := unstructured.NestedString(o, "status", "message")
		return fmt.Errorf("%d operations are left, such as %s: %s", n, operations.Items[0].GetName(), message)
	}
	stack, err := s.stacks.Get(ctx, v1alpha1.GPUStackName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	validated, _, err := unstructured.NestedInt64(stack.Object, "status", "validated")
	if want := len(s.names) + len(s.Nodes()); err != nil || int(validated) != want {
		return fmt.Errorf("the GPUStack has %d of %d nodes validated, %v", validated, want, err)
	}
	return nil
}

// testScaleRest checks that the operator writes nothing when all nodes are validated.
func testScaleRest(t *testing.T, s *scale) {
	// Until the last status and the last Event are written.
	quiet := time.Now()
	waitUntil(t, time.Minute, "the operator has written nothing for 5 s", func(context.Context) error {
		writes, err := s.Writes("berth-operator", quiet)
		if len(writes) > 0 {
			quiet = time.Now()
		}
		if err == nil && time.Since(quiet) < 5*time.Second {
			err = fmt.Errorf("it has just written %v", writes)
		}
		return err
	})
	since := time.Now()
	time.Sleep(restTime) // That nothing happens has no event.
	writes, err := s.Writes("berth-operator", since)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the operator wrote %d times in %v at rest, Leases left out", len(writes), restTime)
	if len(writes) > 0 {
		t.Errorf("at rest the operator wrote %d times:\n%s", len(writes), strings.Join(writes[:min(len(writes), 20)], "\n"))
	}
	s.checkMemory(t, "at rest")
}

// testScaleRollout replaces the pods of a DaemonSet on the API nodes, which has the strategy, the priority and the requests of the agent's,
// and measures how long it takes. The pods themselves start at once.
func testScaleRollout(t *testing.T, s *scale) {
	sets := s.Client().AppsV1().DaemonSets(agentNamespace)
	agent, err := sets.Get(t.Context(), agentName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "rollout"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "rollout"}, Spec: appsv1.DaemonSetSpec{UpdateStrategy: agent.Spec.UpdateStrategy,
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{PriorityClassName: agent.Spec.Template.Spec.PriorityClassName, Tolerations: agent.Spec.Template.Spec.Tolerations,
				NodeSelector: map[string]string{sandbox.APINodeLabel: sandbox.APINodeLabelValue},
				Containers:   []corev1.Container{{Name: "main", Image: sandbox.PauseImage, Resources: agent.Spec.Template.Spec.Containers[0].Resources}}}}}}
	if set, err = sets.Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait := func() time.Duration {
		began := time.Now()
		waitUntil(t, 10*time.Minute, "all pods are replaced", func(ctx context.Context) error {
			now, err := sets.Get(ctx, set.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if st := now.Status; st.ObservedGeneration < set.Generation || int(st.UpdatedNumberScheduled) < len(s.names) || int(st.NumberAvailable) < len(s.names) {
				return fmt.Errorf("%d pods are new, %d available", st.UpdatedNumberScheduled, st.NumberAvailable)
			}
			return nil
		})
		return time.Since(began)
	}
	first := wait()
	set, err = s.Client().AppsV1().DaemonSets(agentNamespace).Patch(t.Context(), set.Name, types.MergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"again":"1"}}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a DaemonSet with the strategy of the agent's had its pods on %d nodes after %.1f s, and replaced them in %.1f s", len(s.names), first.Seconds(), wait().Seconds())
	if err := sets.Delete(t.Context(), set.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// operator returns the operator's pod that runs, and its process.
func (s *scale) operator(ctx context.Context) (*corev1.Pod, kubelet.Process, error) {
	pods, err := s.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-operator"})
	if err != nil {
		return nil, kubelet.Process{}, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Running == nil {
			continue
		}
		found, err := processesOf("containerd://" + containerID(pod))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("its container is %+v", found)
		}
		if err != nil {
			return nil, kubelet.Process{}, err
		}
		return pod, found[0], nil
	}
	return nil, kubelet.Process{}, errors.New("the operator does not run")
}

// waitOperator waits until the operator runs as another process.
func (s *scale) waitOperator(t *testing.T, before kubelet.Process) (pod *corev1.Pod, process kubelet.Process) {
	t.Helper()
	waitUntil(t, time.Minute, "the operator runs", func(ctx context.Context) error {
		var err error
		if pod, process, err = s.operator(ctx); err == nil && process == before {
			err = errors.New("the process before runs still")
		}
		return err
	})
	return pod, process
}

// checkMemory prints what the operator has in memory, and checks it.
func (s *scale) checkMemory(t *testing.T, when string) {
	t.Helper()
	_, process := s.waitOperator(t, kubelet.Process{})
	now, most := memoryOf(t, process.PID)
	t.Logf("%s the operator has %.1f MB in memory (VmRSS), and had at most %.1f MB", when, now/1e6, most/1e6)
	if now > operatorMemory {
		t.Errorf("%s the operator has %.1f MB in memory, want at most %.0f", when, now/1e6, operatorMemory/1e6)
	}
}

// memoryOf returns VmRSS and VmHWM of a process, in bytes.
func memoryOf(t *testing.T, pid int) (now, most float64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s+(\d+) kB$`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(row[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if row[1] == "VmRSS" {
			now = n * 1024
		} else {
			most = n * 1024
		}
	}
	if now == 0 || most == 0 {
		t.Fatalf("no memory in the status of process %d:\n%s", pid, text)
	}
	return now, most
}

// testRestart ends the operator, sets the gate of a node back, and measures how long the next process needs until it makes the operation.
func (s *scale) testRestart(t *testing.T, node string, limit time.Duration, end func(*corev1.Pod, kubelet.Process) error) {
	pod, before := s.waitOperator(t, kubelet.Process{})
	watch, err := s.operations.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	ended := time.Now()
	if err := end(pod, before); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, 30*time.Second, "the operator has ended", func(context.Context) error {
		if now, err := kubelet.ProcessOf("/proc", before.PID); err == nil && now == before {
			return errors.New("it runs still")
		}
		return nil
	})
	key := node + "-2"
	s.agents.hold(t, node, key)
	var seen time.Time
	for late := time.After(time.Minute); seen.IsZero(); {
		select {
		case event, open := <-watch.ResultChan():
			if !open {
				t.Fatal("the watch of operations ended")
			}
			if o, ok := event.Object.(*unstructured.Unstructured); ok && o.GetName() == "validate-"+node {
				seen = time.Now()
			}
		case <-late:
			t.Fatal("the next operator made no operation within a minute")
		}
	}
	_, after := s.waitOperator(t, before)
	started := startOf(t, after)
	took := seen.Sub(started)
	t.Logf("a process of the operator acted on a change %.1f s after its start, and %.1f s after the end of the one before (goal %v after the start)",
		took.Seconds(), seen.Sub(ended).Seconds(), caughtUpGoal)
	if took > limit {
		t.Errorf("the operator acted on a change %v after its start, want at most %v", took, limit)
	}
	waitUntil(t, time.Minute, node+" is validated again", func(ctx context.Context) error {
		if got := s.agents.acceptedKey(node); got != key {
			return fmt.Errorf("it is validated for %s", got)
		}
		return s.settled(ctx)
	})
	s.checkMemory(t, "after a restart")
}

// startOf returns when a process started, by the clock that its start is counted in.
func startOf(t *testing.T, p kubelet.Process) time.Time {
	t.Helper()
	const ticks = 100 // per second: USER_HZ, which is the same on each architecture that Go supports
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return time.Now().Add(time.Duration(p.StartTime)*time.Second/ticks - time.Duration(now.Nano()))
}
