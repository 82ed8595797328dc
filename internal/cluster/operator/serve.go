package operator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-gpu/berth/internal/httpserver"
	"github.com/berth-gpu/berth/internal/httpserver/tokens"
)

// probes are /healthz, which says that the process serves, and /readyz. They are served from the start, so that the kubelet does not end
// an operator that waits for the API server.
type probes struct {
	ready atomic.Pointer[func(*http.Request) error]
}

// become makes /readyz ask from now on.
func (p *probes) become(ready func(*http.Request) error) { p.ready.Store(&ready) }

func (p *probes) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := (*p.ready.Load())(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok"))
	})
	return mux
}

// serveProbes serves the probes until end is called.
func serveProbes(ctx context.Context, deps Deps) (p *probes, end func(), err error) {
	p = &probes{}
	p.become(func(*http.Request) error {
		return fmt.Errorf("the API server %s does not respond (see the log)", deps.API.Host)
	})
	end, err = serve(ctx, deps.ProbeListen, httpserver.Options{Handler: p.handler(), Log: deps.Log})
	if err != nil {
		return nil, nil, fmt.Errorf("listen for probes: %w (use --probe-listen ADDRESS)", err)
	}
	return p, end, nil
}

// serveMetrics serves /metrics until end is called.
func serveMetrics(ctx context.Context, deps Deps) (end func(), err error) {
	options := httpserver.Options{Log: deps.Log}
	page := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	if deps.MetricsTokens {
		api, err := kubernetes.NewForConfig(deps.API)
		if err != nil {
			return nil, fmt.Errorf("connect to the API server: %w", err)
		}
		page = tokens.NewGuard(page, api, deps.Clock)
		if options.TLS, err = httpserver.SelfSigned(Name, deps.Clock.Now()); err != nil {
			return nil, fmt.Errorf("serve metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	options.Handler = mux
	end, err = serve(ctx, deps.MetricsListen, options)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w (use --metrics-listen ADDRESS)", err)
	}
	return end, nil
}

// serve serves on an address, if there is one, until end is called.
func serve(ctx context.Context, address string, options httpserver.Options) (end func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	server := httpserver.New(options)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	return func() {
		_ = server.Close()
		<-ended
	}, nil
}
