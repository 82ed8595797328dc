package fakekubelet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugin lists one device until it is stopped.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "d", Health: pluginapi.Healthy}}})
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func serve(t *testing.T, dir, name string) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "device-plugins", name))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, plugin{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return server
}

// TestSamePathTwice shows a defect that the device plugin must avoid: the kubelet never uses the path again.
func TestSamePathTwice(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	k, err := Start(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	server := serve(t, dir, "a.sock")
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "a.sock", ResourceName: "x.com/y"}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := k.Register(ctx, request); err != nil {
		t.Fatal(err)
	}
	if err := k.Await(ctx, "x.com/y", func(s State) bool { return len(s.Healthy) == 1 }); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Register(ctx, request); err == nil || !strings.Contains(err.Error(), "already connected") {
		t.Fatalf("second registration: %v", err)
	}
	server.Stop()
	serve(t, dir, "b.sock")
	request.Endpoint = "b.sock"
	if _, err := k.Register(ctx, request); err != nil {
		t.Fatal(err)
	}
	if err := k.Await(ctx, "x.com/y", func(s State) bool { return s.Primary == "b.sock" && len(s.Endpoints) == 2 }); err != nil {
		t.Error(err)
	}
}
