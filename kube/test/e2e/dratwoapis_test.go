package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// taintTwoAPIs is the taint of a device that a device plugin has too.
const taintTwoAPIs = pool.DefaultDriver + "/two-apis"

// otherPlugin is a device plugin beside Berth's, for the same GPUs. It prefers those that it lists first.
type otherPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	ids    []string
	server *grpc.Server
}

// startOtherPlugin registers a device plugin with the kubelet of the first node.
func (l *draLab) startOtherPlugin(t testing.TB, resource string, ids ...string) *otherPlugin {
	t.Helper()
	const socket = "other.sock"
	dir := filepath.Join(l.node.KubeletDir(), "device-plugins")
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	p := &otherPlugin{ids: ids, server: grpc.NewServer()}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(p.stop)
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	options, _ := p.GetDevicePluginOptions(t.Context(), nil)
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: resource, Options: options}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(timeout(t, 10*time.Second), request); err != nil {
		t.Fatal(err)
	}
	return p
}

// stop ends the plugin and removes its socket.
func (p *otherPlugin) stop() { p.server.Stop() }

func (p *otherPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (p *otherPlugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: p.ids[:1]})
	}
	return response, nil
}

func (*otherPlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return response, nil
}

func (p *otherPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var list []*pluginapi.Device
	for _, id := range p.ids {
		list = append(list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// waitTwoAPIs waits until exactly these GPUs have the taint of a device that is in both APIs, and returns when that was.
func (l *draLab) waitTwoAPIs(t testing.TB, want ...uint32) time.Time {
	t.Helper()
	waitUntil(t, 20*time.Second, fmt.Sprintf("exactly the GPUs %v have the taint %s, and the metric counts them", want, taintTwoAPIs), func(ctx context.Context) error {
		all, err := l.taintsNow(ctx)
		if err != nil {
			return err
		}
		maps.DeleteFunc(all, func(_ uint32, keys []string) bool { return !slices.Contains(keys, taintTwoAPIs) })
		if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		text, err := l.page(ctx, "/metrics")
		if line := fmt.Appendf(nil, "\nberth_dra_devices_in_two_apis %d\n", len(want)); err == nil && !bytes.Contains(text, line) {
			err = fmt.Errorf("the metrics do not have %q", line)
		}
		return err
	})
	return time.Now()
}

// checkFinding checks that berth doctor reports a problem with texts in its evidence.
func (l *draLab) checkFinding(t testing.TB, code string, texts ...string) {
	t.Helper()
	findings := l.doctor(t, 1).Findings
	if !slices.ContainsFunc(findings, func(f v1alpha1.DoctorFinding) bool { return f.Code == code && hasAll(f.Evidence, texts) && f.Fix != "" }) {
		t.Errorf("berth doctor does not report %s with %q: %+v", code, texts, findings)
	}
}

// testDRATwoAPIs lets another device plugin list GPUs that are published, and one that is about to be. A pod has one of them through that
// plugin, and keeps it when the plugin has ended.
func testDRATwoAPIs(t *testing.T, l *draLab) {
	byPlugin := func(indices string) string {
		return plainConfig + "gpus:\n- select: {index: [" + indices + "]}\n  resourceName: " + wholeResource + "\n- select: {}\n  allocation: {api: dra}\n"
	}
	l.setConfigs(t, map[string]string{"default": byPlugin("0, 1, 2, 3")})
	l.waitPublished(t, 4, 5, 6, 7)
	l.waitTwoAPIs(t)
	l.waitProblem(t, "DRA_TWO_APIS", false)

	later, five, six := l.gpuInfo(t, 2).UUID, l.gpuInfo(t, 5).UUID, l.gpuInfo(t, 6).UUID
	start := time.Now()
	plugin := l.startOtherPlugin(t, stubResource, five, six, later)
	if took := l.waitTwoAPIs(t, 5, 6).Sub(start); took > 10*time.Second {
		t.Errorf("the GPUs in both APIs have the taint after %s, want 10 s at most", ms(took))
	} else {
		t.Logf("the GPUs in both APIs have the taint %s after the other plugin has registered", ms(took))
	}
	l.waitProblem(t, "DRA_TWO_APIS", true)
	l.checkFinding(t, "DRA_TWO_APIS", five, six, "remove the other device plugin from the node", "2 devices have the taint "+taintTwoAPIs)
	foreign := l.run(t, l.onNode(podRequesting("foreign", stubResource, 1)))[0]
	waitUntil(t, 20*time.Second, "the ledger has the GPU of the other plugin's pod", func(ctx context.Context) error {
		held, err := l.holdings(ctx)
		if err == nil && !strings.Contains(held[five], string(foreign.UID)) {
			err = fmt.Errorf("it has %v", held)
		}
		return err
	})
	hopper := attribute("architecture", "Hopper")
	l.claim(t, claimOf("two", gpuRequest("gpus", 2, hopper)), claimOf("rest", gpuRequest("gpus", 3, hopper)))
	if got := l.checkClaimed(t, l.run(t, podUsing("two", "two"))[0], 2); !slices.Equal(got, []uint32{4, 7}) {
		t.Errorf("the claim has the GPUs %v, want those that only ResourceSlices have", got)
	}
	rest := podUsing("rest", "rest")
	t.Cleanup(func() { l.cleanUp(t, rest) })
	if _, err := l.CreatePod(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	l.waitPending(t, rest)

	// A GPU that the other plugin lists is not published.
	l.setConfigs(t, map[string]string{"default": byPlugin("0, 1, 3")})
	l.waitKubelet(t, map[string]int{wholeResource: 3, stubResource: 3})
	l.waitProblem(t, "DRA_GPU_COUNTED", true)
	l.checkFinding(t, "DRA_GPU_COUNTED", later, "remove the other one from this node")
	l.waitPublished(t, 4, 5, 6, 7)
	l.waitPending(t, rest)

	stopped := time.Now()
	plugin.stop() // The kubelet has the resource until its grace period has ended.
	l.waitPublished(t, 2, 4, 5, 6, 7)
	t.Logf("no GPU is in both APIs %s after the other plugin has ended", ms(l.waitTwoAPIs(t).Sub(stopped)))
	l.waitProblem(t, "DRA_TWO_APIS", false)
	l.waitProblem(t, "DRA_GPU_COUNTED", false)
	// The scheduler allocates the GPU that the other plugin's pod still has; the claim gets it when that pod has ended.
	l.waitEventOf(t, "ResourceClaim", "rest", "ClaimNotPrepared", five, foreign.Namespace+"/"+foreign.Name, "it is free when that pod ends")
	if err := l.remove(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	running, err := l.WaitPhase(timeout(t, time.Minute), rest.Namespace, rest.Name, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.checkClaimed(t, running, 3); !slices.Equal(got, []uint32{2, 5, 6}) {
		t.Errorf("the claim has the GPUs %v", got)
	}
}
