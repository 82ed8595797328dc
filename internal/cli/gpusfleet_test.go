package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	fleetNodes = 1000
	fleetGPUs  = 8
)

// fleetAPI serves many nodes of 8 GPUs, of which 6 are held, each by a pod of its own, and counts the requests.
type fleetAPI struct {
	nodes    []byte
	pods     []corev1.Pod
	requests atomic.Int32
	// forbidden is true where pods may not be listed.
	forbidden bool
}

func newFleetAPI(tb testing.TB) *fleetAPI {
	tb.Helper()
	api := &fleetAPI{}
	list := v1alpha1.GPUNodeList{TypeMeta: v1alpha1.TypeMeta("GPUNodeList")}
	models := []string{"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA B200", "NVIDIA GH200 480GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA L4"}
	for i := range fleetNodes {
		node := v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode)}
		node.Name = fmt.Sprintf("node-%04d", i)
		for k := range fleetGPUs {
			device := v1alpha1.GPUDevice{
				UUID: fmt.Sprintf("GPU-%04d-%d", i, k), Index: k, Minor: k, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 16+k), Product: models[i%len(models)],
				Architecture: "Hopper", ComputeCapability: "9.0", MemoryBytes: 80 << 30, NUMANode: k / 4, Health: v1alpha1.DeviceHealth{State: "Healthy"},
				Offered: &v1alpha1.DeviceOffer{Resource: fmt.Sprintf("nvidia.com/gpu-%d", i%9)},
			}
			if i%50 == 7 && k == 7 {
				device.Health = v1alpha1.DeviceHealth{State: "Unhealthy", Causes: []v1alpha1.Cause{{Code: fmt.Sprintf("XID%d", 40+i%6), Message: "the driver reports an error that lasts until the GPU is reset"}}}
			}
			if k < 6 {
				namespace, pod := fmt.Sprintf("team-%02d", i%30), fmt.Sprintf("train-%04d-%d", i, k)
				device.Holders = []v1alpha1.Holder{{Kind: "Pod", Namespace: namespace, Pod: pod, PodUID: "uid-" + pod, Container: "main", Resource: device.Offered.Resource}}
				api.pods = append(api.pods, fleetPod(namespace, pod, node.Name, device.Offered.Resource))
			}
			node.Status.Devices = append(node.Status.Devices, device)
			node.Status.Topology = append(node.Status.Topology, "X NV18 NV18 NV18 NV18 NV18 NV18 NV18")
		}
		list.Items = append(list.Items, node)
	}
	var err error
	if api.nodes, err = json.Marshal(list); err != nil {
		tb.Fatal(err)
	}
	return api
}

// fleetPod is a pod with about as many fields as one of a real cluster has.
func fleetPod(namespace, name, node, resource string) corev1.Pod {
	amounts := corev1.ResourceList{"cpu": resourceapi.MustParse("8"), "memory": resourceapi.MustParse("64Gi"), corev1.ResourceName(resource): resourceapi.MustParse("1")}
	pod := corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = namespace, name, types.UID("uid-"+name)
	pod.Labels = map[string]string{"app": "train", "job": name, "batch.kubernetes.io/controller-uid": "d2b0f8a0-0000-4000-8000-000000000000"}
	pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
	main := corev1.Container{Name: "main", Image: "example.com/train:1", Resources: corev1.ResourceRequirements{Limits: amounts, Requests: amounts}}
	for i := range 20 {
		main.Env = append(main.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "a value of some length"})
	}
	pod.Spec.Containers = []corev1.Container{main}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	return pod
}

func (a *fleetAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.requests.Add(1)
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/apis/berth.dev/v1alpha1/gpunodes":
		_, _ = w.Write(a.nodes)
	case "/api/v1/pods":
		if a.forbidden {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"pods is forbidden"}`)
			return
		}
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to, further := min(from+limit, len(a.pods)), ""
		if to < len(a.pods) {
			further = strconv.Itoa(to)
		}
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{Continue: further}, Items: a.pods[from:to]}
		kind, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
		serializer, known := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), kind)
		if !known {
			http.Error(w, kind, http.StatusNotAcceptable)
			return
		}
		w.Header().Set("Content-Type", kind)
		_ = serializer.Serializer.Encode(list, w)
	default:
		http.NotFound(w, r)
	}
}

func (a *fleetAPI) serve(tb testing.TB) string { return serveFleet(tb, a) }

// serveFleet returns the kubeconfig of an API.
func serveFleet(tb testing.TB, api http.Handler) string {
	tb.Helper()
	server := httptest.NewServer(api)
	tb.Cleanup(server.Close)
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{name: t, cluster: {server: %q}}]\ncontexts: [{name: t, context: {cluster: t, user: t}}]\nusers: [{name: t, user: {}}]\n", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// fleetRun runs berth and returns what it printed.
func fleetRun(tb testing.TB, kubeconfig string, args ...string) string {
	tb.Helper()
	var out strings.Builder
	code := Run(context.Background(), Deps{Out: &out, Err: &out, Name: "berth", KubeletDir: "none"}, append(args, "--kubeconfig", kubeconfig))
	if code != ExitOK {
		tb.Fatalf("berth %v ended with %d:\n%s", args, code, out.String())
	}
	return out.String()
}

// TestFleetFitsAScreen checks what 1,000 nodes of 8 GPUs cost and take: the API calls, and the lines and columns.
func TestFleetFitsAScreen(t *testing.T) {
	api := newFleetAPI(t)
	kubeconfig := api.serve(t)
	const podPages = 12 // 6,000 pods, 500 per page
	tests := map[string]struct {
		args      []string
		wantCalls int32
		wantLines int // at most
	}{
		"summary":      {[]string{"--summary"}, 1 + podPages, 23},
		"by model":     {[]string{"--group-by", "model"}, 1, 8},
		"by namespace": {[]string{"--group-by", "namespace"}, 1 + podPages, 31},
		"by resource":  {[]string{"--group-by", "resource"}, 1 + podPages, 10},
		"by node":      {[]string{"--group-by", "node"}, 1, fleetNodes + 1},
		"free":         {[]string{"--free"}, 1, 2*fleetNodes - fleetNodes/50 + 1},
		"unhealthy":    {[]string{"--unhealthy"}, 1, fleetNodes/50 + 1},
	}
	t.Setenv("COLUMNS", "80")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := api.requests.Load()
			text := fleetRun(t, kubeconfig, append([]string{"gpus"}, tc.args...)...)
			if got := api.requests.Load() - before; got != tc.wantCalls {
				t.Errorf("%d API calls, want %d", got, tc.wantCalls)
			}
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			if len(lines) > tc.wantLines {
				t.Errorf("%d lines, want at most %d:\n%.2000s", len(lines), tc.wantLines, text)
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > 80 && name != "free" && name != "unhealthy" {
					t.Errorf("%d columns, want at most 80: %s", n, line)
				}
			}
			if name == "summary" {
				t.Log("\n" + text)
			}
		})
	}
}

// TestFleetWithoutPods: who may not list pods sees everything but what they request.
func TestFleetWithoutPods(t *testing.T) {
	api := newFleetAPI(t)
	api.forbidden = true
	kubeconfig := api.serve(t)
	t.Setenv("COLUMNS", "100")
	text := fleetRun(t, kubeconfig, "gpus", "--summary")
	for _, want := range []string{"1000 nodes, 8000 GPUs: 6000 held", "not read: pods: what pods request is not known: list pods: pods is forbidden"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 23 {
		t.Errorf("%d lines, want at most 23", n)
	}
}

// BenchmarkFleetSummary is berth gpus --summary for 1,000 nodes of 8 GPUs with 6,000 pods, from the start of the command to its output.
// The server is in the same process, so its work is counted too.
func BenchmarkFleetSummary(b *testing.B) {
	kubeconfig := newFleetAPI(b).serve(b)
	for b.Loop() {
		_, _ = io.WriteString(io.Discard, fleetRun(b, kubeconfig, "gpus", "--summary"))
	}
}
