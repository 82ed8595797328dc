package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/cli/topview"
)

// agentsAPI adds the agents' pods and their metrics to a fleetAPI.
type agentsAPI struct {
	*fleetAPI
	mux     *http.ServeMux
	metrics atomic.Int32
}

func newAgentsAPI(tb testing.TB) *agentsAPI {
	tb.Helper()
	a := &agentsAPI{fleetAPI: newFleetAPI(tb), mux: http.NewServeMux()}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for i := range fleetNodes {
		pod := fleetPod("berth-system", fmt.Sprintf("berth-agent-%04d", i), fmt.Sprintf("node-%04d", i), "example.com/none")
		pod.Labels = map[string]string{"app.kubernetes.io/name": "berth-agent"}
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9835}}
		list.Items = append(list.Items, pod)
	}
	agents, err := json.Marshal(list)
	if err != nil {
		tb.Fatal(err)
	}
	a.mux.HandleFunc("/api/v1/namespaces/berth-system/pods", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(agents)
	})
	a.mux.HandleFunc("/api/v1/namespaces/berth-system/pods/{pod}/proxy/metrics", func(w http.ResponseWriter, r *http.Request) {
		a.metrics.Add(1)
		number, _, _ := strings.Cut(strings.TrimPrefix(r.PathValue("pod"), "berth-agent-"), ":")
		fmt.Fprintf(w, "# TYPE berth_gpu_utilization_ratio gauge\nberth_gpu_utilization_ratio{uuid=\"GPU-%s-0\",index=\"0\"} 0.4\n", number)
	})
	a.mux.Handle("/", a.fleetAPI)
	return a
}

func (a *agentsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// TestTopOfManyNodes: live, 1,000 nodes fit on the screen, and each update reads the metrics of the next 32.
func TestTopOfManyNodes(t *testing.T) {
	server := newAgentsAPI(t)
	from := &sources{}
	flags := pflag.NewFlagSet("top", pflag.ContinueOnError)
	from.bind(flags, Deps{KubeletDir: "none"})
	if err := flags.Set("kubeconfig", serveFleet(t, server)); err != nil {
		t.Fatal(err)
	}
	read, remote, err := samplesSource(from, nil)
	if err != nil || !remote {
		t.Fatalf("error %v, of other nodes: %v", err, remote)
	}
	live := &liveTop{view: &topview.View{SortBy: "util", History: &topview.History{}}}
	for round := range 3 {
		if err := live.update(read(t.Context())); err != nil {
			t.Fatal(err)
		}
		wantMetrics := mostMeasured * (round + 1)
		if got := int(server.metrics.Load()); got != wantMetrics {
			t.Errorf("update %d: the metrics of %d nodes were read in all, want %d", round, got, wantMetrics)
		}
		if want := fmt.Sprintf("not read: the metrics of %d of %d nodes", fleetNodes-wantMetrics, fleetNodes); !strings.HasPrefix(live.trouble, want) {
			t.Errorf("update %d: %q does not begin with %q", round, live.trouble, want)
		}
		text := live.frame(24, 80)
		lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, goHome), clearRest), "\r\n")
		if len(lines) != 24 || !strings.HasPrefix(lines[0], "1000 nodes   8000 GPUs") {
			t.Errorf("update %d: %d lines, the first %q", round, len(lines), lines[0])
		}
		for i, line := range lines {
			plain := strings.TrimSuffix(line, clearLine)
			if i == 2 && !strings.Contains(plain, "HISTORY") {
				t.Errorf("update %d: no history: %s", round, plain)
			}
			if n := utf8.RuneCountInString(plain); n > 80 {
				t.Errorf("update %d: %d columns: %s", round, n, plain)
			}
			if i > 2 && i < 23 && !strings.Contains(plain, "40%") {
				t.Errorf("update %d: a node that was not measured comes before those that were: %s", round, plain)
			}
		}
		if round == 2 {
			t.Log("\n" + strings.ReplaceAll(strings.Join(lines, "\n"), clearLine, ""))
		}
	}
	if got, want := int(server.requests.Load()), 3; got != want {
		t.Errorf("%d requests besides those of agents, want %d", got, want)
	}
}
