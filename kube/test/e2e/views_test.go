package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/metrics"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// testViews checks that the DaemonSet of the chart serves what berth on the node, berth outside the cluster
// and Prometheus need.
func testViews(t *testing.T, r *rig) {
	r.waitAllocatable(t, nodeGPUs)
	node := r.node.Name()
	pods, err := r.Client().CoreV1().Pods(agentNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: agentSelector})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d agents (%v), want one", len(pods.Items), err)
	}
	pod := pods.Items[0]

	t.Run("Socket", func(t *testing.T) {
		info, err := os.Lstat(filepath.Join(r.node.AgentDir(), pages.Name))
		if err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Fatalf("the agent's socket: %v (%v), want 0600", info, err)
		}
		for _, socket := range []string{filepath.Join(r.node.AgentDir(), pages.Name), pages.Own(r.node.AgentDir(), pod.Name)} {
			if _, err := (pages.Client{Socket: socket}).Get(t.Context(), "/readyz"); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("OnTheNode", func(t *testing.T) {
		list := &v1alpha1.GPUList{}
		if err := json.Unmarshal([]byte(r.inNode(t, 0, "berth", "gpus", "--node-local", "-o", "json")),
			list); err != nil || len(list.Items) != nodeGPUs {
			t.Errorf("berth gpus lists %d GPUs (%v), want %d", len(list.Items), err, nodeGPUs)
		}
		for _, missed := range list.NotRead {
			if missed.Kind == trace.Ledger {
				t.Errorf("berth gpus did not read %s: %s", missed.Kind, missed.Why)
			}
		}
		waitUntil(t, 20*time.Second, "the agent has measured", func(ctx context.Context) error {
			text, err := (pages.Client{Socket: filepath.Join(r.node.AgentDir(), pages.Name)}).Get(ctx, "/debug/samples")
			if err == nil && !strings.Contains(string(text), "temperatureCelsius") {
				err = errors.New("it has measured nothing yet")
			}
			return err
		})
		if out := r.inNode(t, 0, "berth", "top"); strings.Count(out, "A100") != nodeGPUs {
			t.Errorf("berth top:\n%s", out)
		}
		r.checkDoctor(t, 0)
	})
	t.Run("FromOutside", func(t *testing.T) {
		top := r.berth(t, "top", node, "--kubeconfig", r.KubeconfigPath(), "-o", "json")
		samples := &v1alpha1.GPUSamples{}
		if err := json.Unmarshal([]byte(top.out), samples); err != nil || top.code != 0 || top.err != "" || len(samples.Items) != nodeGPUs {
			t.Fatalf("berth top %s: %v, exit %d, %d GPUs\n%s%s", node, err, top.code, len(samples.Items), top.out, top.err)
		}
		for _, s := range samples.Items {
			if s.TemperatureCelsius == nil || s.Utilization == nil || s.MemoryUsedBytes == nil {
				t.Errorf("berth top %s does not show the utilization of GPU %d: %+v", node, s.Index, s)
			}
		}
		waitUntil(t, 30*time.Second, "berth doctor from outside finds nothing", func(context.Context) error {
			// The kubelet publishes allocatable some seconds after it has the devices.
			doctor := r.berth(t, "doctor", node, "--kubeconfig", r.KubeconfigPath())
			if doctor.code != 0 || !strings.Contains(doctor.out, "its metrics are served") ||
				!strings.Contains(doctor.out, fmt.Sprintf("%d of %s, as the agent advertises", nodeGPUs,
					gpuResource)) {
				return fmt.Errorf("exit %d\n%s%s", doctor.code, doctor.out, doctor.err)
			}
			return nil
		})
		if gpus := r.berth(t, "gpus", node, "--kubeconfig", r.KubeconfigPath()); gpus.code != 0 ||
			strings.Count(gpus.out, "Healthy") != nodeGPUs {
			t.Errorf("berth gpus %s: exit %d\n%s%s", node, gpus.code, gpus.out, gpus.err)
		}
	})
	t.Run("Scraped", func(t *testing.T) { testScraped(t, r, pod.Status.PodIP) })
}

// testScraped reads the port named metrics as Prometheus does: it has the metrics of the catalogue and nothing else.
func testScraped(t *testing.T, r *rig, ip string) {
	address := net.JoinHostPort(ip, "9835")
	inside := &http.Client{Transport: &http.Transport{DialContext: r.DialInside, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	get := func(path string) (int, []byte, error) {
		response, err := inside.Get("http://" + address + path)
		if err != nil {
			return 0, nil, err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return response.StatusCode, text, err
	}
	for _, path := range []string{"/debug/state", "/debug/samples", "/healthz", "/readyz"} {
		if code, _, err := get(path); err != nil || code != http.StatusNotFound {
			t.Errorf("%s%s: %d (%v), want 404", address, path, code, err)
		}
	}
	code, text, err := get("/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("%s/metrics: %d (%v)", address, code, err)
	}
	page := parseMetrics(t, text)
	catalogue := map[string]string{}
	for _, m := range metrics.Catalogue() {
		catalogue[m.Name] = m.Kind
	}
	seen := 0
	for name, family := range page {
		kind, known := catalogue[name]
		switch {
		case known && kind != strings.ToLower(family.GetType().String()):
			t.Errorf("%s is a %s, the catalogue says %s", name, strings.ToLower(family.GetType().String()), kind)
		case known:
			seen++
		case strings.HasPrefix(name, "berth_gpu_"):
			t.Errorf("%s is not in the catalogue", name)
		}
	}
	for _, name := range []string{"berth_gpu_info", "berth_gpu_healthy", "berth_gpu_temperature_celsius",
		"berth_gpu_utilization_ratio", "berth_gpu_memory_used_bytes"} {
		if got := len(page[name].GetMetric()); got != nodeGPUs {
			t.Errorf("%s has %d series, want %d", name, got, nodeGPUs)
		}
	}
	if healthy := page.find("berth_device_plugin_healthy_devices",
		map[string]string{"resource": gpuResource}); !slices.Equal(healthy, []float64{nodeGPUs}) {
		t.Errorf("berth_device_plugin_healthy_devices is %v, want %d", healthy, nodeGPUs)
	}
	t.Logf("%d of the catalogue's %d metrics are on the page", seen, len(catalogue))
}
