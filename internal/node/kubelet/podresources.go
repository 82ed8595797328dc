package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// PodResourcesSocket is where the kubelet serves PodResources beneath its directory.
const PodResourcesSocket = "pod-resources/kubelet.sock"

const (
	// The kubelet's own limit on a message of this API.
	maxPodResources     = 16 << 20
	podResourcesTimeout = 5 * time.Second
)

// Errors of PodResources.
var (
	// errNoPodResources means that no process serves the socket: the kubelet is down or has not started yet.
	errNoPodResources = errors.New("the kubelet does not respond on its PodResources socket")
	// ErrNoPod means that the kubelet has no pod with that name.
	ErrNoPod = errors.New("the kubelet has no such pod")
)

// Devices are devices of one resource and, if the plugin named any, their NUMA nodes.
type Devices struct {
	Resource string
	// IDs are the device plugin's, sorted.
	IDs []string
	// NUMANodes are ascending; empty when the plugin named none.
	NUMANodes []int64
}

// ClaimDevice is a device that a container got through a ResourceClaim.
type ClaimDevice struct {
	ClaimNamespace string
	Claim          string
	Driver         string
	Pool           string
	Device         string
	CDINames       []string
}

// ContainerDevices are the devices of one container. Plain init containers are never reported by the kubelet; sidecars
// are.
type ContainerDevices struct {
	Name string
	// Devices are ordered by resource, then IDs.
	Devices []Devices
	Claims  []ClaimDevice
}

// PodDevices are the devices of one pod. The API gives no UID.
type PodDevices struct {
	Namespace  string
	Name       string
	Containers []ContainerDevices
}

// PodResources is a client of the kubelet's PodResources API, version v1. It has no List, which changes the kubelet's
// state (see the package comment). Create it with NewPodResources. It keeps no connection between calls, so that it
// finds a kubelet that starts later or restarts.
type PodResources struct {
	socket  string
	timeout time.Duration
}

// NewPodResources returns a client of the kubelet with this directory.
func NewPodResources(kubeletDir string) *PodResources {
	return &PodResources{socket: filepath.Join(kubeletDir, PodResourcesSocket), timeout: podResourcesTimeout}
}

// Get returns the devices of one pod. The error is ErrNoPod when the kubelet has no such pod.
func (p *PodResources) Get(ctx context.Context, namespace, name string) (PodDevices, error) {
	var pod PodDevices
	err := p.call(ctx, func(ctx context.Context, client v1.PodResourcesListerClient) error {
		reply, err := client.Get(ctx, &v1.GetPodResourcesRequest{PodNamespace: namespace, PodName: name})
		// The kubelet responds with a plain error without its own code.
		if status.Code(err) == codes.Unknown && strings.Contains(err.Error(), "not found") {
			return ErrNoPod
		}
		if err == nil {
			pod = podDevices(reply.GetPodResources())
		}
		return err
	})
	if err != nil {
		return PodDevices{}, fmt.Errorf("get pod resources of %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Allocatable returns the healthy devices of all resources, allocated or not, ordered by resource and IDs. The kubelet
// reports each device separately.
func (p *PodResources) Allocatable(ctx context.Context) ([]Devices, error) {
	var devices []Devices
	err := p.call(ctx, func(ctx context.Context, client v1.PodResourcesListerClient) error {
		reply, err := client.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
		devices = plainDevices(reply.GetDevices())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get allocatable resources: %w", err)
	}
	return devices, nil
}

func (p *PodResources) call(ctx context.Context, do func(context.Context, v1.PodResourcesListerClient) error) error {
	if _, err := os.Stat(p.socket); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no %s", errNoPodResources, p.socket)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	// A custom dialer accepts any path; a "unix:" address would be parsed as a URL.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", p.socket)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("dial %s: %w", p.socket, err)
	}
	defer conn.Close()
	err = do(ctx, v1.NewPodResourcesListerClient(conn))
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %s: %w", errNoPodResources, p.socket, err)
	}
	return err
}

func podDevices(pod *v1.PodResources) PodDevices {
	result := PodDevices{Namespace: pod.GetNamespace(), Name: pod.GetName()}
	for _, container := range pod.GetContainers() {
		one := ContainerDevices{Name: container.GetName(), Devices: plainDevices(container.GetDevices())}
		for _, claim := range container.GetDynamicResources() {
			for _, device := range claim.GetClaimResources() {
				plain := ClaimDevice{
					ClaimNamespace: claim.GetClaimNamespace(), Claim: claim.GetClaimName(),
					Driver: device.GetDriverName(), Pool: device.GetPoolName(), Device: device.GetDeviceName(),
				}
				for _, name := range device.GetCdiDevices() {
					plain.CDINames = append(plain.CDINames, name.GetName())
				}
				one.Claims = append(one.Claims, plain)
			}
		}
		slices.SortStableFunc(one.Claims, func(a, b ClaimDevice) int {
			return cmp.Or(strings.Compare(a.ClaimNamespace, b.ClaimNamespace), strings.Compare(a.Claim, b.Claim),
				strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool), strings.Compare(a.Device, b.Device))
		})
		result.Containers = append(result.Containers, one)
	}
	return result
}

func plainDevices(devices []*v1.ContainerDevices) []Devices {
	var result []Devices
	for _, device := range devices {
		plain := Devices{Resource: device.GetResourceName(), IDs: slices.Sorted(slices.Values(device.GetDeviceIds()))}
		for _, node := range device.GetTopology().GetNodes() {
			plain.NUMANodes = append(plain.NUMANodes, node.GetID())
		}
		slices.Sort(plain.NUMANodes)
		result = append(result, plain)
	}
	slices.SortStableFunc(result, func(a, b Devices) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), slices.Compare(a.IDs, b.IDs))
	})
	return result
}
