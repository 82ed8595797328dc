package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// host is a node whose driver is served over real sockets.
type host struct {
	*node
	dir        string
	client     *fake.Clientset
	registered atomic.Int32
	failures   chan error
	server     *Server
	stop       func()
}

// serve runs a server until stop is called or the test ends.
func serve(t testing.TB, n *node, dir string, objects ...runtime.Object) *host {
	t.Helper()
	h := &host{node: n, dir: dir, client: fake.NewClientset(objects...), failures: make(chan error, 10)}
	h.run(t, n.driver(t))
	return h
}

func (h *host) run(t testing.TB, d *Driver) {
	t.Helper()
	if err := os.MkdirAll(h.registry(), 0o750); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{}, 100)
	h.server = NewServer(ServerDeps{
		Driver: d, Client: h.client, NodeName: poolName, KubeletDir: h.dir,
		Serving:    func() { h.registered.Add(1); served <- struct{}{} },
		Registered: func() { h.registered.Add(1); served <- struct{}{} },
		Failed:     func(err error) { h.failures <- err },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.server.Run(ctx) }()
	stopped := false
	h.stop = func() {
		if cancel(); stopped {
			return
		}
		stopped = true
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(h.stop)
	select {
	case <-served:
	case <-time.After(10 * time.Second):
		t.Fatalf("the server does not run: %v", h.reported(Source))
	}
}

// sockets returns the paths of the sockets of the present attempt to serve.
func (h *host) sockets() []string { return h.server.Sockets() }

func (h *host) registry() string { return registryDir(h.dir) }
func (h *host) plugins() string  { return pluginDir(h.dir, driverName) }

func dial(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// kubelet is the kubelet's side of the sockets.
type kubelet struct {
	registrar registerapi.RegistrationClient
	info      *registerapi.PluginInfo
	plugin    drapb.DRAPluginClient
	health    healthpb.DRAResourceHealthClient
}

// register does what the kubelet does with a registration socket, of the instance whose socket is at path.
func register(t testing.TB, path string) *kubelet {
	t.Helper()
	k := &kubelet{registrar: registerapi.NewRegistrationClient(dial(t, path))}
	var err error
	if k.info, err = k.registrar.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil {
		t.Fatal(err)
	}
	connection := dial(t, k.info.Endpoint)
	k.plugin, k.health = drapb.NewDRAPluginClient(connection), healthpb.NewDRAResourceHealthClient(connection)
	if _, err := k.registrar.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	return k
}

func request(claims ...*resourceapi.ResourceClaim) *drapb.NodePrepareResourcesRequest {
	all := &drapb.NodePrepareResourcesRequest{}
	for _, claim := range claims {
		all.Claims = append(all.Claims, &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)})
	}
	return all
}

// prepare returns the CDI names for a claim, or the error of the claim or of the call.
func (k *kubelet) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]string, error) {
	response, err := k.plugin.NodePrepareResources(ctx, request(claim))
	if err != nil {
		return nil, err
	}
	result := response.GetClaims()[string(claim.UID)]
	if result == nil {
		return nil, errors.New("no result")
	}
	if result.GetError() != "" {
		return nil, errors.New(result.GetError())
	}
	var names []string
	for _, device := range result.GetDevices() {
		names = append(names, device.GetCdiDeviceIds()...)
	}
	return names, nil
}

func (k *kubelet) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := k.plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: request(claim).GetClaims()})
	if err != nil {
		return err
	}
	result, there := response.GetClaims()[string(claim.UID)]
	if !there {
		return errors.New("no result")
	}
	if result.GetError() != "" {
		return errors.New(result.GetError())
	}
	return nil
}

func TestServer(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("serve", func(t *testing.T) {
		claims := []*resourceapi.ResourceClaim{allocated("a", "u1", result("gpu", 0)), allocated("b", "u2", result("gpu", 1), result("gpu", 2)), allocated("c", "u3", result("gpu", 0))}
		n := newNode(3)
		h := serve(t, n, t.TempDir(), claims[0], claims[1], claims[2])
		sockets := h.sockets()
		k := register(t, sockets[0])
		if h.registered.Load() != 2 {
			t.Errorf("registered was called %d times, and not at the start and at the registration", h.registered.Load())
		}
		if k.info.GetName() != driverName || k.info.GetType() != registerapi.DRAPlugin || k.info.GetEndpoint() != sockets[1] {
			t.Errorf("%+v", k.info)
		}
		for path, want := range map[string]fs.FileMode{h.plugins(): 0o700 | fs.ModeDir, k.info.GetEndpoint(): 0o600 | fs.ModeSocket,
			sockets[0]: 0o600 | fs.ModeSocket} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
			}
		}
		for range 2 {
			response, err := k.plugin.NodePrepareResources(t.Context(), request(claims...))
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(len(response.GetClaims()["u1"].GetDevices()), len(response.GetClaims()["u2"].GetDevices()), len(response.GetClaims()["u3"].GetDevices()))
			// u1 and u3 want the same GPU: one of them has it, and keeps it.
			if got != "1 2 0" && got != "0 2 1" {
				t.Errorf("prepared %s devices: %v", got, response)
			}
		}
		for _, claim := range claims {
			if err := k.unprepare(t.Context(), claim); err != nil {
				t.Error(err)
			}
		}
		if len(n.ledger.holders()) != 0 {
			t.Errorf("left %v", n.ledger.holders())
		}
		h.stop()
		for _, path := range sockets {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	})
}

// TestRegistrationRefused: after a refusal the server serves with other sockets. The problem has the kubelet's reason, and ends with a
// registration.
func TestRegistrationRefused(t *testing.T) {
	tests := map[string]struct {
		// refusal is the kubelet's; in it, %s is the driver's socket.
		refusal string
		// wantAgain is true when the server serves again.
		wantAgain bool
	}{
		"version": {refusal: "no such version", wantAgain: true},
		"another": {refusal: "endpoint %s5 already registered for DRA driver plugin gpu.berth.dev", wantAgain: true},
		"itself":  {refusal: "RegisterPlugin error -- plugin registration failed with err: endpoint %s already registered for DRA driver plugin gpu.berth.dev"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := serve(t, newNode(1), t.TempDir())
			refused := h.sockets()
			k := register(t, refused[0])
			refusal := strings.ReplaceAll(test.refusal, "%s", refused[1])
			if _, err := k.registrar.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: refusal}); err == nil {
				t.Error("no error")
			}
			for h.registered.Load() < 3 { // Served, registered, and served or registered.
				time.Sleep(time.Millisecond)
			}
			if !test.wantAgain {
				if got := h.reported(Source); len(got) != 0 || h.sockets()[0] != refused[0] {
					t.Errorf("serves %s, and before %s: %v", h.sockets(), refused, got)
				}
				return
			}
			if got := h.reported(Source); len(got) != 1 || got[0].Code != "DRA_NOT_SERVED" || !strings.Contains(got[0].Message, "refused the driver: "+refusal) {
				t.Errorf("%v", got)
			}
			for i, path := range h.sockets() {
				if path == refused[i] {
					t.Errorf("%s serves again", path)
				}
				if _, err := os.Lstat(refused[i]); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", refused[i], err)
				}
			}
			register(t, h.sockets()[0])
			if got := h.reported(Source); len(got) != 0 {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestSocketPaths: the paths are short enough for sockets with the kubelet's directory of each distribution.
func TestSocketPaths(t *testing.T) {
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"} {
		s := NewServer(ServerDeps{KubeletDir: dir, Driver: &Driver{deps: Deps{DriverName: "gpu.berth.dev"}}})
		for _, path := range s.paths(randomInstance()) {
			if len(path) > 107 {
				t.Errorf("%s has %d bytes, and at most 107 are possible", path, len(path))
			}
			patterns := socketPatterns(s.registry(), s.plugin(), s.name())
			if one, err := filepath.Match(patterns[0], path); err != nil || !one {
				if other, err := filepath.Match(patterns[1], path); err != nil || !other {
					t.Errorf("%s matches none of %s: %v", path, patterns, err)
				}
			}
		}
	}
}

// TestKilledInstance: the sockets of an instance that was killed stay until the next one is registered.
func TestKilledInstance(t *testing.T) {
	n, dir := newNode(1), t.TempDir()
	killed := serve(t, n, dir)
	left := killed.sockets()
	killed.stop()
	for _, path := range left {
		leave(t, path, time.Minute)
	}
	h := serve(t, n, dir)
	for _, path := range left {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("removed before the next instance is registered: %v", err)
		}
	}
	register(t, h.sockets()[0])
	for _, path := range left {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is left", path)
			}
		}
	}
}

// leave makes a socket of that age that no process serves.
func leave(t *testing.T, path string, age time.Duration) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-age)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
}

// TestTwoInstances: during an upgrade both instances serve, and a claim that the old one prepared is unprepared by the new one.
func TestTwoInstances(t *testing.T) {
	claim := allocated("a", "u1", result("gpu", 0))
	n, dir := newNode(1), t.TempDir()
	old := serve(t, n, dir, claim)
	first := register(t, old.sockets()[0])
	if _, err := first.prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	next := serve(t, n, dir, claim)
	second := register(t, next.sockets()[0])
	if _, err := first.prepare(t.Context(), claim); err != nil {
		t.Errorf("the old instance serves no more: %v", err)
	}
	old.stop()
	if _, err := second.prepare(t.Context(), claim); err != nil {
		t.Error(err)
	}
	if err := second.unprepare(t.Context(), claim); err != nil || len(n.ledger.holders()) != 0 {
		t.Errorf("%v %v", err, n.ledger.holders())
	}
}

// TestStaleSockets: the sockets of an instance that was killed are removed, those of a living one stay.
func TestStaleSockets(t *testing.T) {
	dir := t.TempDir()
	stale, living, fresh, other := filepath.Join(dir, driverName+"-a-reg.sock"), filepath.Join(dir, driverName+"-b-reg.sock"),
		filepath.Join(dir, driverName+"-c-reg.sock"), filepath.Join(dir, "other.example.com-reg.sock")
	for path, age := range map[string]time.Duration{stale: time.Minute, fresh: 0, other: time.Minute} {
		leave(t, path, age)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", living)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(living, past, past); err != nil {
		t.Fatal(err)
	}
	removed, err := removeStale(filepath.Join(dir, driverName+"-*reg.sock"), time.Now())
	if err != nil || len(removed) != 1 || removed[0] != stale {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// TestNoRegistry: without the kubelet's folder the server waits for it and says so.
func TestNoRegistry(t *testing.T) {
	n := newNode(1)
	server := NewServer(ServerDeps{Driver: n.driver(t), Client: fake.NewClientset(), NodeName: poolName, KubeletDir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	for len(n.reported(Source)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if got := n.reported(Source)[0]; got.Code != "DRA_NOT_SERVED" || !strings.Contains(got.Message, "find the kubelet's registry") {
		t.Errorf("%v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeAgain: when the server of a socket fails, the server serves again; it does not end the agent.
func TestServeAgain(t *testing.T) {
	h := serve(t, newNode(1), t.TempDir())
	(&served{server: h.server}).HandleError(t.Context(), errors.New("accept: too many open files"), "DRA gRPC server failed")
	for h.registered.Load() < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	register(t, h.sockets()[0])
	if got := h.reported(Source); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestHealthStream: over the socket, the kubelet sees a change at once.
func TestHealthStream(t *testing.T) {
	n := newNode(2)
	h := serve(t, n, t.TempDir())
	k := register(t, h.sockets()[0])
	stream, err := k.health.NodeWatchResources(t.Context(), &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || len(first.GetDevices()) != 2 || first.GetDevices()[1].GetHealth() != healthpb.HealthStatus_HEALTHY {
		t.Fatalf("%v %v", first, err)
	}
	began := time.Now()
	n.change(1, func(device *Device) { device.Health, device.Reason = gpu.Unhealthy, "XID 79" })
	second, err := stream.Recv()
	if err != nil || second.GetDevices()[1].GetHealth() != healthpb.HealthStatus_UNHEALTHY || second.GetDevices()[1].GetMessage() != "XID 79" {
		t.Fatalf("%v %v", second, err)
	}
	t.Logf("the change took %s", time.Since(began))
}
