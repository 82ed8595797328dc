package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// sockets waits until the agent serves its DRA driver, and returns the paths of its sockets.
func (b *claimBench) sockets() (paths []string) {
	b.t.Helper()
	b.until("the DRA driver is served", func() bool { paths = b.agent.devices.dra.Sockets(); return paths != nil })
	return paths
}

// register registers the driver as the kubelet does, and returns the name that it registers.
func (b *claimBench) register() string {
	b.t.Helper()
	connection, err := grpc.NewClient("unix:"+b.sockets()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer connection.Close()
	client := registerapi.NewRegistrationClient(connection)
	// The socket's file exists before its server listens.
	info, err := client.GetInfo(b.t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := client.NotifyRegistrationStatus(b.t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		b.t.Fatal(err)
	}
	return info.GetName()
}

// published returns the slices in the API server.
func (b *claimBench) published() []resourceapi.ResourceSlice {
	b.t.Helper()
	list, err := b.clients.ResourceV1().ResourceSlices().List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return list.Items
}

// TestDriverName runs a driver with another name: registration, slices, taints, a prepare over the socket, and the kubelet's record of it.
func TestDriverName(t *testing.T) {
	t.Parallel()
	const name = "gpu.example.com"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fakeapi.NodeName, UID: "node"}}
	b := newIdleClaimBench(t, "a100x8-40g", name, node)
	b.configure("gpus: [{select: {index: [0]}, allocation: {api: dra}}, {allocation: {api: dra}, dynamicMIG: true}]\n")
	var names atomic.Int64 // The API server makes names of these.
	b.clients.PrependReactor("create", "resourceslices", func(action ktesting.Action) (bool, runtime.Object, error) {
		slice := action.(ktesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, names.Add(1))
		return false, nil, nil
	})
	b.begin()
	b.restart() // The kubelet of this test does not say what it counts, so only GPUs that had been published are.
	if got := b.register(); got != name {
		t.Errorf("it registers as %s", got)
	}
	b.until("all GPUs are published", func() bool { return len(pool.GPUs(b.published()...)) == 8 })
	claim := b.claim("a", b.device(0, ""))
	if names, err := b.prepare(t.Context(), claim); err != nil || len(names) != 1 {
		t.Fatalf("%v %v\n%s", names, err, b.picture())
	}
	// The GPU goes to the device plugin when the claim has ended.
	b.configure("gpus: [{select: {index: [0]}, resourceName: example.com/gpu}, {allocation: {api: dra}, dynamicMIG: true}]\n")
	b.until("the taint is published", func() bool {
		return slices.ContainsFunc(b.published(), func(slice resourceapi.ResourceSlice) bool {
			return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool {
				return d.Name == b.device(0, "") && len(d.Taints) == 1 && d.Taints[0].Key == name+"/draining"
			})
		})
	})
	for _, slice := range b.published() {
		if slice.Spec.Driver != name {
			t.Errorf("slice %s is of driver %s", slice.Name, slice.Spec.Driver)
		}
	}
	// An agent without the ledger adopts the claim from the kubelet's record.
	b.record(claim)
	b.end()
	if err := errors.Join(os.RemoveAll(filepath.Join(b.dir, "state")), os.RemoveAll(filepath.Join(b.dir, "cdi"))); err != nil {
		t.Fatal(err)
	}
	b.begin()
	held := b.agent.node.ledger.Holdings()
	if len(held) != 1 || held[0].Holder.Kind != gpu.HolderClaim || held[0].Key.GPU != b.uuid(0) {
		t.Errorf("it has not adopted the claim:\n%s", b.picture())
	}
	if err := b.unprepare(t.Context(), claim); err != nil {
		t.Error(err)
	}
	b.idle()
}
