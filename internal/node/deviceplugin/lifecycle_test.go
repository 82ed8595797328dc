package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// dial connects to an agent's socket as another client than the kubelet.
func dial(t testing.TB, dir, socket string) pluginapi.DevicePluginClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(pluginDir(dir), socket))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

// eventually polls for a condition that nothing signals.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker, deadline := time.NewTicker(time.Millisecond), time.After(testTimeout)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: not after %v", what, testTimeout)
		}
	}
}

func (a *agent) stat(t testing.TB) Stats {
	t.Helper()
	stats := a.Stats()
	if len(stats) != 1 {
		t.Fatalf("stats of %d resources", len(stats))
	}
	return stats[0]
}

func unhealthyCount(list *pluginapi.ListAndWatchResponse) int {
	n := 0
	for _, device := range list.Devices {
		if device.Health != pluginapi.Healthy {
			n++
		}
	}
	return n
}

func TestEveryStreamSeesEveryChange(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	a := startAgent(t, dir, h, named("a"))
	await(t, k, healthy(8))
	client := dial(t, dir, "berth-gpu-a.sock")
	open := func() (pluginapi.DevicePlugin_ListAndWatchClient, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		t.Cleanup(cancel)
		stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := stream.Recv(); err != nil || unhealthyCount(list) != 0 {
			t.Fatalf("first list: %v, %v", list, err)
		}
		return stream, cancel
	}

	// Cancelled streams must take no update from open ones.
	for range 5 {
		_, cancel := open()
		cancel()
	}
	eventually(t, "cancelled streams end", func() bool { return a.stat(t).Streams == 1 })
	left, _ := open()
	right, _ := open()
	for round := range 3 {
		h.setHealthy(round, false)
		for name, stream := range map[string]pluginapi.DevicePlugin_ListAndWatchClient{"left": left, "right": right} {
			list, err := stream.Recv()
			if err != nil || unhealthyCount(list) != round+1 {
				t.Fatalf("round %d, %s stream: %v, %v", round, name, list, err)
			}
		}
		await(t, k, healthy(7-round))
	}
}

func TestSlowStreamDelaysNoOther(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	// Lists long enough that a stream which is not read soon takes no more.
	var broken atomic.Int64
	wide := func() State {
		state, broken := h.State(), int(broken.Load())
		state.Offers = []offer.Offer{{Resource: resource}}
		for i := range 2000 {
			id := gpu.UUID(fmt.Sprintf("GPU-%04d", i))
			health := gpu.Healthy
			if i < broken {
				health = gpu.Unhealthy
			}
			state.Offers[0].Devices = append(state.Offers[0].Devices, offer.Device{
				ID: string(id), Key: gpu.DeviceKey{GPU: id}, NUMANode: gpu.NoNUMANode, Health: health,
			})
		}
		return state
	}
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Instance = "a"
		m.deps.State = wide
	})
	await(t, k, healthy(2000))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := dial(t, dir, "berth-gpu-a.sock").ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	const changes = 40
	for i := range changes {
		h.change(func(*hardware) { broken.Store(int64(i + 1)) })
		await(t, k, healthy(2000-i-1))
	}
	defer time.AfterFunc(testTimeout, cancel).Stop()
	// It skips some versions, and never the latest.
	received := 0
	for {
		list, err := slow.Recv()
		if err != nil {
			t.Fatalf("after %d lists: %v", received, err)
		}
		received++
		if unhealthyCount(list) == changes {
			break
		}
	}
	if received >= changes {
		t.Errorf("the slow stream received %d lists, so it was not slow", received)
	}
}

func TestKubeletRestart(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	var calls atomic.Int64
	a := startAgent(t, dir, h, func(m *Manager) { m.deps.KubeletRestarted = func() { calls.Add(1) } })
	await(t, k, healthy(8))
	for round := range 5 {
		eventually(t, "the registration is known to have worked", func() bool { return a.stat(t).Registrations == uint64(round+1) })
		k.Kill()
		k = startKubelet(t, dir, fakekubelet.Options{})
		begin := time.Now()
		await(t, k, func(s fakekubelet.State) bool { return s.Attempts > 0 })
		registered := time.Since(begin)
		state := await(t, k, healthy(8))
		t.Logf("registering after %v, all devices after %v", registered, time.Since(begin))
		// The aim is 100 ms; a busy machine gets twenty times that.
		if registered > 2*time.Second {
			t.Errorf("registered %v after kubelet.sock was recreated", registered)
		}
		if state.Attempts != 1 || len(state.From) != 1 {
			t.Errorf("%d registrations and %d lists, want one of each", state.Attempts, len(state.From))
		}
	}
	eventually(t, "all registrations are counted", func() bool { return a.stat(t).Registrations == 6 })
	// More often when an attempt came before the new kubelet listened.
	if got := calls.Load(); got < 5 {
		t.Errorf("KubeletRestarted was called %d times for 5 restarts", got)
	}
}

func TestDirectoryRecreated(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	startAgent(t, dir, h, func(m *Manager) { m.timing.poll = time.Hour })
	await(t, k, healthy(8))
	k.Kill()
	if err := os.RemoveAll(pluginDir(dir)); err != nil {
		t.Fatal(err)
	}
	await(t, startKubelet(t, dir, fakekubelet.Options{}), healthy(8))
}

func TestDirectoryCannotBeWatched(t *testing.T) {
	w := &dirWatch{
		dir: pluginDir(kubeletDir(t)), timing: fastTiming(),
		clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(context.Background())
	checks := make(chan struct{})
	w.changed = func() {
		select {
		case checks <- struct{}{}:
		case <-ctx.Done():
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	for range 3 { // the directory does not exist, so that there is nothing to watch
		select {
		case <-checks:
		case <-time.After(testTimeout):
			t.Fatal("it does not poll without a watch")
		}
	}
	cancel()
	<-done
}

func TestRefusedRegistration(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	var sockets []string
	k.Refuse(func(r *pluginapi.RegisterRequest) error {
		sockets = append(sockets, r.Endpoint)
		if len(sockets) <= 4 {
			return errors.New("not today")
		}
		return nil
	})
	a := startAgent(t, dir, h, named("a"))
	state := await(t, k, healthy(8))
	if state.Attempts != 5 || state.Accepted != 1 {
		t.Errorf("%d attempts, %d accepted; want 5 and 1", state.Attempts, state.Accepted)
	}
	if len(slices.Compact(slices.Clone(sockets))) != 5 {
		t.Errorf("a path was registered twice: %v", sockets)
	}
	eventually(t, "the success is counted", func() bool { return a.stat(t).Registrations == 1 })
	if got := a.stat(t); got.RegistrationFailures != 4 || got.LastError != "" {
		t.Errorf("stats: %+v", got)
	}
	a.stop(t)
	if n := strings.Count(a.log.String(), "not today"); n != 1 {
		t.Errorf("the same refusal was logged %d times, want once:\n%s", n, a.log)
	}
	entries, err := os.ReadDir(pluginDir(dir))
	if err != nil || len(entries) != 2 {
		t.Errorf("the refused sockets are still there: %v, %v", entries, err)
	}
}

func TestUpgradeLeavesNoGap(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	patient := func(m *Manager) { m.timing.retire = 500 * time.Millisecond }
	old := startAgent(t, dir, h, patient)
	await(t, k, healthy(8))

	// Pods are admitted all the time.
	ctx, cancel := context.WithCancel(context.Background())
	calls, failed := make(chan int, 1), make(chan error, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if _, err := k.Allocate(context.Background(), resource, uuids(n%8)); err != nil {
				failed <- fmt.Errorf("call %d: %w", n, err)
				break
			}
			n++
		}
		calls <- n
	}()
	for range 5 {
		fresh := startAgent(t, dir, h, patient)
		await(t, k, func(s fakekubelet.State) bool { return len(s.Endpoints) == 2 })
		eventually(t, "the old agent becomes inactive", func() bool { return !old.stat(t).Active && fresh.stat(t).Active })
		old.stop(t)
		await(t, k, func(s fakekubelet.State) bool { return len(s.Endpoints) == 1 })
		old = fresh
	}
	cancel()
	n := <-calls
	select {
	case err := <-failed:
		t.Errorf("a pod was refused during the upgrade: %v", err)
	default:
		t.Logf("%d pods were admitted", n)
	}
	if state := k.State(resource); state.Lowest != 8 {
		t.Errorf("allocatable fell to %d", state.Lowest)
	}
}

func TestOldAgentSendsNothing(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	old := startAgent(t, dir, h, named("a"))
	await(t, k, healthy(8))
	fresh := startAgent(t, dir, h, named("b"))
	await(t, k, func(s fakekubelet.State) bool { return len(s.Endpoints) == 2 })
	eventually(t, "the old agent becomes inactive", func() bool { return fresh.stat(t).Active && !old.stat(t).Active })
	for i := range 5 {
		h.setHealthy(i, false)
		await(t, k, healthy(7-i))
	}
	from := k.State(resource).From
	if at := slices.Index(from, "berth-gpu-b.sock"); at < 0 || slices.Contains(from[at:], "berth-gpu-a.sock") {
		t.Errorf("lists came from %v", from)
	}
	if got := old.stat(t); !got.Registered || got.ListsSent != 1 {
		t.Errorf("the old agent should stand by and send nothing: %+v", got)
	}
	// When the old one ends, the new one sends its list again, since the old one may have sent another one last.
	before := len(k.State(resource).From)
	old.stop(t)
	await(t, k, func(s fakekubelet.State) bool { return len(s.From) > before && len(s.Healthy) == 3 })
}

// TestForeignSocketWithOurName: a socket that looks like a newer agent's and never answers delays only the first registration.
func TestForeignSocketWithOurName(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	foreign, err := net.Listen("unix", filepath.Join(pluginDir(dir), "berth-gpu-zzz.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { foreign.Close() })
	startAgent(t, dir, h, nil)
	await(t, k, healthy(8))
}

// freeLedger records the devices that Offered is called with.
type freeLedger struct {
	blocks
	offered []gpu.DeviceKey
	last    []gpu.DeviceKey
}

func (l *freeLedger) Offered(_ string, keys []gpu.DeviceKey) []gpu.DeviceKey {
	l.offered = append(l.offered, keys...)
	l.set(2, nil)
	return l.last
}

// TestOfferedComesFirst: the ledger gets the free devices before it is asked which are blocked.
func TestOfferedComesFirst(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	book := &freeLedger{}
	book.set(2, &ledger.Block{})
	startAgent(t, dir, h, func(m *Manager) { m.deps.Ledger = book })
	await(t, k, healthy(8))
	ids, err := k.Preferred(context.Background(), resource, uuids(2, 3, 5), uuids(5), 3)
	if err != nil || len(ids) != 3 {
		t.Fatalf("preferred %v, %v", ids, err)
	}
	ids, err = k.Preferred(context.Background(), resource, uuids(2, 3, 5), nil, 2)
	if err != nil || !slices.Equal(ids, uuids(2, 3)) {
		t.Errorf("preferred %v, %v; GPU 2 is free again", ids, err)
	}
	offered := slices.Clone(book.offered)
	book.last = []gpu.DeviceKey{{GPU: uuid(2)}}
	if ids, err = k.Preferred(context.Background(), resource, uuids(2, 3, 5), nil, 2); err != nil || !slices.Equal(ids, uuids(3, 5)) {
		t.Errorf("preferred %v, %v; GPU 2 is listed for another pod, and comes last", ids, err)
	}
	want := []gpu.DeviceKey{{GPU: uuid(2)}, {GPU: uuid(3)}, {GPU: uuid(2)}, {GPU: uuid(3)}, {GPU: uuid(5)}}
	if !slices.Equal(offered, want) {
		t.Errorf("the ledger was offered %v, want %v", offered, want)
	}
}

// TestNewerAgentThatNeverRegisters: the older one registers after a restart of the kubelet.
func TestNewerAgentThatNeverRegisters(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	startAgent(t, dir, h, named("a"))
	await(t, k, healthy(8))
	startAgent(t, dir, h, named("b"))
	await(t, k, func(s fakekubelet.State) bool { return s.Primary == "berth-gpu-b.sock" })
	k.Kill()
	k = startKubelet(t, dir, fakekubelet.Options{})
	k.Refuse(func(r *pluginapi.RegisterRequest) error {
		if strings.HasPrefix(r.Endpoint, "berth-gpu-b") {
			return errors.New("not you")
		}
		return nil
	})
	await(t, k, func(s fakekubelet.State) bool { return s.Primary == "berth-gpu-a.2.sock" && len(s.Healthy) == 8 })
}

// slowLedger delays an Allocate call until it is released.
type slowLedger struct {
	noLedger
	entered chan struct{}
	release chan struct{}
}

func (l *slowLedger) Allocate(_, _ string, _ []gpu.DeviceKey) error {
	l.entered <- struct{}{}
	<-l.release
	return nil
}

func TestShutdownLetsCallsEnd(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	ledger := &slowLedger{entered: make(chan struct{}), release: make(chan struct{})}
	a := startAgent(t, dir, h, func(m *Manager) {
		m.deps.Ledger = ledger
		m.timing.drain = testTimeout
	})
	await(t, k, healthy(8))
	answer := make(chan error, 1)
	go func() {
		_, err := k.Allocate(context.Background(), resource, uuids(1))
		answer <- err
	}()
	<-ledger.entered
	a.cancel()
	if state := k.State(resource); len(state.Endpoints) != 1 {
		t.Error("the stream ended before the call")
	}
	close(ledger.release)
	if err := <-answer; err != nil {
		t.Errorf("the call was cut off: %v", err)
	}
	await(t, k, func(s fakekubelet.State) bool { return len(s.Endpoints) == 0 && len(s.Unhealthy) == 8 })
}

func TestVanishedDevice(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	k := startKubelet(t, dir, fakekubelet.Options{})
	startAgent(t, dir, h, nil)
	await(t, k, healthy(8))
	h.change(func(h *hardware) {
		h.settings[0].GPUs = []offer.GPURule{{Select: offer.GPUSelect{Index: []int{6}}, Exclude: true}}
	})
	await(t, k, func(s fakekubelet.State) bool { return slices.Equal(s.Unhealthy, uuids(6)) && len(s.Healthy) == 7 })
	await(t, k, func(s fakekubelet.State) bool { return len(s.Unhealthy) == 0 && len(s.Healthy) == 7 })
	h.change(func(h *hardware) { h.settings[0].GPUs = nil })
	state := await(t, k, healthy(8))
	if !slices.Equal(state.NUMA["GPU-01"], []int64{0}) || !slices.Equal(state.NUMA["GPU-06"], []int64{1}) {
		t.Errorf("NUMA nodes: %v", state.NUMA)
	}
	if !state.Options.GetPreferredAllocationAvailable || state.Options.PreStartRequired {
		t.Errorf("options: %v", state.Options)
	}
}

func TestRemove(t *testing.T) {
	dir, h := kubeletDir(t), machine(8)
	if err := Remove(dir); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	k := startKubelet(t, dir, fakekubelet.Options{})
	a := startAgent(t, dir, h, nil)
	await(t, k, healthy(8))
	a.stop(t)
	for _, name := range []string{"berth-gpu-notes.txt", "berth-gpu-0.sock", "kubelet_internal_checkpoint"} {
		if err := os.WriteFile(filepath.Join(pluginDir(dir), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(pluginDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{"berth-gpu-0.sock", "berth-gpu-notes.txt", "kubelet.sock", "kubelet_internal_checkpoint"}; !slices.Equal(left, want) {
		t.Errorf("left over: %v, want %v", left, want)
	}
}
