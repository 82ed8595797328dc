// Command stock-plugin is a device plugin that does at its start, and when the kubelet starts, what NVIDIA's k8s-device-plugin does
// (v0.20): it serves its socket, registers, and begins again whenever kubelet.sock is created, and 30 seconds after a failed start. It
// advertises devices that do not exist. The end-to-end tests run it as a DaemonSet beside Berth; no release has it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// startAgainAfter is the time until a plugin whose start has failed starts again.
	startAgainAfter = 30 * time.Second
	// dialWithin bounds a registration.
	dialWithin = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stock-plugin:", err)
		os.Exit(1)
	}
}

// run serves a plugin with devices named RESOURCE-0 and so on, until ctx ends.
func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments, want RESOURCE COUNT", len(args))
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("the count of devices: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(pluginapi.DevicePluginPath); err != nil {
		return err
	}
	for {
		server, err := start(ctx, args[0], count)
		var again <-chan time.Time
		if err != nil {
			fmt.Println("not started:", err)
			again = time.After(startAgainAfter)
		}
		created := wait(ctx, watcher, again)
		server.Stop()
		if !created {
			return nil
		}
	}
}

// wait waits until kubelet.sock is created or it is time to start again; it returns false when ctx has ended.
func wait(ctx context.Context, watcher *fsnotify.Watcher, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-again:
			return true
		case event := <-watcher.Events:
			if event.Name == pluginapi.KubeletSocket && event.Has(fsnotify.Create) {
				return true
			}
		}
	}
}

// start serves the plugin's socket and registers it. The server has to be stopped, also after an error.
func start(ctx context.Context, resource string, count int) (*grpc.Server, error) {
	p := &plugin{}
	for i := range count {
		id := fmt.Sprintf("%s-%d", filepath.Base(resource), i)
		p.devices = append(p.devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	endpoint := "nvidia-" + filepath.Base(resource) + ".sock"
	path := filepath.Join(pluginapi.DevicePluginPath, endpoint)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return server, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return server, err
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return server, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource,
		Options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	if err == nil {
		fmt.Println("registered", resource)
	}
	return server, err
}

// plugin has devices that are always healthy.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []*pluginapi.Device
}

func (*plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// GetPreferredAllocation prefers nothing: the first devices that are available.
func (*plugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		ids := c.GetAvailableDeviceIDs()[:c.GetAllocationSize()]
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate names the devices in the environment.
func (*plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.GetDevicesIds(), ",")}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{Envs: envs})
	}
	return response, nil
}
