package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Source is the source of the Server's problems.
const Source = "dra"

const (
	// watchSockets is the time between two looks at the sockets, which only an accident removes.
	watchSockets = 10 * time.Second
	// firstRetry and lastRetry bound the time between two attempts to serve.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// errRefused means that the kubelet has refused the driver.
var errRefused = errors.New("the kubelet has refused the driver")

// ErrNotServing means that the sockets are not served now; the Server's Serving follows.
var ErrNotServing = errors.New("the DRA driver does not serve yet")

// Server lets the kubelet call a Driver. It is an actor: it serves the sockets until its context ends, and again after a failure.
//
// Each attempt to serve has sockets of its own. The kubelet may register a socket twice, when a registration ends between two of its looks
// at what is registered (pluginmanager/reconciler/reconciler.go:151, 153; tried: kube/test/devicemanager.TestRegistrationTwice). It refuses
// the second one, and repeats that until it restarts, while it calls the driver as registered by the first one. With a path of its own
// the Server knows that this refusal is about itself.
//
// What wakes it: the end of a socket's server, a registration, a refused one, and a look at the sockets every 10 s. What it writes: the
// two sockets, and the problem of the source "dra". What it never waits for: publishing; a missing API server delays only calls that need
// a claim.
type Server struct {
	deps   ServerDeps
	helper atomic.Pointer[kubeletplugin.Helper]
	// sockets are the paths of the present attempt to serve; nil for none.
	sockets atomic.Pointer[[]string]
	// lost has the error that ends the present attempt to serve; registered is set when a kubelet has registered it.
	lost       chan error
	registered *signal.Signal
	// refused is true when the kubelet has refused the attempt before the present one.
	refused bool
}

// NewServer returns a Server; it touches nothing.
func NewServer(deps ServerDeps) *Server {
	return &Server{deps: deps, lost: make(chan error, 1), registered: signal.New()}
}

// PublishResources passes the pools of the node to the library, which writes them to the API server. Its first call after the start waits
// for the API server. It returns ErrNotServing while there is nothing that could write them.
func (s *Server) PublishResources(ctx context.Context, resources resourceslice.DriverResources) error {
	helper := s.helper.Load()
	if helper == nil {
		return ErrNotServing
	}
	return helper.PublishResources(ctx, resources)
}

// Sockets returns the paths of the sockets that are served now, that of the registration first; nil when none is.
func (s *Server) Sockets() []string {
	if sockets := s.sockets.Load(); sockets != nil {
		return *sockets
	}
	return nil
}

// Run serves until ctx ends. Calls wait until Adopt has returned without an error. Run returns when no call is under way and the sockets
// are removed.
func (s *Server) Run(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		began := s.clock().Now()
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.refused = errors.Is(err, errRefused)
		if s.clock().Since(began) > lastRetry {
			wait = firstRetry
		}
		s.report(gpu.Cause{Code: "DRA_NOT_SERVED", Message: fmt.Sprintf("the kubelet cannot prepare claims through %s: %v; the agent tries again", s.name(), err)})
		select {
		case <-ctx.Done():
			return nil
		case <-s.clock().After(wait):
		}
	}
}

func (s *Server) name() string { return s.deps.Driver.deps.DriverName }

func (s *Server) registry() string { return registryDir(s.deps.KubeletDir) }

func (s *Server) plugin() string { return pluginDir(s.deps.KubeletDir, s.name()) }

func (s *Server) clock() interface {
	Now() time.Time
	Since(time.Time) time.Duration
	After(time.Duration) <-chan time.Time
} {
	return s.deps.Driver.deps.Clock
}

func (s *Server) report(problems ...gpu.Cause) { s.deps.Driver.deps.Report(Source, problems...) }

// serve serves the sockets until ctx ends, they fail or the kubelet refuses them.
func (s *Server) serve(ctx context.Context) error {
	if err := s.folders(); err != nil {
		return err
	}
	for left := true; left; { // Of the attempt before this one.
		select {
		case <-s.lost:
		case <-s.registered.C():
		default:
			left = false
		}
	}
	instance := randomInstance()
	sockets := s.paths(instance)
	helper, err := kubeletplugin.Start(ctx, &served{Driver: s.deps.Driver, server: s},
		kubeletplugin.DriverName(s.name()),
		kubeletplugin.KubeClient(s.deps.Client),
		kubeletplugin.NodeName(s.deps.NodeName),
		kubeletplugin.RegistrarDirectoryPath(s.registry()),
		kubeletplugin.RegistrarListener(listen),
		kubeletplugin.PluginDataDirectoryPath(s.plugin()),
		kubeletplugin.PluginListener(listen),
		kubeletplugin.RollingUpdate(types.UID(instance)),
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(s.watchRegistration(sockets[1])),
	)
	if err != nil {
		return fmt.Errorf("serve the DRA driver: %w", err)
	}
	s.helper.Store(helper)
	s.sockets.Store(&sockets)
	defer func() {
		s.helper.Store(nil)
		s.sockets.Store(nil)
		helper.Stop()
		s.deps.Driver.calls.Wait()
	}()
	if !s.refused { // That problem ends with a registration.
		s.report()
	}
	s.deps.Serving()
	s.deps.Driver.deps.Log.Info("Served the DRA driver", "driver", s.name(), "registration", sockets[0], "socket", sockets[1])
	for registered := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return err
		case <-s.registered.C():
			registered = true
		case <-s.clock().After(watchSockets):
		}
		if err := exist(sockets); err != nil {
			return err
		}
		if registered {
			s.removeStale()
		}
	}
}

// folders makes the driver's own folder. The registry is the kubelet's.
func (s *Server) folders() error {
	if _, err := os.Stat(s.registry()); err != nil {
		return fmt.Errorf("find the kubelet's registry; check that the kubelet runs and that the agent mounts its folder: %w", err)
	}
	if err := os.MkdirAll(s.plugin(), 0o700); err != nil {
		return fmt.Errorf("make the driver's folder: %w", err)
	}
	if err := os.Chmod(s.plugin(), 0o700); err != nil { //nolint:gosec // A folder needs the execute bit.
		return fmt.Errorf("protect the driver's folder: %w", err)
	}
	return nil
}

// removeStale removes the sockets of instances that were killed. The kubelet ends the registration of a socket that is removed, so it is
// called when this instance is registered.
func (s *Server) removeStale() {
	log := s.deps.Driver.deps.Log
	for _, pattern := range socketPatterns(s.registry(), s.plugin(), s.name()) {
		removed, err := removeStale(pattern, s.clock().Now())
		if err != nil {
			log.Warn("Could not remove the sockets of instances that have ended", "error", err)
		}
		for _, path := range removed {
			log.Info("Removed the socket of an instance that has ended", "path", path)
		}
	}
}

// paths returns those of the two sockets of an instance, as the library names them.
func (s *Server) paths(instance string) []string {
	registrar := kubeletplugin.RollingUpdateRegistrarSocketFile(s.registry(), s.name(), types.UID(instance))
	return []string{filepath.Join(s.registry(), registrar), filepath.Join(s.plugin(), "dra-"+instance+".sock")}
}

func exist(sockets []string) error {
	for _, path := range sockets {
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("find the socket: %w", err)
		}
	}
	return nil
}

// watchRegistration sees the calls of both sockets, of which endpoint is the driver's.
func (s *Server) watchRegistration(endpoint string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		response, err := handle(ctx, request)
		status, ok := request.(*registerapi.RegistrationStatus)
		switch {
		case info.FullMethod != registerapi.Registration_NotifyRegistrationStatus_FullMethodName || !ok:
		case status.GetPluginRegistered(), registeredBefore(status.GetError(), endpoint):
			s.report()
			s.deps.Driver.deps.Log.Info("Registered the DRA driver with the kubelet", "driver", s.name(), "answer", status.GetError())
			s.deps.Registered()
			s.registered.Set()
		default:
			s.lose(fmt.Errorf("%w: %s", errRefused, status.GetError()))
		}
		return response, err
	}
}

// registeredBefore reports whether the kubelet refuses an endpoint because it has that one (cm/dra/plugin/dra_plugin_manager.go:379).
func registeredBefore(refusal, endpoint string) bool {
	return strings.Contains(refusal, "endpoint "+endpoint+" already registered")
}

// lose ends the present attempt to serve.
func (s *Server) lose(err error) {
	select {
	case s.lost <- err:
	default:
	}
}

// served is the Driver with the errors of the library's background work.
type served struct {
	*Driver
	server *Server
}

var _ kubeletplugin.DRAPlugin = (*served)(nil)

// HandleError gets the errors of the library's background work. None of them ends the agent: those of publishing are passed on, and
// after one of a socket the Server serves again.
func (p *served) HandleError(_ context.Context, err error, message string) {
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		p.server.deps.Failed(fmt.Errorf("%s: %w", message, err))
	default:
		p.server.lose(fmt.Errorf("%s: %w", message, err))
	}
}
