package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

const (
	// schedulerName is the name of the scheduler's Deployment, of its account, and of its first profile.
	schedulerName = "berth-scheduler"
	// takeOver is how long a scheduler may need until it schedules after its predecessor was killed: the Lease of a leader that was killed
	// ends after 15 s, and the kubelet restarts the container after 10 s at most.
	takeOver = time.Minute
)

// hollowMachine is the machine of the node without containers.
const hollowMachine = "h100x8"

// TestSchedulerRuns runs the scheduler as it ships, beside that of the cluster: installed with Helm, with the rights of the chart. One of
// the nodes records only, and its kubelet allocates the GPUs of another machine.
func TestSchedulerRuns(t *testing.T) {
	onOwnCluster(t, 2)
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("scheduler: {enabled: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := ownCluster(t, sandbox.Options{Nodes: 1, Hollow: 1, Profile: profileName(), NodeProfiles: map[string]string{"hollow-0": hollowMachine},
		Helm: true, HelmValues: []string{values}})
	i := &installed{Cluster: c, gpus: int64(len(hardware(t, c.Nodes()[0].SimDir()).GPUs))}
	i.waitFull(t, c.Nodes()[0])
	s := &schedulerTest{rig: newRig(c)}
	for _, profile := range []string{schedulerName, schedulerName + "-spread", schedulerName + "-latency"} {
		t.Run(profile, func(t *testing.T) { s.testScheduled(t, profile, profile) })
	}
	// The scheduler of the cluster goes on with its own pods.
	t.Run(corev1.DefaultSchedulerName, func(t *testing.T) { s.testScheduled(t, corev1.DefaultSchedulerName, corev1.DefaultSchedulerName) })
	t.Run("Hollow", func(t *testing.T) { testHollowGPUs(t, c, "hollow-0", schedulerName) })
	t.Run("Killed", func(t *testing.T) {
		s.testTakesOver(t, func(pod *corev1.Pod) error {
			processes, err := processesOf(pod.Status.ContainerStatuses[0].ContainerID)
			if err != nil || len(processes) != 1 {
				return fmt.Errorf("its processes are %v: %w", processes, err)
			}
			return syscall.Kill(processes[0].PID, syscall.SIGKILL)
		})
	})
	t.Run("Deleted", func(t *testing.T) {
		s.testTakesOver(t, func(pod *corev1.Pod) error {
			now := int64(0)
			return c.Client().CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		})
	})
	t.Run("Gated", func(t *testing.T) { s.testGated(t) })
	t.Run("Preempts", func(t *testing.T) { s.testPreempts(t, "hollow-0") })
	t.Run("UnderLoad", func(t *testing.T) { s.testUnderLoad(t, "hollow-0") })
	t.Run("Rights", func(t *testing.T) { s.testRights(t) })
}

// schedulerTest is a cluster with berth-scheduler.
type schedulerTest struct{ *rig }

// podOf is a pod with two GPUs for a scheduler.
func (s *schedulerTest) podOf(name, scheduler string) *corev1.Pod {
	pod := podWithGPUs(name, 2)
	pod.Spec.SchedulerName = scheduler
	return pod
}

// testScheduled runs a pod with two GPUs, and checks which scheduler chose its node.
func (s *schedulerTest) testScheduled(t *testing.T, profile, by string) {
	pod := startPod(t, s.Cluster, s.podOf("by-"+profile, profile))
	if got := s.assignment(t, pod).uuids; len(got) != 2 {
		t.Errorf("the kubelet gave the pod the GPUs %q, want two", got)
	}
	waitUntil(t, 10*time.Second, "an event says who scheduled the pod", func(ctx context.Context) error {
		events, err := s.Client().EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range events.Items {
			e := &events.Items[i]
			if e.Regarding.UID == pod.UID && e.Reason == "Scheduled" {
				if e.ReportingController != by {
					t.Errorf("%s scheduled the pod, want %s", e.ReportingController, by)
				}
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// pod returns the only pod of the scheduler that is ready.
func (s *schedulerTest) pod(ctx context.Context) (*corev1.Pod, error) {
	list, err := s.Client().CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + schedulerName})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 || len(list.Items[0].Status.ContainerStatuses) != 1 || !list.Items[0].Status.ContainerStatuses[0].Ready {
		return nil, fmt.Errorf("there are %d, or it is not ready", len(list.Items))
	}
	return &list.Items[0], nil
}

// testTakesOver ends the scheduler, and creates a pod as soon as its process has ended, which the next one has to schedule.
func (s *schedulerTest) testTakesOver(t *testing.T, end func(*corev1.Pod) error) {
	var pod *corev1.Pod
	waitUntil(t, takeOver, "the scheduler is ready", func(ctx context.Context) (err error) {
		pod, err = s.pod(ctx)
		return err
	})
	if err := end(pod); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitUntil(t, takeOver, "the process of the scheduler has ended", func(context.Context) error {
		left, err := processesOf(pod.Status.ContainerStatuses[0].ContainerID)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("it runs still: %v", left)
		}
		return err
	})
	next := s.podOf("after-"+strings.ToLower(filepath.Base(t.Name())), schedulerName)
	t.Cleanup(func() { s.cleanUp(t, next) })
	if _, err := s.CreatePod(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitPhase(timeout(t, takeOver), next.Namespace, next.Name, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
	t.Logf("the next pod ran %v after the end", time.Since(began).Round(time.Millisecond))
}

// testRights checks that the scheduler did its work with its own account: what it wrote, and nothing that was refused. All refusals fail
// the test at its end.
func (s *schedulerTest) testRights(t *testing.T) {
	writes, err := s.Writes(schedulerName, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(writes, func(w string) bool { return strings.HasPrefix(w, "create ") && strings.Contains(w, "/binding") }) {
		t.Errorf("the account %s bound no pod; it wrote\n%s", schedulerName, strings.Join(writes, "\n"))
	}
	found, err := s.Denials(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		if strings.HasSuffix(d.Account, ":"+schedulerName) {
			t.Errorf("the API server refused the scheduler a request: %s", d)
		}
	}
}

// ownConfig is a configuration in which Berth's plugin is in the profile of all pods.
const ownConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles:
- schedulerName: default-scheduler
  plugins: {multiPoint: {enabled: [{name: BerthPlacement, weight: 10000}]}}
  pluginConfig: [{name: BerthPlacement, args: {policy: pack}}]
`

// TestSchedulerSandbox is what tests of the scheduler rest on: berth-scheduler in place of the cluster's own, nodes without containers
// whose kubelets allocate the GPUs of their own machines, and API nodes of several machines.
func TestSchedulerSandbox(t *testing.T) {
	onOwnCluster(t, 2)
	machines := map[string]string{"hollow-0": "h100x8", "hollow-1": "v100x8-hybrid-mesh"}
	c := ownCluster(t, sandbox.Options{Hollow: 2, NodeProfiles: machines, Scheduler: "berth-scheduler", SchedulerConfig: schedulerConfig(t, ownConfig),
		APINodes: 3, APINodeProfiles: map[string]string{"*": "t4x4", "api-node-0001": "a100x16"}})
	for _, p := range c.State().Processes {
		if p.Name == "kube-scheduler" && filepath.Base(p.Argv[0]) != schedulerName {
			t.Errorf("the scheduler is %q", p.Argv)
		}
	}
	for node, machine := range machines {
		t.Run(machine, func(t *testing.T) { testHollowGPUs(t, c, node, corev1.DefaultSchedulerName) })
	}
	t.Run("APINodes", func(t *testing.T) { testAPIMachines(t, c) })
}

// checkRootUnchanged checks that no process of the sandbox works in a directory of the machine, and at the end of the test that the
// machine's root directory has what it had: a kubelet once deleted the files of its working directory as the logs of a container.
func checkRootUnchanged(t *testing.T, c *sandbox.Cluster) {
	t.Helper()
	for _, p := range c.State().Processes {
		if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID)); err != nil || !strings.HasPrefix(dir, c.Dir()+"/") {
			t.Fatalf("the working directory of %s is %q, %v; want one below %s", p.Name, dir, err, c.Dir())
		}
	}
	names := func() []string {
		entries, err := os.ReadDir("/")
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	before := names()
	t.Cleanup(func() {
		if after := names(); !slices.Equal(before, after) {
			t.Errorf("the root directory of the machine had %q and has %q", before, after)
		}
	})
}

// testHollowGPUs runs pods of a scheduler on a node whose container runtime only records, and compares the kubelet's checkpoint with its
// machine.
func testHollowGPUs(t *testing.T, c *sandbox.Cluster, name, scheduler string) {
	node, err := c.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	checkRootUnchanged(t, c)
	r := &rig{Cluster: c, node: node}
	r.waitAllocatable(t, nodeGPUs)
	own := map[string]bool{}
	for _, g := range hardware(t, node.SimDir()).GPUs {
		own[g.UUID] = true
	}
	var pods []*corev1.Pod
	for i, gpus := range []int{4, 2, 1} {
		pod := podWithGPUs(fmt.Sprintf("%s-%d", name, i), gpus)
		pod.Spec.SchedulerName = scheduler
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: sandbox.HollowLabel, Operator: corev1.TolerationOpExists}}
		pods = append(pods, startPod(t, c, pod))
	}
	given := map[string]string{}
	for i, pod := range pods {
		uuids := r.assignment(t, pod).uuids
		if want := []int{4, 2, 1}[i]; len(uuids) != want {
			t.Errorf("pod %s has the GPUs %q, want %d", pod.Name, uuids, want)
		}
		for _, uuid := range uuids {
			if !own[uuid] || given[uuid] != "" {
				t.Errorf("pod %s has %s, of the machine: %v, held by %q", pod.Name, uuid, own[uuid], given[uuid])
			}
			given[uuid] = string(pod.UID)
		}
	}
	waitUntil(t, 20*time.Second, "the GPUNode names the holders that the checkpoint names", func(ctx context.Context) error {
		object, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		shown := map[string]string{}
		for i := range object.Status.Devices {
			if holders := object.Status.Devices[i].Holders; len(holders) > 0 {
				shown[object.Status.Devices[i].UUID] = holders[0].PodUID
			}
		}
		if !maps.Equal(shown, given) {
			return fmt.Errorf("it names %v, want %v", shown, given)
		}
		if len(object.Status.Topology) != nodeGPUs {
			return fmt.Errorf("it has the topology %q", object.Status.Topology)
		}
		return nil
	})
}

// testAPIMachines checks that each API node has the GPUs of its machine, in the Node and in the GPUNode.
func testAPIMachines(t *testing.T, c *sandbox.Cluster) {
	for name, want := range map[string]int{"api-node-0000": 4, "api-node-0001": 16, "api-node-0002": 4} {
		node, err := c.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		object, err := gpuNodeOf(t.Context(), c, name)
		if err != nil {
			t.Fatal(err)
		}
		gpus := node.Status.Allocatable[gpuResource]
		if int(gpus.Value()) != want || len(object.Status.Devices) != want || len(object.Status.Topology) != want {
			t.Errorf("%s has %d GPUs allocatable, %d devices and %d rows of links; want %d", name, gpus.Value(), len(object.Status.Devices),
				len(object.Status.Topology), want)
		}
	}
}
