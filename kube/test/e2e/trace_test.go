package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// The sources that name the devices of a running container, as berth trace prints them.
var holdSources = []string{"pod status", "checkpoint", "AllocResp", "PodResources", "ledger", "GPUNode", "OCI spec", "container"}

// tracer runs berth trace for one pod from outside the node, with the path of each source given by a flag, so that a
// test can replace any of them by a copy.
type tracer struct {
	*rig
	pod    *corev1.Pod
	uuids  []string
	places map[string]string // by flag
}

// traced starts a pod with two GPUs and waits until every source shows it.
func traced(t testing.TB) *tracer {
	t.Helper()
	r := theNode(t)
	w := &tracer{rig: r, pod: r.run(t, podWithGPUs("two", 2))[0], places: map[string]string{
		"--host-root": r.node.Root(), "--cgroup-root": "/" + r.node.Cgroup(), "--sim": r.node.SimDir(), "--kubeconfig": r.KubeconfigPath(),
	}}
	w.uuids = r.assignment(t, w.pod).uuids
	w.places["--agent"] = w.forwardAgent(t, func(state []byte) []byte { return state })
	w.waitPublished(t)
	return w
}

// waitPublished waits until the GPUNode object names the pod as the holder of its GPUs.
func (w *tracer) waitPublished(t testing.TB) {
	t.Helper()
	waitUntil(t, 15*time.Second, "the GPUNode names the pod", w.published)
}

// published returns an error unless the GPUNode object names the pod as the holder of its GPUs, and no other pod.
func (w *tracer) published(ctx context.Context) error {
	node, err := w.gpuNode(ctx)
	if err != nil {
		return err
	}
	if held := heldBy(node, w.pod); !slices.Equal(held, w.uuids) {
		return fmt.Errorf("it lists %v for the pod, the kubelet allocated %v", held, w.uuids)
	}
	return nil
}

// heldBy returns the GPUs that a GPUNode lists for a pod, sorted.
func heldBy(node *v1alpha1.GPUNode, pod *corev1.Pod) []string {
	var held []string
	for _, d := range node.Status.Devices {
		for _, h := range d.Holders {
			if h.PodUID == string(pod.UID) && h.Pod == pod.Name && h.Namespace == pod.Namespace && h.Container == "main" {
				held = append(held, d.UUID)
			}
		}
	}
	slices.Sort(held)
	return held
}

// forwardAgent serves the agent's state outside the sandbox's network, after passing it through change.
func (w *tracer) forwardAgent(t testing.TB, change func([]byte) []byte) string {
	t.Helper()
	agent := w.agent(t)
	socket := filepath.Join(t.TempDir(), pages.Name)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		state, err := pages.Client{Socket: w.node.AgentSocket(agent)}.Get(request.Context(), request.URL.Path)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadGateway)
			return
		}
		_, _ = answer.Write(change(state)) // An error means that the client closed the connection.
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// result is what berth printed and its exit code.
type result struct {
	out, err string
	code     int
}

// berth runs the program on this machine, which is not a node.
func (r *rig) berth(t testing.TB, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(timeout(t, 20*time.Second), filepath.Join(r.State().Bin, "berth"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Env = []string{"HOME=" + t.TempDir()}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run berth %v: %v", args, err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// args returns the arguments of a trace over the sources, some of them replaced.
func (w *tracer) args(replaced map[string]string, subject ...string) []string {
	args := append([]string{"trace"}, subject...)
	places := map[string]string{}
	maps.Copy(places, w.places)
	maps.Copy(places, replaced)
	for flag, place := range places {
		args = append(args, flag+"="+place)
	}
	return args
}

// decodeTrace decodes a trace with nothing but the API types.
func decodeTrace(t testing.TB, got result) *v1alpha1.Trace {
	t.Helper()
	found := &v1alpha1.Trace{}
	decoder := json.NewDecoder(strings.NewReader(got.out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(found); err != nil {
		t.Fatalf("decode trace: %v\n%s%s", err, got.out, got.err)
	}
	if found.APIVersion != v1alpha1.APIVersion || found.Kind != v1alpha1.KindTrace {
		t.Errorf("the trace is a %s %s, want %s %s", found.APIVersion, found.Kind, v1alpha1.APIVersion, v1alpha1.KindTrace)
	}
	return found
}

// checkAgrees checks that a trace has the pod's GPUs, each from all of the sources, and finds no disagreement.
func (w *tracer) checkAgrees(t testing.TB, got result, sources []string) *v1alpha1.Trace {
	t.Helper()
	if got.code != 0 {
		t.Errorf("exit code %d, want 0:\n%s%s", got.code, got.out, got.err)
	}
	found := decodeTrace(t, got)
	for _, d := range found.Disagreements {
		t.Errorf("the sources disagree: %s: %s: %+v", d.Code, d.Message, d.Statements)
	}
	if len(found.Pods) != 1 || found.Pods[0].UID != string(w.pod.UID) || len(found.Pods[0].Containers) != 1 {
		t.Fatalf("want the one container of pod %s, got %+v", w.pod.UID, found.Pods)
	}
	var uuids []string
	for _, d := range found.Pods[0].Containers[0].Devices {
		uuids = append(uuids, string(d.UUID))
		if kinds := kindsOf(d.Sources); !slices.Equal(kinds, slices.Sorted(slices.Values(sources))) {
			t.Errorf("the sources of the container holding %s are %q, want %q", d.UUID, kinds, sources)
		}
	}
	if slices.Sort(uuids); !slices.Equal(uuids, w.uuids) {
		t.Errorf("the container holds %v, want %v", uuids, w.uuids)
	}
	return found
}

func kindsOf(sources []v1alpha1.TraceSource) []string {
	var kinds []string
	for _, s := range sources {
		kinds = append(kinds, string(s.Kind))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// TestTrace runs berth trace for one pod, in every way.
func TestTrace(t *testing.T) {
	onSharedCluster(t)
	w := traced(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *tracer)
	}{
		{"Agrees", testTraceAgrees},
		{"Table", testTraceTable},
		{"OnTheNode", testTraceOnTheNode},
		{"FromALaptop", testTraceFromALaptop},
		{"FromTheKubeletAlone", testTraceFromTheKubeletAlone},
		{"Disagrees", testTraceDisagrees},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, w) })
	}
}

// testTraceAgrees reads the same UUIDs from every source, one by one, and checks that berth trace prints them with all
// of these sources.
func testTraceAgrees(t *testing.T, w *tracer) {
	machine := hardware(t, w.node.SimDir())
	listed, err := kubelet.NewPodResources(w.node.KubeletDir()).Get(t.Context(), w.pod.Namespace, w.pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	var fromPodResources []string
	for _, d := range listed.Containers[0].Devices {
		fromPodResources = append(fromPodResources, d.IDs...)
	}
	slices.Sort(fromPodResources)
	var fromAnswer []string
	for _, d := range w.assignment(t, w.pod).answer.GetCdiDevices() {
		fromAnswer = append(fromAnswer, strings.TrimPrefix(d.GetName(), "k8s.berth.dev/gpu="))
	}
	slices.Sort(fromAnswer)
	if !slices.Equal(fromPodResources, w.uuids) || !slices.Equal(fromAnswer, w.uuids) {
		t.Errorf("the checkpoint has %v, its AllocResp %v, PodResources %v", w.uuids, fromAnswer, fromPodResources)
	}
	if nodes := w.gpusIn(t, w.pod, "main"); !slices.Equal(nodes, minorsOf(t, machine, w.uuids)) {
		t.Errorf("the container has the nodes of GPUs %v, want those of %v", nodes, w.uuids)
	}

	found := w.checkAgrees(t, w.berth(t, w.args(nil, w.pod.Name, "-o", "json")...), holdSources)
	container := found.Pods[0].Containers[0]
	if len(container.Asked) != 1 || container.Asked[0].Name != gpuResource || container.Asked[0].Value != "2" {
		t.Errorf("requested: %+v, want 2 of %s", container.Asked, gpuResource)
	}
	if node := found.Pods[0].Node; node == nil || node.Value != w.node.Name() {
		t.Errorf("node: %+v, want %s", node, w.node.Name())
	}
	for _, d := range container.Devices {
		gpuInfo := gpuOf(t, machine, string(d.UUID))
		for name, want := range map[string]string{
			"index": strconv.Itoa(gpuInfo.Index), "product": gpuInfo.Product, "pciBusID": gpuInfo.PCIBusID,
			"numaNode": strconv.Itoa(gpuInfo.NUMANode),
		} {
			i := slices.IndexFunc(d.Facts, func(f v1alpha1.TraceFact) bool { return f.Name == name })
			if i < 0 || !strings.EqualFold(d.Facts[i].Value, want) ||
				!slices.Equal(kindsOf(d.Facts[i].Sources), []string{"GPUNode", "NVML"}) {
				t.Errorf("%s of %s: %+v, want %s by GPUNode and NVML", name, d.UUID, d.Facts, want)
			}
		}
		if len(d.CDINames) != 1 || d.CDINames[0].Value != "k8s.berth.dev/gpu="+string(d.UUID) ||
			!slices.Equal(kindsOf(d.CDINames[0].Sources), []string{"AllocResp", "CDI spec"}) {
			t.Errorf("CDI names of %s: %+v, want its UUID by AllocResp and CDI spec", d.UUID, d.CDINames)
		}
		node := fmt.Sprintf("/dev/nvidia%d", gpuInfo.Minor)
		i := slices.IndexFunc(d.Nodes, func(n v1alpha1.TraceNode) bool { return n.Path == node })
		if i < 0 || d.Nodes[i].Minor != int64(gpuInfo.Minor) ||
			!slices.Equal(kindsOf(d.Nodes[i].Sources), []string{"CDI spec", "NVML", "OCI spec", "container"}) {
			t.Errorf("device nodes of %s: %+v, want %s by CDI spec, OCI spec, container and NVML", d.UUID, d.Nodes, node)
		}
	}
}

// testTraceTable checks that the table has each UUID on a line with its sources.
func testTraceTable(t *testing.T, w *tracer) {
	got := w.berth(t, w.args(nil, w.pod.Name)...)
	if got.code != 0 || strings.Contains(got.out, "DISAGREE") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.out, got.err)
	}
	for _, uuid := range w.uuids {
		if !slices.ContainsFunc(strings.Split(got.out, "\n"), func(line string) bool {
			return strings.Contains(line, "─ "+uuid) && strings.HasSuffix(line, strings.Join(holdSources, ", "))
		}) {
			t.Errorf("no line has %s with %s:\n%s", uuid, strings.Join(holdSources, ", "), got.out)
		}
	}
}

// testTraceOnTheNode runs berth trace as root on the node, with the default paths of the sources: for the pod, for its
// GPU and for its process.
func testTraceOnTheNode(t *testing.T, w *tracer) {
	processes, err := processesOf(w.pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil || len(processes) == 0 {
		t.Fatalf("processes of pod %s: %v, %v", w.pod.Name, processes, err)
	}
	for title, test := range map[string]struct {
		subject []string
		uuids   []string
	}{
		"pod":     {[]string{w.pod.Name}, w.uuids},
		"UID":     {[]string{string(w.pod.UID)}, w.uuids},
		"GPU":     {[]string{w.uuids[1]}, w.uuids[1:]},
		"process": {[]string{"--pid", strconv.Itoa(processes[0].PID)}, w.uuids},
	} {
		t.Run(title, func(t *testing.T) {
			var out, errOut bytes.Buffer
			// The cgroup is the sandbox's, because other sandboxes share the machine's processes. There is no driver to
			// read, so the agent's inventory is used.
			argv := append([]string{
				filepath.Join(w.State().Bin, "berth"), "trace", "-o", "json",
				"--cgroup-root", "/" + w.node.Cgroup(),
			}, test.subject...)
			if err := w.node.RunInside(timeout(t, 20*time.Second), sandbox.Streams{Out: &out, Err: &errOut}, argv...); err != nil {
				t.Fatalf("%v\n%s%s", err, out.String(), errOut.String())
			}
			one := *w
			one.uuids = test.uuids
			one.checkAgrees(t, result{out: out.String(), err: errOut.String()}, holdSources)
		})
	}
}

// testTraceFromALaptop checks that the API alone names the GPU, and that the other sources are reported as not read.
func testTraceFromALaptop(t *testing.T, w *tracer) {
	got := w.berth(t, "trace", w.pod.Name, "--kubeconfig", w.KubeconfigPath(), "-o", "json")
	found := w.checkAgrees(t, got, []string{"pod status", "GPUNode"})
	if !slices.ContainsFunc(found.NotRead, func(n v1alpha1.TraceNotRead) bool { return n.Kind == "checkpoint" && n.Why != "" }) {
		t.Errorf("not read: %+v, want the checkpoint with the reason", found.NotRead)
	}
}

// testTraceFromTheKubeletAlone uses a copy of the kubelet's checkpoint, and nothing else.
func testTraceFromTheKubeletAlone(t *testing.T, w *tracer) {
	empty := t.TempDir()
	got := w.berth(t, "trace", string(w.pod.UID), "--node-local", "--kubelet-dir", w.copyCheckpoint(t, nil), "--cdi-dir", empty,
		"--containerd-state", empty, "--pod-logs", empty, "--proc", empty, "--agent", "127.0.0.1:1", "-o", "json")
	w.checkAgrees(t, got, []string{"checkpoint", "AllocResp"})

	// The kubelet and the agent do not run: its files have the name, too.
	got = w.berth(t, "trace", w.pod.Name, "-n", w.pod.Namespace, "--node-local", "--kubelet-dir",
		w.copyCheckpoint(t, nil), "--cdi-dir", empty,
		"--containerd-state", empty, "--pod-logs", filepath.Join(w.node.Root(),
			"var/log/pods"), "--proc", empty, "--agent", "127.0.0.1:1", "-o", "json")
	w.checkAgrees(t, got, []string{"checkpoint", "AllocResp"})
}

// copyCheckpoint creates a kubelet's directory with a copy of the checkpoint. A changed copy gets a checksum that the
// kubelet would accept.
func (w *tracer) copyCheckpoint(t testing.TB, change func([]checkpoint.PodDevicesEntry) []checkpoint.PodDevicesEntry) string {
	t.Helper()
	blob, err := os.ReadFile(w.checkpointPath())
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		all, registered, err := entries(blob)
		if err != nil {
			t.Fatal(err)
		}
		if blob, err = checkpoint.New(change(all), registered).MarshalCheckpoint(); err != nil {
			t.Fatal(err)
		}
	}
	// The path is short, because a socket may be created in it.
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(dir, "device-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"), blob, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
