package devicemanager

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	kubeletdra "k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// TestRegistrationTwice: the kubelet may register a socket twice, and refuses the second registration of it. The driver is registered, and
// the agent reports nothing.
func TestRegistrationTwice(t *testing.T) {
	const nodes = 20
	var wg sync.WaitGroup
	var refused atomic.Int32
	for i := range nodes {
		dir := registryNode(t, &refused)
		wg.Go(func() {
			if problem := serveOnce(t, dir); problem != "" {
				t.Errorf("node %d: %s", i, problem)
			}
		})
	}
	wg.Wait()
	t.Logf("the kubelets of %d nodes refused %d registrations", nodes, refused.Load())
	if refused.Load() == 0 {
		t.Error("no kubelet registered a socket twice: the test saw nothing")
	}
}

// registryNode returns the directory of a kubelet that registers drivers, and counts the registrations that it refuses.
func registryNode(t *testing.T, refused *atomic.Int32) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm") // Short enough for sockets.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o750); err != nil {
		t.Fatal(err)
	}
	manager, err := kubeletdra.NewManager(klog.Logger{}, fake.NewClientset(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(quiet(context.Background()))
	closed := make(chan struct{})
	node := func(context.Context) (*v1.Node, error) { return &v1.Node{}, nil }
	if err := manager.Start(ctx, func() []*v1.Pod { return nil }, node, &sources{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); close(closed); manager.Stop() })
	handler := counting{PluginHandler: manager.GetWatcherHandler(), refused: refused}
	registerDrivers(klog.NewContext(ctx, slowLog()), t, dir, handler, 100*time.Microsecond, closed)
	return dir
}

// counting counts the registrations that the kubelet refuses.
type counting struct {
	cache.PluginHandler
	refused *atomic.Int32
}

// RegisterPlugin counts an error.
func (c counting) RegisterPlugin(ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration) error {
	err := c.PluginHandler.RegisterPlugin(ctx, name, endpoint, versions, timeout)
	if err != nil {
		c.refused.Add(1)
	}
	return err
}

// slowLog returns a log that takes 20 ms for the line between the kubelet's look at what is registered and a registration,
// as on a busy node: a registration that ends there is repeated.
func slowLog() logr.Logger {
	return funcr.New(func(_, line string) {
		if strings.Contains(line, "Starting operationExecutor.RegisterPlugin") {
			time.Sleep(20 * time.Millisecond)
		}
	}, funcr.Options{Verbosity: 5})
}

// serveOnce runs a server of the driver until it is registered and for a while longer, or until it has a problem, which it returns.
func serveOnce(t *testing.T, dir string) (problem string) {
	t.Helper()
	var changed signal.Broadcast
	problems := make(chan string, 100)
	driver := dra.New(dra.Deps{
		DriverName: pool.DefaultDriver, Pool: nodeName, Devices: func() []dra.Device { return nil }, Changed: changed.Subscribe,
		Prepared: func() ([]dra.Listed, error) { return nil, nil }, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		Report: func(_ string, causes ...gpu.Cause) {
			for _, cause := range causes {
				problems <- cause.Message
			}
		},
	})
	if err := driver.Adopt(); err != nil {
		t.Error(err)
	}
	registered := make(chan struct{}, 100)
	server := dra.NewServer(dra.ServerDeps{
		Driver: driver, Client: fake.NewClientset(), NodeName: nodeName, KubeletDir: dir,
		Serving: func() {}, Registered: func() { registered <- struct{}{} }, Failed: func(error) {},
	})
	ctx, cancel := context.WithCancel(quiet(context.Background()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	limit := time.After(20 * time.Second)
	for {
		select {
		case problem = <-problems:
		case <-registered:
			limit = time.After(500 * time.Millisecond)
			registered = nil
			continue
		case <-limit:
			if registered != nil {
				problem = "not registered after 20 s"
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		return problem
	}
}
