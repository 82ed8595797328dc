package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
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

// ErrNotServing means that the sockets are not served now; the Server's Serving follows.
var ErrNotServing = errors.New("the DRA driver does not serve yet")

// Server lets the kubelet call a Driver. It is an actor: it serves the sockets until its context ends, and again after a failure.
//
// What wakes it: the end of a socket's server, and a look at the sockets every 10 s. What it writes: the two sockets, and the problem of
// the source "dra". What it never waits for: publishing; a missing API server delays only calls that need a claim.
type Server struct {
	deps   ServerDeps
	helper atomic.Pointer[kubeletplugin.Helper]
	// lost has the error that ends the present attempt to serve.
	lost chan error
}

// NewServer returns a Server; it touches nothing.
func NewServer(deps ServerDeps) *Server {
	return &Server{deps: deps, lost: make(chan error, 1)}
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

// Run serves until ctx ends. Calls wait until Adopt has returned without an error. Run returns when no call is under way and the sockets
// are removed.
func (s *Server) Run(ctx context.Context) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		began := s.clock().Now()
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
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

// serve serves the sockets until ctx ends or they fail.
func (s *Server) serve(ctx context.Context) error {
	if err := s.folders(); err != nil {
		return err
	}
	select { // An error of the attempt before this one.
	case <-s.lost:
	default:
	}
	helper, err := kubeletplugin.Start(ctx, &served{Driver: s.deps.Driver, server: s},
		kubeletplugin.DriverName(s.name()),
		kubeletplugin.KubeClient(s.deps.Client),
		kubeletplugin.NodeName(s.deps.NodeName),
		kubeletplugin.RegistrarDirectoryPath(s.registry()),
		kubeletplugin.RegistrarListener(listen),
		kubeletplugin.PluginDataDirectoryPath(s.plugin()),
		kubeletplugin.PluginListener(listen),
		kubeletplugin.RollingUpdate(types.UID(s.deps.PodUID)),
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(s.watchRegistration),
	)
	if err != nil {
		return fmt.Errorf("serve the DRA driver: %w", err)
	}
	s.helper.Store(helper)
	defer func() {
		s.helper.Store(nil)
		helper.Stop()
		s.deps.Driver.calls.Wait()
	}()
	s.report()
	s.deps.Serving()
	s.deps.Driver.deps.Log.Info("Served the DRA driver", "driver", s.name(), "registryDir", s.registry(), "pluginDir", s.plugin())
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return err
		case <-s.clock().After(watchSockets):
			if err := s.socketsExist(); err != nil {
				return err
			}
		}
	}
}

// folders makes the driver's own folder and removes the sockets of instances that were killed. The registry is the kubelet's.
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
	now := s.clock().Now()
	for _, pattern := range socketPatterns(s.registry(), s.plugin(), s.name()) {
		removed, err := removeStale(pattern, now)
		if err != nil {
			return fmt.Errorf("remove the sockets of instances that have ended: %w", err)
		}
		for _, path := range removed {
			s.deps.Driver.deps.Log.Info("Removed the socket of an instance that has ended", "path", path)
		}
	}
	return nil
}

// sockets returns the paths of the two sockets, as the library names them.
func (s *Server) sockets() []string {
	registrar, own := s.name()+"-reg.sock", "dra.sock"
	if uid := s.deps.PodUID; uid != "" {
		registrar = kubeletplugin.RollingUpdateRegistrarSocketFile(s.registry(), s.name(), types.UID(uid))
		own = "dra-" + uid + ".sock"
	}
	return []string{filepath.Join(s.registry(), registrar), filepath.Join(s.plugin(), own)}
}

func (s *Server) socketsExist() error {
	for _, path := range s.sockets() {
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("find the socket: %w", err)
		}
	}
	return nil
}

// watchRegistration sees the calls of both sockets.
func (s *Server) watchRegistration(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	if info.FullMethod != registerapi.Registration_NotifyRegistrationStatus_FullMethodName {
		return response, err
	}
	status, ok := request.(*registerapi.RegistrationStatus)
	switch {
	case !ok:
	case status.GetPluginRegistered():
		s.report()
		s.deps.Driver.deps.Log.Info("Registered the DRA driver with the kubelet", "driver", s.name())
		s.deps.Registered()
	default:
		s.report(gpu.Cause{Code: "DRA_NOT_SERVED", Message: fmt.Sprintf("the kubelet has refused the DRA driver %s: %s", s.name(), status.GetError())})
	}
	return response, err
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
		select {
		case p.server.lost <- fmt.Errorf("%s: %w", message, err):
		default:
		}
	}
}
