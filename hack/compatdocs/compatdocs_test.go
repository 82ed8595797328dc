package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// within bounds each wait for a stand-in.
const within = time.Minute

// TestTablesAreCurrent compares docs/compatibility.md with the fixtures.
func TestTablesAreCurrent(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fill(string(text))
	if diff := cmp.Diff(want, string(text)); diff != "" || err != nil {
		t.Errorf("%v; docs/compatibility.md is stale, run go generate ./hack/compatdocs (-want +present):\n%s", err, diff)
	}
	if _, err := between("a\n", "distributions", ""); err == nil {
		t.Error("a page without the marks has no error")
	}
}

// TestReleases compares what Berth does with a stand-in of each version's kubelet with a golden.
func TestReleases(t *testing.T) {
	for _, r := range releases() {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			fmt.Fprintf(&got, "PodResources Get: %s\n", askedFor(t, r))
			fmt.Fprintf(&got, "upgrade of an agent: %s\n", upgraded(t, r))
			golden.File(t, filepath.Join("testdata", r.version+".golden"), got.String())
		})
	}
}

// TestClaims compares the API of claims of each version with the versions in which the APIs were introduced.
func TestClaims(t *testing.T) {
	introduced := map[string]interface{ APILifecycleIntroduced() (int, int) }{
		"v1beta1": &resourcev1beta1.ResourceClaim{}, "v1beta2": &resourcev1beta2.ResourceClaim{}, "v1": &resourcev1.ResourceClaim{},
	}
	seen := map[string]bool{}
	for _, r := range releases() {
		api, known := introduced[r.claims]
		if !known || seen[r.claims] {
			continue
		}
		seen[r.claims] = true
		if major, minor := api.APILifecycleIntroduced(); fmt.Sprintf("%d.%d", major, minor) != r.version {
			t.Errorf("%s is listed from %s on, and was introduced in %d.%d", r.claims, r.version, major, minor)
		}
	}
	if len(seen) != len(introduced) {
		t.Errorf("the list has %v", seen)
	}
}

// lister answers as the kubelet of a version does.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	has bool
}

func (l *lister) Get(_ context.Context, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	if !l.has {
		return nil, errors.New("PodResources API Get method disabled")
	}
	return &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{Namespace: request.PodNamespace, Name: request.PodName}}, nil
}

// askedFor says what comes of a question about a pod. A kubelet that refuses it must not pass for one that has no such pod.
func askedFor(t *testing.T, r release) string {
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, kubelet.PodResourcesSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &lister{has: r.podResourcesGet})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	_, err = kubelet.NewPodResources(dir).Get(t.Context(), "default", "train")
	switch {
	case errors.Is(err, kubelet.ErrNoPod):
		return "the kubelet has no such pod"
	case err != nil:
		return "unknown: " + err.Error()
	}
	return "answered"
}

// upgraded says what the kubelet sees of the devices while an agent takes over from another one.
func upgraded(t *testing.T, r release) string {
	dir := shortDir(t)
	stand, err := fakekubelet.Start(dir, fakekubelet.Options{Legacy: !r.endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stand.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	await := func(what string, wanted func(fakekubelet.State) bool) {
		t.Helper()
		if err := stand.Await(ctx, "nvidia.com/gpu", wanted); err != nil {
			t.Fatalf("wait until %s: %v; %+v", what, err, stand.State("nvidia.com/gpu"))
		}
	}
	stopOld := plugin(t, dir, "a")
	await("the old agent serves", func(s fakekubelet.State) bool { return len(s.Healthy) == 2 })
	stopNew := plugin(t, dir, "b")
	defer stopNew()
	await("the new agent serves", func(s fakekubelet.State) bool {
		return s.Accepted == 2 && strings.Contains(s.Primary, "-b") && len(s.From) > 1
	})
	stopOld()
	await("the old agent has ended", func(s fakekubelet.State) bool {
		return len(s.Healthy) == 2 && len(s.Endpoints) == 1 && strings.Contains(s.Primary, "-b") && (r.endpoints || s.Accepted == 3)
	})
	state := stand.State("nvidia.com/gpu")
	return fmt.Sprintf("%d registrations, at least %d of 2 devices healthy, %d at the end", state.Accepted, state.Lowest, len(state.Healthy))
}

// plugin runs a device plugin with two GPUs until it is stopped.
func plugin(t *testing.T, dir, instance string) (stop func()) {
	snapshot := gpu.Snapshot{Topology: gpu.NewTopology(2)}
	for i := range 2 {
		snapshot.GPUs = append(snapshot.GPUs, gpu.GPU{Vendor: gpu.NVIDIA, UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: i})
	}
	manager, err := deviceplugin.New(deviceplugin.Deps{
		KubeletDir: dir, Instance: instance, Vendors: []gpu.Traits{{Name: gpu.NVIDIA}}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		CDIName: func(id string) string { return "k8s.berth.dev/gpu=" + id },
		State: func() deviceplugin.State {
			units, _ := offer.Resolve(&snapshot, offer.Settings{})
			return deviceplugin.State{Snapshot: &snapshot, Offers: offer.Build(&snapshot, units)}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run device plugin %s: %v", instance, err)
		}
	}
}

// shortDir is a directory whose path leaves enough of the 107 bytes of a socket's path.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
