package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The paths of the lab's agent configuration.
const (
	configMap  = "agent-configs"
	layoutsMap = "mig-layouts"

	labelConfig       = "berth.dev/config"
	labelNVIDIAConfig = "nvidia.com/device-plugin.config"
	labelMIG          = "nvidia.com/mig.config"
	labelMIGState     = "nvidia.com/mig.config.state"

	// plainConfig advertises every GPU whole, and reads the layouts from a ConfigMap.
	plainConfig = "migConfigMap: " + agentNamespace + "/" + layoutsMap + "\n"
)

// lab is a sandbox of its own whose agents follow ConfigMaps and labels, beside a supervisor of MPS daemons.
type lab struct {
	*rig
	machine *sim.Machine
}

func newLab(t testing.TB, o sandbox.Options) *lab {
	t.Helper()
	needMachine(t)
	manifest := filepath.Join(t.TempDir(), "configs.yaml")
	text := fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[2]s, namespace: %[1]s}
data:
  default: |
    %[4]s
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[3]s, namespace: %[1]s}
data:
  config.yaml: |
    version: v1
    mig-configs:
      nothing-partitioned:
      - {devices: all, mig-enabled: false}
`, agentNamespace, configMap, layoutsMap, strings.ReplaceAll(agentSettings(plainConfig), "\n", "\n    "))
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Manifests = []string{manifest}
	o.Agent = sandbox.AgentOptions{Args: []string{"--config-map=" + agentNamespace + "/" + configMap}}
	c := ownCluster(t, o)
	l := &lab{rig: newRig(c)}
	var err error
	if l.machine, err = sim.Open(l.node.SimDir()); err != nil {
		t.Fatal(err)
	}
	if err := l.node.StartMPS(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// agentSettings returns a complete configuration file for the agent.
func agentSettings(settings string) string {
	return "apiVersion: berth.dev/v1alpha1\nkind: AgentConfig\n" + settings
}

// reset restores eight whole GPUs on the node, whatever the test before has left.
func (l *lab) reset(t testing.TB) {
	t.Helper()
	l.label(t, map[string]string{labelConfig: "", labelNVIDIAConfig: "", labelMIG: "all-disabled"})
	l.setConfigs(t, map[string]string{"default": plainConfig})
	l.waitKubelet(t, map[string]int{gpuResource: nodeGPUs})
	l.waitState(t, "success")
	l.label(t, map[string]string{labelMIG: ""})
	l.waitState(t, "")
}

// setConfigs replaces the keys of the ConfigMap of configurations, and returns when it did so.
func (l *lab) setConfigs(t testing.TB, settings map[string]string) time.Time {
	t.Helper()
	data := map[string]string{}
	for key, text := range settings {
		data[key] = agentSettings(text)
	}
	return l.setMap(t, configMap, data)
}

func (l *lab) setMap(t testing.TB, name string, data map[string]string) time.Time {
	t.Helper()
	client := l.Client().CoreV1().ConfigMaps(agentNamespace)
	now, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Data = data
	at := time.Now()
	if _, err := client.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return at
}

// label sets labels of the Node, and removes those whose value is empty.
func (l *lab) label(t testing.TB, labels map[string]string) time.Time {
	t.Helper()
	values := map[string]any{}
	for name, value := range labels {
		values[name] = value
		if value == "" {
			values[name] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": values}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	if _, err := l.Client().CoreV1().Nodes().Patch(t.Context(), l.node.Name(), types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	return at
}

func (l *lab) nodeObject(ctx context.Context) (*corev1.Node, error) {
	return l.Client().CoreV1().Nodes().Get(ctx, l.node.Name(), metav1.GetOptions{})
}

// waitState waits until the Node's label has the state of its MIG layout; empty for no label.
func (l *lab) waitState(t testing.TB, want string) {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("the Node's label %s is %q", labelMIGState, want), func(ctx context.Context) error {
		node, err := l.nodeObject(ctx)
		if err == nil && node.Labels[labelMIGState] != want {
			err = fmt.Errorf("it is %q", node.Labels[labelMIGState])
		}
		return err
	})
}

// healthyIDs returns the healthy devices of each resource in the kubelet, sorted.
func (l *lab) healthyIDs(ctx context.Context) (map[string][]string, error) {
	devices, err := kubelet.NewPodResources(l.node.KubeletDir()).Allocatable(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, d := range devices {
		all[d.Resource] = append(all[d.Resource], d.IDs...)
	}
	for _, ids := range all {
		slices.Sort(ids)
	}
	return all, nil
}

func counts(offers map[string][]string) map[string]int {
	n := map[string]int{}
	for name, ids := range offers {
		if len(ids) > 0 {
			n[name] = len(ids)
		}
	}
	return n
}

// waitKubelet waits until the kubelet has exactly these numbers of healthy devices, and returns when that was.
func (l *lab) waitKubelet(t testing.TB, want map[string]int) time.Time {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("the kubelet has %v", want), func(ctx context.Context) error {
		now, err := l.healthyIDs(ctx)
		if err == nil && !maps.Equal(counts(now), want) {
			err = fmt.Errorf("it has %v", counts(now))
		}
		return err
	})
	return time.Now()
}

// waitAllocatableOf waits until the Node's status, which the scheduler uses, has exactly these allocatable devices of
// NVIDIA's resource names.
func (l *lab) waitAllocatableOf(t testing.TB, want map[string]int) time.Time {
	t.Helper()
	waitUntil(t, 40*time.Second, fmt.Sprintf("the Node's status has %v", want), func(ctx context.Context) error {
		node, err := l.nodeObject(ctx)
		if err != nil {
			return err
		}
		got := map[string]int{}
		for name, n := range node.Status.Allocatable {
			if strings.HasPrefix(string(name), "nvidia.com/") && !n.IsZero() {
				got[string(name)] = int(n.Value())
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
	return time.Now()
}

// waitCondition waits until a condition of the GPUNode has the status and its message contains all texts, and returns
// when that was, with the message.
func (l *lab) waitCondition(t testing.TB, kind string, status metav1.ConditionStatus, texts ...string) (time.Time, string) {
	t.Helper()
	message := ""
	waitUntil(t, 40*time.Second, fmt.Sprintf("condition %s of the GPUNode is %s with %q", kind, status, texts),
		func(ctx context.Context) error {
			node, err := l.gpuNode(ctx)
			if err != nil {
				return err
			}
			now := meta.FindStatusCondition(node.Status.Conditions, kind)
			if now == nil {
				return fmt.Errorf("it has only %v", node.Status.Conditions)
			}
			message = now.Message
			if now.Status != status || !hasAll(message, texts) {
				return fmt.Errorf("it is %s: %s", now.Status, message)
			}
			return nil
		})
	return time.Now(), message
}

// waitEvent waits until an event about the Node has the reason and contains all texts, and returns when that was.
func (l *lab) waitEvent(t testing.TB, reason string, texts ...string) time.Time {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("an event about the Node has %s %q", reason, texts), func(ctx context.Context) error {
		events, err := l.Client().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + l.node.Name(),
		})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.Reason == reason && hasAll(e.Message, texts) {
				return nil
			}
			said = append(said, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("they say:\n%s", strings.Join(said, "\n"))
	})
	return time.Now()
}

// agentState contains the fields of the agent's /debug/state that these tests read.
type agentState struct {
	Ready    string
	Holdings []struct {
		Key    gpu.DeviceKey
		Holder struct{ Kind, ID, Pod, PodUID string }
	}
	MIG []struct {
		Index   int
		State   string
		Message string
	}
	MPS []struct {
		GPU   string
		State string
		PID   int
	}
	Config struct{ Source, Refused string }
	Plugin []pluginStats `json:"devicePlugin"`
}

// pluginStats are the counts that change when the agent does something for a resource.
type pluginStats struct {
	Resource      string
	Registered    bool
	Devices       int
	Healthy       int
	Registrations uint64
	ListsSent     uint64
}

// page reads a page of the node's only agent.
func (l *lab) page(ctx context.Context, path string) ([]byte, error) {
	agents, err := l.node.Agents(ctx)
	if err != nil {
		return nil, err
	}
	if len(agents) != 1 {
		return nil, fmt.Errorf("%d agents run on the node, want one", len(agents))
	}
	return pages.Client{Socket: l.node.AgentSocket(agents[0])}.Get(ctx, path)
}

func (l *lab) agentState(ctx context.Context) (*agentState, error) {
	text, err := l.page(ctx, "/debug/state")
	if err != nil {
		return nil, err
	}
	state := &agentState{}
	return state, json.Unmarshal(text, state)
}

// waitProblem waits until the agent's metrics report the problem, or do not.
func (l *lab) waitProblem(t testing.TB, code string, want bool) {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("the metric of problem %s is there: %v", code, want), func(ctx context.Context) error {
		text, err := l.page(ctx, "/metrics")
		if err != nil {
			return err
		}
		if got := bytes.Contains(text, []byte(`berth_problem{code="`+code+`"} 1`)); got != want {
			return fmt.Errorf("it is there: %v", got)
		}
		return nil
	})
}

// gpuInfo describes the GPU with an index according to the hardware.
func (l *lab) gpuInfo(t testing.TB, index int) sim.GPUDescription {
	t.Helper()
	for _, gpuInfo := range hardware(t, l.node.SimDir()).GPUs {
		if gpuInfo.Index == index {
			return gpuInfo
		}
	}
	t.Fatalf("the hardware has no GPU %d", index)
	return sim.GPUDescription{}
}

// podRequesting is a pod whose one container requests devices of a resource; without a command it beats.
func podRequesting(name, of string, count int, args ...string) *corev1.Pod {
	if len(args) == 0 {
		args = []string{"beat"}
	}
	return podWith(name, of, int64(count), args...)
}

// witness is a running pod that must continue undisturbed.
type witness struct {
	pod     *corev1.Pod
	process kubelet.Process
}

// watchPods records the state by which checkUndisturbed decides whether pods continued.
func (l *lab) watchPods(t testing.TB, pods ...*corev1.Pod) []witness {
	t.Helper()
	var all []witness
	for _, pod := range pods {
		all = append(all, witness{pod, l.processOf(t, pod)})
	}
	return all
}

// processOf returns the process of a pod's container. Right after the start runc's own can be beside it.
func (l *lab) processOf(t testing.TB, pod *corev1.Pod) kubelet.Process {
	t.Helper()
	var found []kubelet.Process
	waitUntil(t, 10*time.Second, "the container of pod "+pod.Name+" is one process", func(context.Context) error {
		var err error
		found, err = processesOf("containerd://" + containerID(pod))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("it is %+v", found)
		}
		return err
	})
	return found[0]
}

// checkUndisturbed checks that each pod has the same container and process as before, and that one that beats did so
// without interruption and with the same devices. It returns the longest pause.
func (l *lab) checkUndisturbed(t testing.TB, all ...witness) {
	t.Helper()
	for _, w := range all {
		now, err := l.Client().CoreV1().Pods(w.pod.Namespace).Get(t.Context(), w.pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		was, is := w.pod.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if now.UID != w.pod.UID || now.Status.Phase != corev1.PodRunning || is.ContainerID != was.ContainerID || is.RestartCount != 0 {
			t.Errorf("pod %s was container %s and is %s with %d restarts, %s", now.Name, was.ContainerID,
				is.ContainerID, is.RestartCount, now.Status.Phase)
		}
		if process := l.processOf(t, now); process.PID != w.process.PID || process.StartTime != w.process.StartTime {
			t.Errorf("pod %s was process %+v and is %+v", now.Name, w.process, process)
		}
		if w.pod.Spec.Containers[0].Args[0] == "beat" {
			l.checkBeats(t, w.pod)
		}
	}
}

// beats returns the lines that a pod has printed so far.
func (l *lab) beats(t testing.TB, pod *corev1.Pod) []string {
	t.Helper()
	log := ""
	waitUntil(t, 10*time.Second, "pod "+pod.Name+" beats", func(ctx context.Context) error {
		var err error
		if log, err = l.PodLogs(ctx, pod.Namespace, pod.Name, "main"); err == nil && !strings.Contains(log, "\n") {
			err = errors.New("it has printed nothing yet")
		}
		return err
	})
	lines := strings.Split(log, "\n")
	return lines[:len(lines)-1] // the text after the last newline may be an incomplete line
}

// checkBeats checks that the numbers of the beats continue without a gap from 1, and that at each beat the same devices
// could be opened, which fails only because there is no driver.
func (l *lab) checkBeats(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	_, first, _ := strings.Cut(l.beats(t, pod)[0], " ")
	for i, line := range l.beats(t, pod) {
		number, answers, _ := strings.Cut(line, " ")
		if number != strconv.Itoa(i+1) || answers != first {
			t.Errorf("beat %d of pod %s is %q, want number %d with %q", i+1, pod.Name, line, i+1, first)
			return
		}
	}
	for answer := range strings.FieldsSeq(first) {
		if !strings.HasSuffix(answer, "=ENXIO") {
			t.Errorf("pod %s: %s, want ENXIO: allowed, and without hardware", pod.Name, answer)
		}
	}
}

// nodesOf returns the device nodes of a pod that identify its part of a GPU: the GPUs' minor numbers and those of the
// MIG capabilities.
func (l *lab) nodesOf(t testing.TB, pod *corev1.Pod) (gpuInfos, capabilities []string) {
	t.Helper()
	for answer := range strings.FieldsSeq(execIn(t, l.Cluster, pod, "ls", "/dev")) {
		if match := gpuNode.FindStringSubmatch("/dev/" + answer); match != nil {
			gpuInfos = append(gpuInfos, match[1])
		}
	}
	if len(gpuInfos) > 0 && strings.Contains(execIn(t, l.Cluster, pod, "ls", "/dev"), "nvidia-caps") {
		capabilities = strings.Fields(execIn(t, l.Cluster, pod, "ls", "/dev/nvidia-caps"))
	}
	return gpuInfos, capabilities
}
