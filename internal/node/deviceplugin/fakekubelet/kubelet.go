package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Options are the differences between kubelets.
type Options struct {
	// Legacy kubelets keep one client per resource: when any stream of a resource ends, they close the newest client
	// and set the resource unhealthy.
	Legacy bool
}

// Kubelet is a running device manager.
type Kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	dir      string
	options  Options
	listener *net.UnixListener
	grpc     *grpc.Server
	ctx      context.Context
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{}
	refuse    func(*pluginapi.RegisterRequest) error
	resources map[string]*resource
}

// Start removes the sockets in kubeletDir/device-plugins, as the kubelet does, and accepts registrations.
func Start(kubeletDir string, options Options) (*Kubelet, error) {
	dir := filepath.Join(kubeletDir, "device-plugins")
	if err := wipe(dir); err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	k := &Kubelet{
		dir: dir, options: options, listener: listener.(*net.UnixListener), grpc: grpc.NewServer(),
		changed: make(chan struct{}), resources: make(map[string]*resource),
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	pluginapi.RegisterRegistrationServer(k.grpc, k)
	k.tasks.Go(func() {
		// Serve returns an error only for a listener that failed, after which the tests get no response.
		_ = k.grpc.Serve(listener)
	})
	return k, nil
}

func wipe(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Stop ends the kubelet as a signal does: it removes kubelet.sock and closes all connections.
func (k *Kubelet) Stop() {
	k.cancel()
	k.grpc.Stop()
	k.tasks.Wait()
}

// Kill ends the kubelet and leaves kubelet.sock behind, on which no process listens.
func (k *Kubelet) Kill() {
	k.listener.SetUnlinkOnClose(false)
	k.Stop()
}

// Refuse sets the response to registrations from now on: an error refuses them.
func (k *Kubelet) Refuse(decide func(*pluginapi.RegisterRequest) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = decide
}

// Register implements v1beta1.Registration.
func (k *Kubelet) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	r := k.resource(request.ResourceName)
	r.attempts++
	k.announce()
	k.mu.Unlock()
	if refuse != nil {
		if err := refuse(request); err != nil {
			return nil, err
		}
	}
	if request.Version != pluginapi.Version {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet", request.Version)
	}
	client, err := k.connect(ctx, request)
	if err != nil {
		return nil, err
	}
	k.tasks.Go(func() { k.follow(client) })
	return &pluginapi.Empty{}, nil
}

// connect dials the plugin and makes it the primary endpoint.
func (k *Kubelet) connect(ctx context.Context, request *pluginapi.RegisterRequest) (*client, error) {
	path := filepath.Join(k.dir, request.Endpoint)
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, err
	}
	c := &client{resource: request.ResourceName, path: path, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.options, err = c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to get device plugin options: %w", err), conn.Close())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.resource(c.resource).take(c, k.options.Legacy); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	k.announce()
	return c, nil
}

// follow reads a plugin's stream to its end.
func (k *Kubelet) follow(c *client) {
	stream, err := c.api.ListAndWatch(k.ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.mu.Lock()
			k.resource(c.resource).receive(c, list)
			k.announce()
			k.mu.Unlock()
		}
	}
	k.mu.Lock()
	gone := k.resource(c.resource).drop(c, k.options.Legacy)
	k.announce()
	k.mu.Unlock()
	gone.conn.Close()
	c.conn.Close()
}

// announce wakes all callers of Await; the lock is held.
func (k *Kubelet) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// resource finds or creates the record of a resource; the lock is held.
func (k *Kubelet) resource(name string) *resource {
	r := k.resources[name]
	if r == nil {
		r = &resource{endpoints: make(map[string]*client)}
		k.resources[name] = r
	}
	return r
}

// State returns the present state of a resource.
func (k *Kubelet) State(name string) State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resource(name).state()
}

// Await waits until a resource is as wanted. Its error has the last state.
func (k *Kubelet) Await(ctx context.Context, name string, wanted func(State) bool) error {
	for {
		k.mu.Lock()
		state, changed := k.resource(name).state(), k.changed
		k.mu.Unlock()
		if wanted(state) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; it is %+v", name, ctx.Err(), state)
		}
	}
}

// Preferred calls GetPreferredAllocation of the primary endpoint.
func (k *Kubelet) Preferred(ctx context.Context, name string, available, must []string, size int) ([]string, error) {
	c, err := k.primary(name)
	if err != nil {
		return nil, err
	}
	response, err := c.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
		}},
	})
	if err != nil {
		return nil, err
	}
	if len(response.ContainerResponses) != 1 {
		return nil, fmt.Errorf("%d responses for one container", len(response.ContainerResponses))
	}
	return response.ContainerResponses[0].DeviceIDs, nil
}

// Allocate calls Allocate of the primary endpoint.
func (k *Kubelet) Allocate(ctx context.Context, name string, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	c, err := k.primary(name)
	if err != nil {
		return nil, err
	}
	response, err := c.api.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, err
	}
	if len(response.ContainerResponses) != 1 {
		return nil, fmt.Errorf("%d responses for one container", len(response.ContainerResponses))
	}
	return response.ContainerResponses[0], nil
}

// Options requests the options of the primary endpoint, a call that does nothing.
func (k *Kubelet) Options(ctx context.Context, name string) (*pluginapi.DevicePluginOptions, error) {
	c, err := k.primary(name)
	if err != nil {
		return nil, err
	}
	return c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
}

func (k *Kubelet) primary(name string) (*client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.resource(name)
	if r.primary == nil || r.primary.stopped {
		return nil, fmt.Errorf("endpoint of %s has been stopped", name)
	}
	return r.primary, nil
}
