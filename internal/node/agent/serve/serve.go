// Package serve serves the agent's HTTP pages: all of them on the socket for root of this node, and /metrics alone on
// an address for Prometheus.
//
// It guarantees that every page only reads memory, that commands that change something are served on the socket only,
// and that a socket or an address that cannot be opened is a problem and does not end the agent: the pods' GPUs matter
// more than the pages.
//
// What wakes it: a request. What it writes: the socket in the state directory, and the problems of the sources "pages"
// and "metrics". What it never waits for: the API server, the driver, the kubelet. Nothing waits for it.
//
// It must not import the agent, another package below it, or an adapter.
package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/httpserver"
	"github.com/berth-gpu/berth/internal/httpserver/tokens"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/pages"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// pageRetry is the time between two attempts to create the socket of the pages.
const pageRetry = 5 * time.Second

// DebugState is the content of /debug/state: the inventory, the ledger, and the data derived from them. It names pods
// of all tenants, so it is on the socket only.
type DebugState struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Ready      string `json:"ready"`
	Node       string `json:"node"`
	// Simulated is the directory of the simulated hardware; empty for a real driver.
	Simulated string `json:"simulated,omitempty"`
	// Vendors are the names of the vendors whose GPUs the agent manages.
	Vendors   []gpu.Traits         `json:"vendors"`
	Inventory *gpu.Snapshot        `json:"inventory"`
	Holdings  []ledger.Holding     `json:"holdings"`
	Units     []offer.Unit         `json:"units"`
	Offers    []offer.Offer        `json:"offers"`
	MIG       []migapply.Status    `json:"mig"`
	MPS       []mps.Status         `json:"mps"`
	Config    DebugConfig          `json:"config"`
	Plugin    []deviceplugin.Stats `json:"devicePlugin"`
	Problems  []gpu.Cause          `json:"problems"`
}

// DebugConfig is the configuration in force, and why the newest is not.
type DebugConfig struct {
	Source  string                `json:"source"`
	Refused string                `json:"refused,omitempty"`
	Notes   []string              `json:"notes,omitempty"`
	Restart []string              `json:"restart,omitempty"`
	Config  *v1alpha1.AgentConfig `json:"config"`
}

// State reads, from memory, what the pages show.
type State struct {
	Inventory func() *gpu.Snapshot
	Holdings  func() []ledger.Holding
	Units     func() []offer.Unit
	Offers    func() []offer.Offer
	MIG       func() []migapply.Status
	Daemon    func(gpu.UUID) (mps.Status, bool)
	Config    func() configwatch.State
	Plugin    func() []deviceplugin.Stats
	Problems  func() []gpu.Cause
	// InjectionKnown reports whether the CDI spec was compared with the driver's files, where that is needed.
	InjectionKnown func() bool
}

// Deps are the dependencies of a Server.
type Deps struct {
	NodeName string
	// Simulated is the directory of the simulated hardware; empty for a real driver.
	Simulated string
	// Vendors are the names of the vendors whose GPUs the agent manages.
	Vendors []gpu.Traits
	// StateDir has the socket of this Instance.
	StateDir string
	Instance string
	// MetricsListen is the address of /metrics alone; empty for none. With an API server in MetricsAPI it has TLS, and needs a token that
	// may get it.
	MetricsListen string
	MetricsAPI    kubernetes.Interface
	// Compared is set once the ledger was first compared with the node.
	Compared *signal.Ready
	State    State
	// Metrics and Samples are pages, Reset is the command `berth reset`, Liveness answers the liveness probe.
	Metrics  http.Handler
	Samples  http.Handler
	Reset    http.Handler
	Liveness http.Handler
	// Report replaces the problems of a source; it must not block.
	Report func(source string, causes ...gpu.Cause)
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Server is the actor. Create it with New, start it with Run.
type Server struct{ deps Deps }

// New returns a Server.
func New(deps Deps) *Server { return &Server{deps: deps} }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.serveSocket(ctx) })
	group.Go(func() error { return s.serveMetrics(ctx) })
	return group.Wait()
}

// serveSocket serves the socket, and tries again while it cannot be made.
func (s *Server) serveSocket(ctx context.Context) error {
	deps := pages.ServerDeps{
		Dir: s.deps.StateDir, Instance: s.deps.Instance, Handler: s.Handler(),
		Ready: func() bool { return s.unready() == "" },
		Clock: s.deps.Clock, Log: s.deps.Log,
	}
	for {
		err := pages.Serve(ctx, deps, func() {
			s.deps.Report("pages")
			s.deps.Log.Info("Started serving pages", "socket", pages.Own(deps.Dir, deps.Instance))
		})
		if err == nil {
			return nil
		}
		s.deps.Report("pages", gpu.Cause{Code: "LISTEN_FAILED", Message: err.Error()})
		select {
		case <-ctx.Done():
			return nil
		case <-s.deps.Clock.After(pageRetry):
		}
	}
}

// serveMetrics serves /metrics alone, on an address that other machines can reach.
func (s *Server) serveMetrics(ctx context.Context) error {
	if s.deps.MetricsListen == "" {
		return nil
	}
	options := httpserver.Options{Log: s.deps.Log}
	page := s.deps.Metrics
	if s.deps.MetricsAPI != nil {
		page = tokens.NewGuard(page, s.deps.MetricsAPI, s.deps.Clock)
		var err error
		if options.TLS, err = httpserver.SelfSigned("berth-agent", s.deps.Clock.Now()); err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	options.Handler = mux
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.deps.MetricsListen)
	if err != nil {
		err = fmt.Errorf("serve metrics: %w (choose another address with --metrics-listen)", err)
		s.deps.Report("metrics", gpu.Cause{Code: "LISTEN_FAILED", Message: err.Error()})
		return nil
	}
	server := httpserver.New(options)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	s.deps.Log.Info("Started serving metrics", "address", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// Handler serves the pages of the socket. Commands that change something are registered only here, because only root of
// this node can use the socket.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.deps.Metrics)
	mux.Handle("POST /v1/reset", s.deps.Reset)
	mux.Handle("GET /debug/samples", s.deps.Samples)
	mux.Handle("GET /healthz", s.deps.Liveness)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.unready(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(s.State()) // An error here is a client that has closed the connection.
	})
	return mux
}

// State returns what /debug/state shows.
func (s *Server) State() DebugState {
	ready := cmp.Or(s.unready(), "yes")
	state, now := s.deps.State, s.deps.State.Config()
	config := DebugConfig{Source: now.Source, Notes: now.Notes, Restart: now.Restart, Config: now.Config}
	if now.Refused != nil {
		config.Refused = now.Refused.Error()
	}
	units := state.Units()
	var daemons []mps.Status
	for _, unit := range offer.MPSUnits(units) {
		if status, ok := state.Daemon(unit.Key.GPU); ok {
			daemons = append(daemons, status)
		}
	}
	return DebugState{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "AgentState",
		Ready: ready, Node: s.deps.NodeName, Simulated: s.deps.Simulated, Vendors: s.deps.Vendors,
		Inventory: state.Inventory(), Holdings: state.Holdings(), Units: units, Offers: state.Offers(),
		MIG: state.MIG(), MPS: daemons, Config: config,
		Plugin: state.Plugin(), Problems: state.Problems(),
	}
}

// unready returns what the agent still waits for; empty when it is ready.
func (s *Server) unready() string {
	if !s.deps.Compared.Is() {
		return "the first scan of the hardware and the comparison with the kubelet are not finished"
	}
	if now := s.deps.State.Config(); now.Waiting {
		return strings.Join(append([]string{"the API server has not said which configuration is in force"}, now.Forbidden...), "; ")
	}
	if !s.deps.State.InjectionKnown() {
		return "the CDI spec was not compared with the driver's files yet, so nothing is advertised"
	}
	served := map[string]bool{}
	for _, stats := range s.deps.State.Plugin() {
		served[stats.Resource] = true
		if !stats.Registered {
			return "the kubelet has not accepted the registration of " + stats.Resource + ": " + cmp.Or(stats.LastError,
				"no kubelet has answered yet")
		}
	}
	// An agent that reports ready too early would end the one that it replaces too early.
	for _, o := range s.deps.State.Offers() {
		if !served[o.Resource] {
			return "the device plugin does not serve " + o.Resource + " yet"
		}
	}
	return ""
}
