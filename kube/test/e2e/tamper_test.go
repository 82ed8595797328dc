package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/kubelet"
)

// lie falsifies a copy of one of the node's sources: it shows the pod as the holder of the GPU to, which no pod holds,
// in place of the GPU from.
type lie struct {
	*tracer
	from, to sim.GPUDescription
}

// testTraceDisagrees checks that, whichever source differs from the others, berth trace reports that first, with what
// each source has, and exits with code 1.
func testTraceDisagrees(t *testing.T, w *tracer) {
	l := &lie{tracer: w}
	machine := hardware(t, l.node.SimDir())
	l.from = gpuOf(t, machine, l.uuids[0])
	l.to = machine.GPUs[slices.IndexFunc(machine.GPUs, func(g sim.GPUDescription) bool { return !slices.Contains(l.uuids, g.UUID) })]
	to, nothing := l.to.UUID, "nothing"
	for title, test := range map[string]struct {
		tamper func(*lie, testing.TB) map[string]string // sources to replace
		code   string                                   // part of the headline
		source string                                   // the only source with the wrong value
		value  string                                   // the wrong value
	}{
		"checkpoint":                             {(*lie).inCheckpoint, "DevicesDiffer", "checkpoint", to},
		"checkpoint forgot":                      {(*lie).forgotten, "DevicesDiffer", "checkpoint", nothing},
		"checkpoint has one less":                {(*lie).oneLess, "DevicesDiffer", "checkpoint", l.uuids[1]},
		"checkpoint has one less than requested": {(*lie).oneLess, "DevicesDiffer", "pod spec", "2 requested"},
		"AllocResp":                              {(*lie).inAnswer, "DevicesDiffer", "AllocResp", to},
		"PodResources":                           {(*lie).inPodResources, "DevicesDiffer", "PodResources", to},
		"checkpoint has a rival":                 {(*lie).rival, "TwoHolders", "checkpoint", "held by " + rivalUID + ", container main"},
		"pod status":                             {(*lie).inPodStatus, "DevicesDiffer", "pod status", to},
		"ledger":                                 {(*lie).inLedger, "DevicesDiffer", "ledger", to},
		"GPUNode":                                {(*lie).inGPUNode, "DevicesDiffer", "GPUNode", to},
		"GPUNode describes":                      {(*lie).describedInGPUNode, "FactDiffers", "GPUNode", "0000:ff:00.0"},
		"CDI spec opens another":                 {(*lie).inCDISpec, "DeviceNodeDiffers", "CDI spec", fmt.Sprintf("/dev/nvidia%d", l.to.Minor)},
		"CDI spec without the name":              {(*lie).outOfCDISpec, "CDINameUnknown", "CDI spec", "no device of that name"},
		"OCI spec":                               {(*lie).inOCISpec, "DevicesDiffer", "OCI spec", to},
		"container":                              {(*lie).inContainer, "DevicesDiffer", "container", to},
		"NVML":                                   {(*lie).outOfNVML, "DeviceUnknown", "NVML", "no such device"},
		"another node": {func(*lie, testing.TB) map[string]string { return map[string]string{"--node-name": "node-9"} },
			"NodeDiffers", "PodResources", "node-9"},
	} {
		t.Run(title, func(t *testing.T) {
			places := test.tamper(l, t)
			l.checkHeadline(t, l.args(places, l.pod.Name), test.code, test.source, test.value)
			if test.source == "GPUNode" && test.code == "DevicesDiffer" {
				l.checkHeadline(t, []string{"trace", l.pod.Name, "--kubeconfig", l.KubeconfigPath()}, test.code, test.source, test.value)
			}
		})
	}
	t.Run("nothing false is left", func(t *testing.T) {
		l.waitPublished(t)
		// The agent was replaced meanwhile.
		places := map[string]string{"--agent": l.forwardAgent(t, func(state []byte) []byte { return state })}
		l.checkAgrees(t, l.berth(t, l.args(places, l.pod.Name, "-o", "json")...), holdSources)
	})
}

func (l *lie) checkHeadline(t testing.TB, args []string, code, source, value string) {
	t.Helper()
	got := l.berth(t, append(args, "-o", "json")...)
	if got.code != 1 {
		t.Errorf("exit code %d, want 1:\n%s%s", got.code, got.out, got.err)
	}
	found := decodeTrace(t, got)
	if len(found.Disagreements) == 0 || string(found.Disagreements[0].Code) != code {
		t.Fatalf("disagreements: %+v, want %s first", found.Disagreements, code)
	}
	said := false
	for _, d := range found.Disagreements {
		for _, c := range d.Statements {
			said = said || slices.Equal(kindsOf(c.Sources), []string{source}) && strings.Contains(c.Value, value)
		}
	}
	if !said {
		t.Errorf("no disagreement has %q from %q alone: %+v", value, source, found.Disagreements)
	}
	table := l.berth(t, args...)
	head, _, _ := strings.Cut(table.out, "\n")
	if want := "DISAGREE " + found.Disagreements[0].Message; table.code != 1 || !strings.HasPrefix(head, want) {
		t.Errorf("exit code %d and headline %q, want 1 and %q", table.code, head, want)
	}
	t.Log(strings.TrimSpace(head))
}

func (l *lie) entry(t testing.TB, all []checkpoint.PodDevicesEntry) *checkpoint.PodDevicesEntry {
	t.Helper()
	i := slices.IndexFunc(all, func(e checkpoint.PodDevicesEntry) bool { return e.PodUID == string(l.pod.UID) })
	if i < 0 {
		t.Fatal("the checkpoint has no entry of the pod")
	}
	return &all[i]
}

// changed creates a kubelet's directory with a changed checkpoint and the real PodResources.
func (l *lie) changed(t testing.TB, change func([]checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry) map[string]string {
	t.Helper()
	dir := l.copyCheckpoint(t, change)
	if err := os.Symlink(filepath.Join(l.node.KubeletDir(), "pod-resources"), filepath.Join(dir, "pod-resources")); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"--kubelet-dir": dir}
}

func (l *lie) inCheckpoint(t testing.TB) map[string]string {
	return l.changed(t, func(all []checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry {
		for _, ids := range l.entry(t, all).DeviceIDs {
			l.swap(ids)
		}
		return all
	})
}

// swap replaces the one GPU by the other.
func (l *lie) swap(ids []string) {
	for i, id := range ids {
		if id == l.from.UUID {
			ids[i] = l.to.UUID
		}
	}
}

func (l *lie) forgotten(t testing.TB) map[string]string {
	return l.changed(t, func(all []checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry {
		return slices.DeleteFunc(all, func(e checkpoint.PodDevicesEntry) bool { return e.PodUID == string(l.pod.UID) })
	})
}

func (l *lie) oneLess(t testing.TB) map[string]string {
	return l.changed(t, func(all []checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry {
		e := l.entry(t, all)
		for node, ids := range e.DeviceIDs {
			e.DeviceIDs[node] = slices.DeleteFunc(ids, func(id string) bool { return id == l.from.UUID })
		}
		return all
	})
}

func (l *lie) inAnswer(t testing.TB) map[string]string {
	return l.changed(t, func(all []checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry {
		e := l.entry(t, all)
		answer := &v1beta1.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, answer); err != nil {
			t.Fatal(err)
		}
		for _, d := range answer.CdiDevices {
			d.Name = strings.ReplaceAll(d.Name, l.from.UUID, l.to.UUID)
		}
		for name, value := range answer.Envs {
			answer.Envs[name] = strings.ReplaceAll(value, l.from.UUID, l.to.UUID)
		}
		var err error
		if e.AllocResp, err = proto.Marshal(answer); err != nil {
			t.Fatal(err)
		}
		return all
	})
}

// fakeKubelet answers Get with the real kubelet's answer, changed by a test.
type fakeKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.GetPodResourcesResponse
}

func (f *fakeKubelet) Get(context.Context, *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	return f.answer, nil
}

// inPodResources is a kubelet that answers for the pod with another GPU.
func (l *lie) inPodResources(t testing.TB) map[string]string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(l.node.KubeletDir(), "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).Get(t.Context(),
		&podresources.GetPodResourcesRequest{PodNamespace: l.pod.Namespace, PodName: l.pod.Name})
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range answer.PodResources.Containers {
		for _, devices := range container.Devices {
			l.swap(devices.DeviceIds)
		}
	}
	dir := l.copyCheckpoint(t, nil)
	if err := os.Mkdir(filepath.Join(dir, "pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "pod-resources", "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &fakeKubelet{answer: answer})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return map[string]string{"--kubelet-dir": dir}
}

// rivalUID is a pod that the checkpoint lists beside the one that has the GPU.
const rivalUID = "99999999-9999-9999-9999-999999999999"

func (l *lie) rival(t testing.TB) map[string]string {
	return l.changed(t, func(all []checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry {
		rival := *l.entry(t, all)
		rival.PodUID, rival.AllocResp = rivalUID, nil
		rival.DeviceIDs = checkpoint.DevicesPerNUMA{-1: {l.from.UUID}} // One device less: with equal devices it would be taken for the same pod.
		return append(all, rival)
	})
}

// inPodStatus changes the pod's status in the API, with the kubelet stopped, because the kubelet would correct it.
func (l *lie) inPodStatus(t testing.TB) map[string]string {
	t.Helper()
	if err := l.node.StopKubelet(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	l.changeStatus(t, t.Context(), l.from.UUID, l.to.UUID)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l.changeStatus(t, ctx, l.to.UUID, l.from.UUID)
		if err := errors.Join(l.node.StartKubelet(ctx), l.node.WaitReady(ctx)); err != nil {
			t.Error(err)
		}
		// A kubelet that has just started does not list pods yet.
		err := poll(ctx, "PodResources names the pod", func() error {
			_, err := kubelet.NewPodResources(l.node.KubeletDir()).Get(ctx, l.pod.Namespace, l.pod.Name)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return nil
}

func (l *lie) changeStatus(t testing.TB, ctx context.Context, from, to string) {
	t.Helper()
	pods := l.Client().CoreV1().Pods(l.pod.Namespace)
	pod, err := pods.Get(ctx, l.pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	for i := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
		resources := pod.Status.ContainerStatuses[0].AllocatedResourcesStatus[i].Resources
		for j := range resources {
			if resources[j].ResourceID == corev1.ResourceID(from) {
				resources[j].ResourceID = corev1.ResourceID(to)
			}
		}
	}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

func (l *lie) inLedger(t testing.TB) map[string]string {
	return map[string]string{"--agent": l.forwardAgent(t, func(state []byte) []byte {
		var parts map[string]json.RawMessage
		if err := json.Unmarshal(state, &parts); err != nil {
			t.Errorf("read the agent's state: %v", err)
			return state
		}
		parts["holdings"] = bytes.ReplaceAll(parts["holdings"], []byte(l.from.UUID), []byte(l.to.UUID))
		changed, err := json.Marshal(parts)
		if err != nil {
			t.Errorf("write the agent's state: %v", err)
		}
		return changed
	})}
}

func (l *lie) inGPUNode(t testing.TB) map[string]string {
	l.changeGPUNode(t, func(from, to *v1alpha1.GPUDevice) { from.Holders, to.Holders = to.Holders, from.Holders })
	return nil
}

// described reports whether the GPUNode lists the GPU at the address that it has.
func (l *lie) described(ctx context.Context) error {
	node, err := l.gpuNode(ctx)
	if err != nil {
		return err
	}
	for _, d := range node.Status.Devices {
		if d.UUID == l.from.UUID && !strings.EqualFold(d.PCIBusID, l.from.PCIBusID) {
			return fmt.Errorf("it has %s at %s", d.UUID, d.PCIBusID)
		}
	}
	return nil
}

func (l *lie) describedInGPUNode(t testing.TB) map[string]string {
	l.changeGPUNode(t, func(from, _ *v1alpha1.GPUDevice) { from.PCIBusID = "0000:ff:00.0" })
	return nil
}

// changeGPUNode changes the object, with the agent stopped, because the agent would correct it.
func (l *lie) changeGPUNode(t testing.TB, change func(from, to *v1alpha1.GPUDevice)) {
	t.Helper()
	if err := l.node.StopAgent(timeout(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.mode.Start(ctx); err != nil {
			t.Error(err)
		}
		// Otherwise the next case would read this false value, too.
		if err := poll(ctx, "the GPUNode is correct again", func() error {
			return errors.Join(l.published(ctx),
				l.described(ctx))
		}); err != nil {
			t.Error(err)
		}
	})
	client, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node, err := l.gpuNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := func(uuid string) *v1alpha1.GPUDevice {
		return &node.Status.Devices[slices.IndexFunc(node.Status.Devices, func(d v1alpha1.GPUDevice) bool { return d.UUID == uuid })]
	}
	change(at(l.from.UUID), at(l.to.UUID))
	object, err := client.Resource(v1alpha1.GPUNodes()).Get(t.Context(), l.node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		t.Fatal(err)
	}
	object.Object["status"] = changed["status"]
	if _, err := client.Resource(v1alpha1.GPUNodes()).Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// editJSON copies a JSON file with a change.
func editJSON(t testing.TB, from, to string, change func(map[string]any)) {
	t.Helper()
	blob, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(blob, &object); err != nil {
		t.Fatal(err)
	}
	change(object)
	if blob, err = json.Marshal(object); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, blob, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (l *lie) changeCDI(t testing.TB, change func(devices []any) []any) map[string]string {
	t.Helper()
	dir := t.TempDir()
	all, err := filepath.Glob(filepath.Join(l.node.CDIDir(), "*.json"))
	if err != nil || len(all) != 1 {
		t.Fatalf("CDI specs of the node: %v, %v, want one", all, err)
	}
	editJSON(t, all[0], filepath.Join(dir, filepath.Base(all[0])), func(spec map[string]any) {
		spec["devices"] = change(spec["devices"].([]any))
	})
	return map[string]string{"--cdi-dir": dir}
}

// inCDISpec exchanges the device nodes of the two GPUs' names.
func (l *lie) inCDISpec(t testing.TB) map[string]string {
	return l.changeCDI(t, func(devices []any) []any {
		at := func(name string) map[string]any {
			return devices[slices.IndexFunc(devices, func(d any) bool { return d.(map[string]any)["name"] == name })].(map[string]any)
		}
		at(l.from.UUID)["containerEdits"] = at(l.to.UUID)["containerEdits"]
		return devices
	})
}

func (l *lie) outOfCDISpec(t testing.TB) map[string]string {
	return l.changeCDI(t, func(devices []any) []any {
		return slices.DeleteFunc(devices, func(d any) bool { return d.(map[string]any)["name"] == l.from.UUID })
	})
}

func (l *lie) inOCISpec(t testing.TB) map[string]string {
	dir, id := t.TempDir(), containerID(l.pod)
	editJSON(t, filepath.Join(l.bundles(), id, "config.json"),
		filepath.Join(dir, "io.containerd.runtime.v2.task/k8s.io", id, "config.json"), func(spec map[string]any) {
			for _, d := range spec["linux"].(map[string]any)["devices"].([]any) {
				device := d.(map[string]any)
				if device["path"] == fmt.Sprintf("/dev/nvidia%d", l.from.Minor) {
					maps.Copy(device, map[string]any{"path": fmt.Sprintf("/dev/nvidia%d", l.to.Minor), "minor": l.to.Minor})
				}
			}
		})
	return map[string]string{"--containerd-state": dir}
}

// inContainer makes the container create a device node. It cannot open it, but trace must report that it has it.
func (l *lie) inContainer(t testing.TB) map[string]string {
	path := fmt.Sprintf("/dev/nvidia%d", l.to.Minor)
	execIn(t, l.Cluster, l.pod, "mknod", path, fmt.Sprint(hardware(t, l.node.SimDir()).Majors.NVIDIA), fmt.Sprint(l.to.Minor))
	processes, err := processesOf(l.pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil || len(processes) == 0 {
		t.Fatalf("processes of the pod: %v, %v", processes, err)
	}
	t.Cleanup(func() {
		if err := os.Remove(fmt.Sprintf("/proc/%d/root%s", processes[0].PID, path)); err != nil {
			t.Error(err)
		}
	})
	return nil
}

// outOfNVML is the same machine without the GPU.
func (l *lie) outOfNVML(t testing.TB) map[string]string {
	dir := filepath.Join(t.TempDir(), "sim")
	machine, err := sim.CreateWith(dir, l.State().Profile, sim.Options{Seed: l.node.Name(), Files: l.simulatedDriver(t)})
	if err == nil {
		err = machine.Inject(sim.Fault{GPU: l.from.UUID, Remove: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"--sim": dir}
}
