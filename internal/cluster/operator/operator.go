// Package operator makes the manager of Berth's controllers and runs it.
//
// It guarantees that of several replicas one acts (the Lease berth-operator in the operator's namespace), that the Lease is free at once
// after an orderly end, and that nothing is written to a cluster whose definitions are of a newer Berth. The caches have only what a
// concern names: a read of anything else from a cache fails. The package holds no state; what it knows is in the API server.
//
// Each concern is a package of its own below this one, and a row in [concerns]. It must not import internal/node, internal/hardware or
// internal/cli; only its command and tests import it.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
	"github.com/berth-gpu/berth/internal/cluster/operator/definitions"
)

// Name is the name of the operator: of its Lease, and of the reporting controller of its Events.
const Name = "berth-operator"

// Deps are what the operator works with.
type Deps struct {
	// API is the API server and the operator's credentials.
	API *rest.Config
	// Namespace has the Lease and the ConfigMap of the release, and gets the validation pods.
	Namespace string
	// Identity is the operator's name as the holder of the Lease. No two processes may have one at the same time.
	Identity string
	// LeaderElect makes the operator wait until it holds the Lease.
	LeaderElect bool
	// ProbeListen and MetricsListen are the addresses of /healthz and /readyz, and of /metrics; "" means none.
	ProbeListen   string
	MetricsListen string
	// MetricsTokens makes /metrics need TLS and a token that may get it.
	MetricsTokens bool
	Clock         clock.Clock
	Log           *slog.Logger
}

// Run waits for the API server and runs the controllers until the context ends. It returns a [definitions.NewerError]
// before it has written anything when the cluster has a definition of a newer Berth, and when it gets one later.
func Run(ctx context.Context, deps Deps) error {
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	direct, err := client.New(deps.API, client.Options{Scheme: known})
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	resources, err := discovery.NewDiscoveryClientForConfig(deps.API)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	probes, endProbes, err := serveProbes(ctx, deps)
	if err != nil {
		return err
	}
	defer endProbes()
	endMetrics, err := serveMetrics(ctx, deps)
	if err != nil {
		return err
	}
	defer endMetrics()
	if err := awaitAPI(ctx, deps, func(ctx context.Context) error { return definitions.Check(ctx, direct) }); err != nil {
		return err
	}
	lock, endEvents, err := newLock(deps, known)
	if err != nil {
		return err
	}
	defer endEvents()
	m, err := newManager(deps, known, lock)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	shared := shared{client: direct, resources: resources, objects: attempts.New(deps.Clock, deps.Log), namespace: deps.Namespace, clock: deps.Clock,
		log: deps.Log, stop: stop}
	for _, c := range concerns() {
		if err := c.add(m, shared); err != nil {
			return fmt.Errorf("add %s: %w", c.name, err)
		}
	}
	probes.become(ready(m))
	err = m.Start(ctx)
	// A controller that stopped the operator says why; the end of the caller's context is none of them.
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func newManager(deps Deps, known *runtime.Scheme, lock resourcelock.Interface) (manager.Manager, error) {
	named := true
	return manager.New(deps.API, manager.Options{
		Scheme:                              known,
		MapperProvider:                      mapper,
		Logger:                              logr.FromSlogHandler(deps.Log.Handler()),
		Cache:                               cache.Options{ByObject: cached(deps.Namespace), ReaderFailOnMissingInformer: true},
		LeaderElection:                      deps.LeaderElect,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		// Its own servers bound neither connections nor headers.
		Metrics: server.Options{BindAddress: "0"},
		// controller-runtime compares names within the process, where a test may run several operators.
		Controller: config.Controller{SkipNameValidation: &named},
	})
}

// mapper knows the kinds that the operator itself defines, which the API server serves only after that, and those that
// it may not serve at all: without it the caches of them could not be made.
func mapper(to *rest.Config, http *http.Client) (meta.RESTMapper, error) {
	own := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{v1alpha1.KindGPUNode, v1alpha1.KindGPUQuota, v1alpha1.KindGPUStack, v1alpha1.KindNodeOperation} {
		own.Add(v1alpha1.GroupVersion().WithKind(kind), meta.RESTScopeRoot)
	}
	own.Add(resourceapi.SchemeGroupVersion.WithKind("DeviceClass"), meta.RESTScopeRoot)
	served, err := apiutil.NewDynamicRESTMapper(to, http)
	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{own, served}}, err
}

// syncPatience is how long a readiness probe waits for the caches.
const syncPatience = 100 * time.Millisecond

// ready returns what /readyz asks: the operator waits for the Lease, or its caches are synced.
func ready(m manager.Manager) func(*http.Request) error {
	return func(request *http.Request) error {
		select {
		case <-m.Elected():
		default:
			return nil
		}
		ctx, cancel := context.WithTimeout(request.Context(), syncPatience)
		defer cancel()
		if !m.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced: the API server is away, or refuses a list or watch (see the log)")
		}
		return nil
	}
}
