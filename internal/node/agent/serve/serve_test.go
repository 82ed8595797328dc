package serve

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// node has the content of the pages.
type node struct {
	config    configwatch.State
	injection bool
	plugin    []deviceplugin.Stats
	offers    []offer.Offer
	units     []offer.Unit

	mu       sync.Mutex
	problems map[string][]gpu.Cause
}

// server returns a Server of a node that is ready.
func server(t *testing.T, change func(*node, *Deps)) (*Server, *node) {
	t.Helper()
	n := &node{
		config: configwatch.State{Config: &v1alpha1.AgentConfig{}}, injection: true, problems: map[string][]gpu.Cause{},
		plugin: []deviceplugin.Stats{{Resource: "nvidia.com/gpu", Registered: true}}, offers: []offer.Offer{{Resource: "nvidia.com/gpu"}},
	}
	text := func(body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
	}
	deps := Deps{
		NodeName: "node-0", StateDir: t.TempDir(), Instance: "test", Compared: signal.NewReady(),
		State: State{
			Inventory: func() *gpu.Snapshot { return &gpu.Snapshot{} }, Holdings: func() []ledger.Holding { return nil },
			Units: func() []offer.Unit { return n.units }, Offers: func() []offer.Offer { return n.offers }, MIG: func() []migapply.Status { return nil },
			Daemon: func(id gpu.UUID) (mps.Status, bool) { return mps.Status{GPU: id, State: mps.Ready}, id == "GPU-a" },
			Config: func() configwatch.State { return n.config }, Plugin: func() []deviceplugin.Stats { return n.plugin },
			Problems: func() []gpu.Cause { return nil }, InjectionKnown: func() bool { return n.injection },
		},
		Metrics: text("metrics"), Samples: text("samples"), Reset: text("reset"), Liveness: text("live"),
		Report: func(source string, causes ...gpu.Cause) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.problems[source] = causes
		},
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	}
	deps.Compared.Set()
	if change != nil {
		change(n, &deps)
	}
	return New(deps), n
}

func get(h http.Handler, method, path string) (int, string) {
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
	return recorder.Code, recorder.Body.String()
}

// TestReadiness checks that the agent is ready when all advertised resources are served, and reports what it waits for
// until then.
func TestReadiness(t *testing.T) {
	tests := map[string]struct {
		change func(*node, *Deps)
		want   string
	}{
		"ready": {nil, ""},
		"not compared": {func(_ *node, d *Deps) { d.Compared = signal.NewReady() },
			"the comparison with the kubelet are not finished"},
		"no configuration": {func(n *node, _ *Deps) {
			n.config.Waiting, n.config.Forbidden = true,
				[]string{"configmaps"}
		}, "which configuration is in force; configmaps"},
		"no CDI spec": {func(n *node, _ *Deps) { n.injection = false }, "the CDI spec was not compared"},
		"not registered": {func(n *node, _ *Deps) { n.plugin[0].Registered = false },
			"the registration of nvidia.com/gpu: no kubelet has answered yet"},
		"refused": {func(n *node, _ *Deps) {
			n.plugin[0].Registered, n.plugin[0].LastError = false,
				"too old"
		}, "the registration of nvidia.com/gpu: too old"},
		"one resource late": {func(n *node, _ *Deps) {
			n.offers = append(n.offers,
				offer.Offer{Resource: "nvidia.com/mig"})
		}, "does not serve nvidia.com/mig yet"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := server(t, tc.change)
			code, body := get(s.Handler(), "GET", "/readyz")
			if ready := tc.want == ""; ready != (code == http.StatusOK) || !strings.Contains(body, tc.want) {
				t.Errorf("%d %q, want ready: %v, with %q", code, body, ready, tc.want)
			}
			if want := tc.want; want != "" && !strings.Contains(s.State().Ready, want) || want == "" && s.State().Ready != "yes" {
				t.Errorf("the state says %q", s.State().Ready)
			}
		})
	}
}

// TestHandler checks that the socket has all pages and the command, and that the command needs POST.
func TestHandler(t *testing.T) {
	s, _ := server(t, nil)
	for path, want := range map[string]string{"GET /metrics": "metrics", "GET /debug/samples": "samples",
		"GET /healthz": "live", "POST /v1/reset": "reset"} {
		method, path, _ := strings.Cut(path, " ")
		if code, body := get(s.Handler(), method, path); code != http.StatusOK || body != want {
			t.Errorf("%s %s: %d %q, want %q", method, path, code, body, want)
		}
	}
	if code, _ := get(s.Handler(), "GET", "/v1/reset"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET /v1/reset: %d, want %d", code, http.StatusMethodNotAllowed)
	}
}

// TestState checks that the state has the daemons of the GPUs that are shared by MPS, and the reason why the newest
// configuration is refused.
func TestState(t *testing.T) {
	s, _ := server(t, func(n *node, _ *Deps) {
		n.config.Refused, n.config.Source = errors.New("line 2"), "agent.yaml"
		for _, id := range []gpu.UUID{"GPU-a", "GPU-b"} {
			n.units = append(n.units, offer.Unit{Key: gpu.DeviceKey{GPU: id}, Use: offer.Use{Mode: offer.MPS, Replicas: 2}})
		}
	})
	_, body := get(s.Handler(), "GET", "/debug/state")
	var state DebugState
	if err := json.Unmarshal([]byte(body), &state); err != nil {
		t.Fatal(err)
	}
	if state.Kind != "AgentState" || state.Node != "node-0" || state.Config.Refused != "line 2" || len(state.MPS) != 1 || state.MPS[0].GPU != "GPU-a" {
		t.Errorf("the state is\n%s", body)
	}
}

// TestMetricsAlone checks that the address for Prometheus serves /metrics and no other page.
func TestMetricsAlone(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	s, n := server(t, func(_ *node, d *Deps) { d.MetricsListen = address })
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	fetch := func(path string) int {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			response, err := client.Get("http://" + address + path)
			if err == nil {
				response.Body.Close()
				return response.StatusCode
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/debug/state": http.StatusNotFound,
		"/v1/reset": http.StatusNotFound, "/healthz": http.StatusNotFound} {
		if got := fetch(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	// The address is in use: this is a problem, and the socket is still served.
	second, other := server(t, func(_ *node, d *Deps) { d.MetricsListen, d.Instance = address, "second" })
	go func() { done <- second.Run(t.Context()) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		other.mu.Lock()
		causes, served := other.problems["metrics"], other.problems["pages"]
		other.mu.Unlock()
		_, err := os.Stat(filepath.Clean(pages.Own(second.deps.StateDir, "second")))
		if len(causes) == 1 && causes[0].Code == "LISTEN_FAILED" && err == nil && len(served) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("problems %v; the socket: %v", other.problems, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.problems["metrics"]) != 0 {
		t.Errorf("the first one reports %v", n.problems)
	}
}

// TestMetricsForTokens checks that with an API server the address for Prometheus has TLS and wants a token, and the socket does not.
func TestMetricsForTokens(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	s, _ := server(t, func(_ *node, d *Deps) { d.MetricsListen, d.MetricsAPI = address, fake.NewClientset() })
	go s.Run(t.Context())
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		response, err := client.Get("https://" + address + "/metrics")
		if err == nil {
			response.Body.Close()
			if response.StatusCode != http.StatusUnauthorized {
				t.Errorf("without a token: %d", response.StatusCode)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	recorder := httptest.NewRecorder()
	s.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if recorder.Code != http.StatusOK {
		t.Errorf("on the socket: %d", recorder.Code)
	}
}

// TestSocketThatCannotBeMade checks that this is a problem, and does not end the server.
func TestSocketThatCannotBeMade(t *testing.T) {
	s, n := server(t, func(_ *node, d *Deps) {
		d.StateDir = filepath.Join(d.StateDir, strings.Repeat("x", 120)) // Longer than the path of a socket may be.
	})
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n.mu.Lock()
		causes := n.problems["pages"]
		n.mu.Unlock()
		if len(causes) == 1 && causes[0].Code == "LISTEN_FAILED" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("problems: %v", causes)
		}
	}
	select {
	case err := <-done:
		t.Errorf("the server ended with %v", err)
	default:
	}
}
