package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// walk follows a pod's "nvidia.com/gpu: 1" to a GPU and back, one step per source; each step has the results of the
// earlier ones.
type walk struct {
	*rig
	pod    *corev1.Pod
	before int64 // size of the kubelet's log before the pod
	uuid   string
	minor  uint32
}

// TestWalk follows an allocation without Berth's tools, as an administrator would: kubectl, the kubelet's log, its
// directory, and the container.
func TestWalk(t *testing.T) {
	onSharedCluster(t)
	w := &walk{rig: theNode(t)}
	w.before = w.kubeletLogSize(t)
	w.pod = w.run(t, podWithGPUs("gpu-inspect", 1))[0]
	for _, step := range []struct {
		name string
		run  func(*testing.T, *walk)
	}{
		{"NodeCapacity", walkCapacity},
		{"PodObjectShowsTheCountOnly", walkPodObject},
		{"Sockets", walkSockets},
		{"Registration", walkRegistration},
		{"AllocationInTheLog", walkLog},
		{"Checkpoint", walkCheckpoint},
		{"DeviceNodes", walkDevices},
		{"Environment", walkEnvironment},
		{"Mounts", walkMounts},
		{"PodResources", walkPodResources},
		{"AgentRemoved", walkAgentRemoved},
		{"CheckpointCorrupted", walkCorrupted},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			t.FailNow()
		}
	}
}

// walkCapacity checks what the scheduler sees.
func walkCapacity(t *testing.T, w *walk) { w.waitNodeStatus(t, nodeGPUs, nodeGPUs) }

// walkPodObject checks that the pod's spec names the number of GPUs and not which. Its status names them since
// Kubernetes 1.36, which is one of the sources of TestTrace.
func walkPodObject(t *testing.T, w *walk) {
	pod, err := w.Client().CoreV1().Pods(w.pod.Namespace).Get(t.Context(), w.pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if limit := pod.Spec.Containers[0].Resources.Limits[gpuResource]; limit.String() != "1" {
		t.Errorf("the pod's limit is %s, want 1", limit.String())
	}
	blob, err := json.Marshal(struct{ Meta, Spec any }{pod.ObjectMeta, pod.Spec})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(blob, []byte("GPU-")) {
		t.Errorf("the pod's spec names a GPU:\n%s", blob)
	}
}

// walkSockets checks the kubelet's registration socket, and one of the agent.
func walkSockets(t *testing.T, w *walk) {
	if own := w.agentSockets(t); len(own) != 1 {
		t.Errorf("sockets of the agent in device-plugins: %v, want one", own)
	}
	if info, err := os.Stat(filepath.Join(w.node.KubeletDir(), "device-plugins", "kubelet.sock")); err != nil ||
		info.Mode()&os.ModeSocket == 0 {
		t.Errorf("the kubelet's registration socket: %v, %v", info, err)
	}
}

// walkRegistration checks the registration of the agent with the kubelet.
func walkRegistration(t *testing.T, w *walk) {
	t.Log(w.waitKubeletLog(t, 0, "Got registration request from device plugin with resource", `resourceName="nvidia.com/gpu"`))
}

// walkLog checks the five log lines of an allocation, in order, and logs how long they took.
func walkLog(t *testing.T, w *walk) {
	steps := [][]string{
		{`"Looking for needed resources"`, `resourceName="nvidia.com/gpu"`, `pod="default/gpu-inspect"`, "needed=1"},
		{`"Need devices to allocate for pod"`, "deviceNumber=1", string(w.pod.UID)},
		{`"Issuing a GetPreferredAllocation call for container"`, string(w.pod.UID)},
		{`"Making allocation request for device plugin"`, `pod="default/gpu-inspect"`},
		{`"Checkpoint file written"`, `checkpoint="kubelet_internal_checkpoint"`},
	}
	var times []time.Time
	for line := range bytes.Lines(w.kubeletLog(t, w.before)) {
		if len(times) == len(steps) || !hasAll(string(line), steps[len(times)]) {
			continue
		}
		at, err := logTime(string(line))
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, at)
		if match := regexp.MustCompile(`devices=\["([^"]+)"\]`).FindSubmatch(line); match != nil {
			w.uuid = string(match[1])
		}
		t.Log(strings.TrimSpace(string(line)))
	}
	if len(times) < len(steps) {
		t.Fatalf("the kubelet's log has %d of the %d lines of the allocation; the next is %q", len(times), len(steps), steps[len(times)])
	}
	if w.uuid == "" {
		t.Fatal("the kubelet's log names no device")
	}
	w.minor = uint32(gpuOf(t, hardware(t, w.node.SimDir()), w.uuid).Minor)
	t.Logf("from the request to the written checkpoint: %s", times[len(times)-1].Sub(times[0]))
}

func hasAll(line string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
}

// logTime parses the time of a line of klog: Lmmdd hh:mm:ss.uuuuuu.
func logTime(line string) (time.Time, error) {
	const layout = "0102 15:04:05.000000"
	if len(line) <= len(layout) {
		return time.Time{}, fmt.Errorf("the line has no time: %q", line)
	}
	return time.Parse(layout, line[1:len(layout)+1])
}

// walkCheckpoint checks that the kubelet's own file has the UUID, and the agent's response in it.
func walkCheckpoint(t *testing.T, w *walk) {
	got := w.rig.assignment(t, w.pod)
	if !slices.Equal(got.uuids, []string{w.uuid}) {
		t.Errorf("the checkpoint gives %v, the log %s", got.uuids, w.uuid)
	}
	names := got.answer.GetCdiDevices()
	if len(names) != 1 || names[0].GetName() != "k8s.berth.dev/gpu="+w.uuid {
		t.Errorf("CDI devices of AllocResp: %v, want k8s.berth.dev/gpu=%s", names, w.uuid)
	}
	if value := got.answer.GetEnvs()["BERTH_DEVICES_NVIDIA_COM_GPU"]; value != w.uuid {
		t.Errorf("environment of AllocResp: %v, want BERTH_DEVICES_NVIDIA_COM_GPU=%s", got.answer.GetEnvs(), w.uuid)
	}
	blob, err := os.ReadFile(w.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	_, registered, err := entries(blob)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, gpuInfo := range hardware(t, w.node.SimDir()).GPUs {
		all = append(all, gpuInfo.UUID)
	}
	if !slices.Equal(slices.Sorted(slices.Values(registered[gpuResource])), slices.Sorted(slices.Values(all))) {
		t.Errorf("registered devices: %v, want those of the hardware: %v", registered[gpuResource], all)
	}
}

// walkDevices checks the device nodes, which are not in the pod spec.
func walkDevices(t *testing.T, w *walk) {
	names := strings.Fields(execIn(t, w.Cluster, w.pod, "ls", "/dev"))
	for _, want := range []string{"nvidia" + strconv.Itoa(int(w.minor)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		if !slices.Contains(names, want) {
			t.Errorf("/dev in the container has no %s: %v", want, names)
		}
	}
	w.checkUntouched(t, w.pod, []uint32{w.minor})
}

// walkEnvironment checks the UUID that the agent has set; NVIDIA_VISIBLE_DEVICES keeps an NVIDIA runtime from adding
// its own devices.
func walkEnvironment(t *testing.T, w *walk) {
	env := w.envIn(t, w.pod)
	for name, want := range map[string]string{"BERTH_DEVICES_NVIDIA_COM_GPU": w.uuid, "NVIDIA_VISIBLE_DEVICES": "void"} {
		if env[name] != want {
			t.Errorf("%s=%s in the container, want %s", name, env[name], want)
		}
	}
}

// walkMounts checks the driver's files.
func walkMounts(t *testing.T, w *walk) {
	w.checkDriver(t, w.pod, true)
	count := 0
	for _, point := range w.mountsIn(t, w.pod) {
		if strings.Contains(point, "nvidia") || strings.Contains(point, "libcuda") {
			count++
		}
	}
	t.Logf("%d mount points of the driver", count)
}

// walkPodResources checks the kubelet's other source of the same information.
func walkPodResources(t *testing.T, w *walk) {
	pod, err := kubelet.NewPodResources(w.node.KubeletDir()).Get(t.Context(), w.pod.Namespace, w.pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Containers) != 1 || len(pod.Containers[0].Devices) != 1 ||
		!slices.Equal(pod.Containers[0].Devices[0].IDs, []string{w.uuid}) {
		t.Errorf("PodResources: %+v, want %s", pod, w.uuid)
	}
}

// walkAgentRemoved checks that a container keeps its device nodes without the agent, and that no container gets new
// ones until an agent has registered, on a socket of its own.
func walkAgentRemoved(t *testing.T, w *walk) {
	from, old := w.kubeletLogSize(t), w.agentSockets(t)
	if err := w.mode.Kill(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	ended, err := logTime(w.waitKubeletLog(t, from, "ListAndWatch ended unexpectedly for device plugin", gpuResource))
	if err != nil {
		t.Fatal(err)
	}
	w.checkUntouched(t, w.pod, []uint32{w.minor})
	// The kubelet keeps the resource's capacity for five minutes.
	w.waitNodeStatus(t, nodeGPUs, 0)
	pending := podWithGPUs("gpu-pending-test", 1)
	t.Cleanup(func() { w.cleanUp(t, pending) })
	if _, err := w.CreatePod(t.Context(), pending); err != nil {
		t.Fatal(err)
	}
	w.waitUnschedulable(t, pending)

	from = w.kubeletLogSize(t)
	if err := w.mode.Start(timeout(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	again, err := logTime(w.waitKubeletLog(t, from, "Got registration request from device plugin with resource", gpuResource))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the old stream ended and a new agent registered %s later", again.Sub(ended))
	if now := w.agentSockets(t); len(now) != 1 || slices.Equal(now, old) {
		t.Errorf("sockets of the agent: %v before, %v after; want one, and another one", old, now)
	}
	if _, err := w.WaitPhase(timeout(t, 30*time.Second), pending.Namespace, pending.Name, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}
}

// walkCorrupted checks that a kubelet that cannot read its checkpoint continues without it, and uses it again when the
// file is restored.
func walkCorrupted(t *testing.T, w *walk) {
	backup, err := os.ReadFile(w.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	from := w.kubeletLogSize(t)
	w.restartKubelet(t, func(path string) error { return os.WriteFile(path, []byte("CORRUPTED\n"), 0o600) })
	t.Log(w.waitKubeletLog(t, from, "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date",
		"invalid character 'C' looking for beginning of value"))
	w.checkUntouched(t, w.pod, []uint32{w.minor})
	w.waitForgotten(t)

	w.restartKubelet(t, func(path string) error { return os.WriteFile(path, backup, 0o600) })
	waitUntil(t, 15*time.Second, "PodResources names the pod's GPU again", func(ctx context.Context) error {
		pod, err := kubelet.NewPodResources(w.node.KubeletDir()).Get(ctx, w.pod.Namespace, w.pod.Name)
		if err != nil {
			return err
		}
		if len(pod.Containers) != 1 || len(pod.Containers[0].Devices) != 1 ||
			!slices.Equal(pod.Containers[0].Devices[0].IDs, []string{w.uuid}) {
			return fmt.Errorf("it has %+v", pod)
		}
		return nil
	})
	w.checkUntouched(t, w.pod, []uint32{w.minor})
	walkCheckpoint(t, w)
}

// waitForgotten waits until the kubelet has written a checkpoint without the pod, and the agent has published that the
// container still runs.
func (w *walk) waitForgotten(t testing.TB) {
	t.Helper()
	waitUntil(t, 15*time.Second, "the kubelet has forgotten the pod and the GPUNode has not", func(ctx context.Context) error {
		blob, err := os.ReadFile(w.checkpointPath())
		if err != nil {
			return err
		}
		all, _, err := entries(blob)
		if err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
		for _, e := range all {
			if e.PodUID == string(w.pod.UID) {
				return errors.New("the checkpoint still has it")
			}
		}
		node, err := w.gpuNode(ctx)
		if err != nil {
			return err
		}
		for _, d := range node.Status.Devices {
			for _, h := range d.Holders {
				if d.UUID == w.uuid && h.PodUID == string(w.pod.UID) {
					return nil
				}
			}
		}
		return fmt.Errorf("%s has no holder", w.uuid)
	})
}
