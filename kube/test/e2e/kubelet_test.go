package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

func kubeletTests() []agentTest {
	return []agentTest{
		{"KubeletRestarted", lossTest(func(string) error { return nil })},
		{"CheckpointCorrupted", lossTest(func(path string) error { return os.WriteFile(path, []byte("CORRUPTED"), 0o600) })},
		{"CheckpointTruncated", lossTest(func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()/2)
		})},
		{"CheckpointDeleted", lossTest(os.Remove)},
		{"InitContainers", testInitContainers},
		{"FreeAgain", testFreeAgain},
		{"Orphan", testOrphan},
	}
}

// lossTest restarts the kubelet under a running pod and damages the checkpoint while the kubelet is down. Then it fills
// the node with pods, and restarts the first pod's container.
func lossTest(spoil func(path string) error) func(*testing.T, *rig) {
	return func(t *testing.T, r *rig) {
		first := podWithGPUs("first", 2)
		first.Spec.RestartPolicy = corev1.RestartPolicyAlways
		first = r.run(t, first)[0]
		before := r.gpusIn(t, first, "main")
		r.restartKubelet(t, spoil)
		r.checkUntouched(t, first, before)
		r.checkTrace(t, first, before)

		others := r.run(t, podWithGPUs("second", 1), podWithGPUs("third", 2), podWithGPUs("fourth", 3))
		held := r.held(t, others...)
		held["first"] = r.gpusIn(t, first, "main")
		checkFull(t, held)

		// The kubelet requests again what it has forgotten, and must then get devices that no other pod has.
		first = r.restartContainer(t, first)
		held["first"] = r.gpusIn(t, first, "main")
		checkFull(t, held)
		r.checkTrace(t, first, held["first"])
		r.checkTrace(t, others[2], held["fourth"])
	}
}

// restartKubelet stops the kubelet, damages its checkpoint, starts it, and waits until the agent's GPUs are back.
func (r *rig) restartKubelet(t testing.TB, spoil func(path string) error) {
	t.Helper()
	ctx := timeout(t, time.Minute)
	if err := r.node.StopKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	if err := spoil(filepath.Join(r.node.KubeletDir(), kubelet.CheckpointFile)); err != nil {
		t.Fatal(err)
	}
	watch := r.sample(t)
	if err := r.node.StartKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	watch.waitFor(t, nodeGPUs)
	samples := watch.stop()
	if err := r.node.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	answers := slices.IndexFunc(samples, func(s sample) bool { return s.count >= 0 })
	back, _ := firstAfter(samples, time.Time{}, nodeGPUs)
	t.Logf("kubelet restarted: %d healthy GPUs %s after its first answer", nodeGPUs, ms(back.Sub(samples[answers].at)))
}

// restartContainer kills the process of a pod's container and returns the pod when it runs again.
func (r *rig) restartContainer(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	old := pod.Status.ContainerStatuses[0]
	processes, err := processesOf(old.ContainerID)
	if err == nil && len(processes) == 0 {
		err = errors.New("it has no process")
	}
	if err == nil {
		err = signalAll(processes, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatalf("kill container %s: %v", old.ContainerID, err)
	}
	var now *corev1.Pod
	waitUntil(t, 40*time.Second, "the container of "+pod.Name+" runs again", func(ctx context.Context) error {
		var err error
		if now, err = r.Client().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		status := now.Status.ContainerStatuses[0]
		if status.ContainerID == old.ContainerID || status.State.Running == nil {
			return fmt.Errorf("it is %+v", status.State)
		}
		return nil
	})
	return now
}

// checkTrace checks that berth trace, run on the node, answers for a running pod, and that the container's own nodes
// lead it to the right GPUs. It may report that sources disagree: after the kubelet has lost its state they do.
func (r *rig) checkTrace(t testing.TB, pod *corev1.Pod, gpus []uint32) {
	t.Helper()
	found := r.trace(t, pod.Name)
	ids := r.uuids(t)
	var want, got []string
	for _, minor := range gpus {
		want = append(want, ids[minor])
	}
	for _, p := range found.Pods {
		if p.UID != string(pod.UID) {
			t.Errorf("trace of pod %s: it is about the pod with UID %s, want %s", pod.Name, p.UID, pod.UID)
		}
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if slices.ContainsFunc(d.Sources, func(s v1alpha1.TraceSource) bool {
					return s.Kind == trace.Process || s.Kind == trace.OCISpec
				}) {
					got = append(got, string(d.UUID))
				}
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("trace of pod %s: its container has %v, want %v", pod.Name, got, want)
	}
}

func (r *rig) trace(t testing.TB, name string) *v1alpha1.Trace {
	t.Helper()
	var out, errOut bytes.Buffer
	err := r.node.RunInside(timeout(t, 20*time.Second), sandbox.Streams{Out: &out, Err: &errOut},
		filepath.Join(r.State().Bin, "berth"), "trace", name, "-n", metav1.NamespaceDefault, "-o", "json",
		"--cgroup-root", "/"+r.node.Cgroup())
	// Exit code 1 means that sources disagree.
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		t.Fatalf("trace pod %s: %v\n%s", name, err, errOut.String())
	}
	found := &v1alpha1.Trace{}
	if err := json.Unmarshal(out.Bytes(), found); err != nil {
		t.Fatalf("read trace of pod %s: %v\n%s%s", name, err, out.String(), errOut.String())
	}
	return found
}

// testInitContainers checks that a container has the GPUs that the init container before it had, and that a sidecar,
// which runs beside the others, has its own. Then it deletes the checkpoint: because the init container does not run,
// the kubelet requests GPUs for it again as if for a new pod. The pod then holds more than the scheduler counts for it,
// and the surplus must not attract pods that would be refused. (If the kubelet admits the pod before it knows the
// resource, it requests nothing and nothing changes.)
func testInitContainers(t *testing.T, r *rig) {
	app := podWithGPUs("with-init", 2)
	first := *app.Spec.Containers[0].DeepCopy()
	first.Name, first.Args = "first", []string{"devices"}
	app.Spec.InitContainers = []corev1.Container{first}
	beside := podWithGPUs("with-sidecar", 2)
	always := corev1.ContainerRestartPolicyAlways
	sidecar := corev1.Container{Name: "sidecar", Image: sandbox.WorkloadImage, Args: []string{"sleep"}, RestartPolicy: &always}
	requestGPUs(&sidecar, 1)
	beside.Spec.InitContainers = []corev1.Container{sidecar}

	pods := r.run(t, app, beside)
	app, beside = pods[0], pods[1]
	held := r.held(t, pods...)
	log, err := r.PodLogs(t.Context(), app.Namespace, app.Name, "first")
	if err != nil {
		t.Fatal(err)
	}
	if used := minors(t, log); !slices.Equal(used, held[app.Name]) {
		t.Errorf("the init container had the GPUs %v, the container after it has %v; want the same", used, held[app.Name])
	}
	held["sidecar"] = r.gpusIn(t, beside, "sidecar")
	if len(held["sidecar"]) != 1 {
		t.Errorf("the sidecar has the GPUs %v, want one", held["sidecar"])
	}
	r.waitHolders(t, map[string]int{app.Name: 2, beside.Name: 3})

	r.restartKubelet(t, os.Remove)
	r.checkUntouched(t, app, held[app.Name])
	offered := nodeGPUs - r.rememberedFor(t, app)
	t.Logf("after the checkpoint was lost %d GPUs stay healthy", offered)
	r.waitAllocatable(t, offered)
	r.waitNodeStatus(t, nodeGPUs, int64(offered))
	rest := r.run(t, podWithGPUs("rest", offered-2-3))[0]
	held[rest.Name] = r.gpusIn(t, rest, "main")
	checkOnce(t, held)
	r.checkTrace(t, app, held[app.Name])
	r.checkTrace(t, beside, slices.Concat(held[beside.Name], held["sidecar"]))
}

// rememberedFor returns how many GPUs the kubelet's checkpoint has for a pod.
func (r *rig) rememberedFor(t testing.TB, pod *corev1.Pod) int {
	t.Helper()
	checkpoint, err := kubelet.ReadCheckpoint(r.node.KubeletDir())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, a := range checkpoint.Assignments {
		for _, id := range a.DeviceIDs {
			if a.PodUID == string(pod.UID) {
				ids[id] = true
			}
		}
	}
	return len(ids)
}

// testFreeAgain checks two kinds of pods that still exist and hold nothing any more. One has finished. The other was
// rejected after it had got its GPUs: the kubelet allocates devices before it counts CPUs, and this pod bypasses the
// scheduler and requests too many CPUs. A pod that replaces one of the same name is also a different pod.
func testFreeAgain(t *testing.T, r *rig) {
	done, big := podWithGPUs("done", 3, "devices"), podWithGPUs("too-big", 4)
	big.Spec.NodeName = r.node.Name()
	big.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	t.Cleanup(func() { r.cleanUp(t, done, big) })
	ctx := timeout(t, 30*time.Second)
	for _, pod := range []*corev1.Pod{done, big} {
		if _, err := r.CreatePod(ctx, pod); err != nil {
			t.Fatal(err)
		}
	}
	big, err := r.WaitPhase(ctx, metav1.NamespaceDefault, big.Name, corev1.PodFailed)
	if err != nil {
		t.Fatal(err)
	}
	if big.Status.Reason != "OutOfcpu" {
		t.Fatalf("pod %s failed because of %s: %s; want OutOfcpu", big.Name, big.Status.Reason, big.Status.Message)
	}
	if _, err = r.WaitPhase(ctx, metav1.NamespaceDefault, done.Name, corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r.waitHolders(t, nil)
	t.Logf("the GPUNode shows all GPUs as free %s after a pod has finished", ms(time.Since(start)))
	all := r.run(t, podWithGPUs("all", nodeGPUs))[0]
	checkFull(t, r.held(t, all))
	r.waitHolders(t, map[string]int{"all": nodeGPUs})
	for name, phase := range map[string]corev1.PodPhase{done.Name: corev1.PodSucceeded, big.Name: corev1.PodFailed} {
		if found := r.trace(t, name); len(found.Pods) != 1 || found.Pods[0].Phase != string(phase) {
			t.Errorf("trace of pod %s, which has %s: %+v", name, phase, found.Pods)
		}
	}

	if err := r.remove(timeout(t, 30*time.Second), all); err != nil {
		t.Fatal(err)
	}
	pods := r.run(t, podWithGPUs(all.Name, 5), podWithGPUs("rest", nodeGPUs-5))
	if pods[0].UID == all.UID {
		t.Fatal("the pod was not replaced by another one")
	}
	held := r.held(t, pods...)
	checkFull(t, held)
	r.checkTrace(t, pods[0], held[all.Name])
	r.waitHolders(t, map[string]int{all.Name: 5, "rest": nodeGPUs - 5})
}

// waitHolders waits until the node's GPUNode names these pods as holders and no other, each with this number of GPUs.
func (r *rig) waitHolders(t testing.TB, want map[string]int) {
	t.Helper()
	waitUntil(t, 15*time.Second, fmt.Sprintf("the GPUNode has the holders %v", want), func(ctx context.Context) error {
		node, err := r.gpuNode(ctx)
		if err != nil {
			return err
		}
		got := map[string]int{}
		for _, d := range node.Status.Devices {
			for _, h := range d.Holders {
				got[h.Pod]++
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

func (r *rig) gpuNode(ctx context.Context) (*v1alpha1.GPUNode, error) {
	return gpuNodeOf(ctx, r.Cluster, r.node.Name())
}

// gpuNodeOf returns the GPUNode of a node.
func gpuNodeOf(ctx context.Context, c *sandbox.Cluster, name string) (*v1alpha1.GPUNode, error) {
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		return nil, err
	}
	object, err := client.Resource(v1alpha1.GPUNodes()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node := &v1alpha1.GPUNode{}
	return node, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, node)
}

// testOrphan deletes a pod by force while its process does not end. No source lists it any more, but its GPUs must not
// be free until the process has ended.
func testOrphan(t *testing.T, r *rig) {
	stuck := r.run(t, podWithGPUs("stuck", 2))[0]
	held := r.held(t, stuck)
	// With a shim that does not respond, the runtime cannot kill the container.
	resume := r.freezeShim(t, stuck)
	deleted := time.Now()
	none := int64(0)
	if err := r.Client().CoreV1().Pods(stuck.Namespace).Delete(t.Context(), stuck.Name,
		metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	rest := r.run(t, podWithGPUs("rest", nodeGPUs-2))[0]
	held[rest.Name] = r.gpusIn(t, rest, "main")
	checkFull(t, held)
	r.waitAllocatable(t, nodeGPUs-2)
	t.Logf("the GPUs of a pod deleted by force are not advertised %s later", ms(time.Since(deleted)))
	r.waitNodeStatus(t, nodeGPUs, nodeGPUs-2)
	r.waitHolders(t, map[string]int{"stuck": 2, "rest": nodeGPUs - 2})

	late := podWithGPUs("late", 2)
	t.Cleanup(func() { r.cleanUp(t, late) })
	if _, err := r.CreatePod(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	r.waitUnschedulable(t, late)
	resumed := time.Now()
	resume()
	late, err := r.WaitPhase(timeout(t, 30*time.Second), metav1.NamespaceDefault, late.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a pod has them %s after the process could be killed", ms(time.Since(resumed)))
	if left, err := processesOf(stuck.Status.ContainerStatuses[0].ContainerID); err != nil || len(left) > 0 {
		t.Errorf("the deleted pod still has processes: %v, %v", left, err)
	}
	checkFull(t, r.held(t, rest, late))
}

// freezeShim stops the shim above a pod's containers until the returned function is called, at the latest when the test
// ends.
func (r *rig) freezeShim(t testing.TB, pod *corev1.Pod) (resume func()) {
	t.Helper()
	processes, err := processesOf(pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil || len(processes) == 0 {
		t.Fatalf("processes of pod %s: %v, %v", pod.Name, processes, err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", processes[0].PID))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	shim := 0
	if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &shim); err != nil || shim <= 1 {
		t.Fatalf("find the parent of process %d: %d, %v", processes[0].PID, shim, err)
	}
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = func() { _ = syscall.Kill(shim, syscall.SIGCONT) }
	t.Cleanup(resume)
	return resume
}
