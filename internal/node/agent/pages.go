package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/mps"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// pageTimeout bounds how slowly a scraper may send its request, in the way of
// net/http's ReadHeaderTimeout.
const pageTimeout = 5 * time.Second

// pageRetry is the time between two attempts to make the socket of the pages.
const pageRetry = 5 * time.Second

// DebugState is what /debug/state shows: the inventory, the ledger, and what was
// made of them. It names pods of all tenants, so it is on the socket only.
type DebugState struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Ready      string `json:"ready"`
	Node       string `json:"node"`
	// Simulated is the directory of the simulated hardware; empty for a real driver.
	Simulated string               `json:"simulated,omitempty"`
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

// pages serves the agent's HTTP pages on its socket until ctx ends. All of them answer
// from memory. A socket that cannot be made is a problem, not the end: the pods' GPUs
// matter more than the pages.
func (a *Agent) pages(ctx context.Context) error {
	deps := pages.ServerDeps{
		Dir: a.config.StateDir, Instance: a.instance, Handler: a.handler(),
		Ready: func() bool { return a.unready() == "" },
		Clock: a.clock, Log: a.log.With("room", "pages"),
	}
	for {
		err := pages.Serve(ctx, deps, func() {
			a.problemList.Set("pages")
			a.log.Info("serving pages", "socket", pages.Own(deps.Dir, deps.Instance))
		})
		if err == nil {
			return nil
		}
		a.problemList.SetError("pages", "LISTEN_FAILED", err)
		select {
		case <-ctx.Done():
			return nil
		case <-a.clock.After(pageRetry):
		}
	}
}

// metricsPage serves /metrics alone where that is wanted, to whoever reaches the address. Everything else is
// on the socket, which is for root of this node.
func (a *Agent) metricsPage(ctx context.Context) error {
	if a.config.MetricsListen == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.page)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.config.MetricsListen)
	if err != nil {
		a.problemList.SetError("metrics", "LISTEN_FAILED", fmt.Errorf("serve metrics: %w (choose another address with --metrics-listen)", err))
		return nil
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: pageTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	a.log.Info("serving metrics", "address", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// handler serves what is on the socket. A command that changes something is registered here, as
// mux.HandleFunc("POST /v1/...", a.command), and nowhere else: only root of this node reaches it.
func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.page)
	mux.Handle("POST /v1/reset", a.resetter)
	mux.HandleFunc("GET /debug/samples", a.page.ServeSamples)
	mux.Handle("GET /healthz", a.liveness)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := a.unready(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		// An error here is a client that went away.
		_ = encoder.Encode(a.debugState())
	})
	return mux
}

func (a *Agent) debugState() DebugState {
	ready := a.unready()
	if ready == "" {
		ready = "yes"
	}
	now := a.watch.Current()
	config := DebugConfig{Source: now.Source, Notes: now.Notes, Restart: now.Restart, Config: now.Config}
	if now.Refused != nil {
		config.Refused = now.Refused.Error()
	}
	var daemons []mps.Status
	for _, unit := range offer.MPSUnits(a.allocatable.Units()) {
		if status, ok := a.mps.Status(unit.Key.GPU); ok {
			daemons = append(daemons, status)
		}
	}
	return DebugState{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "AgentState",
		Ready: ready, Node: a.config.NodeName, Simulated: a.simulated,
		Inventory: a.inventory.Current(), Holdings: a.ledger.Holdings(), Units: a.allocatable.Units(), Offers: a.offers(),
		MIG: a.partition.Statuses(), MPS: daemons, Config: config,
		Plugin: a.plugin.Stats(), Problems: a.problemList.All(),
	}
}

// unready says in a sentence what the agent still waits for; nothing when it is ready.
func (a *Agent) unready() string {
	select {
	case <-a.compared:
	default:
		return "the first scan of the hardware and the comparison with the kubelet are not finished"
	}
	if now := a.watch.Current(); now.Waiting {
		return strings.Join(append([]string{"the API has not said which configuration is in force"}, now.Forbidden...), "; ")
	}
	if !a.injection.Known() {
		return "the CDI spec was not compared with the driver's files yet, so nothing is advertised"
	}
	served := map[string]bool{}
	for _, stats := range a.plugin.Stats() {
		served[stats.Resource] = true
		if !stats.Registered {
			return "the kubelet has not taken the registration of " + stats.Resource + ": " + cmp.Or(stats.LastError, "no kubelet has answered yet")
		}
	}
	// An agent that said it is ready too early would end the one that it replaces too early.
	for _, o := range a.offers() {
		if !served[o.Resource] {
			return "the device plugin does not serve " + o.Resource + " yet"
		}
	}
	return ""
}
