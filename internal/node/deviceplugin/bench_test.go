package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// fabric is a machine whose cards are on one NVSwitch fabric, as the real ones of 8 and 16 are.
func fabric(gpus int) *hardware {
	h := machine(gpus)
	for i := range gpus {
		for j := range i {
			h.snapshot.Topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: 12, Switched: true, Path: gpu.PathSystem})
		}
	}
	return h
}

// benchmark runs call against an agent on a real Unix socket and prints p50 and p99. asked
// counts looks at the state during the calls, which stands for hardware calls: there is
// no other way from here to the hardware.
func benchmark(b *testing.B, gpus int, call func(context.Context, pluginapi.DevicePluginClient) error) {
	benchmarkState(b, fabric(gpus).State(), gpus, call)
}

func benchmarkState(b *testing.B, state State, devices int, call func(context.Context, pluginapi.DevicePluginClient) error) {
	dir := kubeletDir(b)
	k := startKubelet(b, dir, fakekubelet.Options{})
	asked := 0
	startAgent(b, dir, machine(1), func(m *Manager) {
		m.deps.Instance = "a"
		m.deps.State = func() State { asked++; return state }
	})
	await(b, k, healthy(devices))
	before, ctx := asked, context.Background()
	client := dial(b, dir, "berth-gpu-a.sock")
	for range 100 {
		if err := call(ctx, client); err != nil {
			b.Fatal(err)
		}
	}
	took := make([]time.Duration, 0, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		if err := call(ctx, client); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
	b.ReportMetric(float64(asked-before), "hardware-calls")
}

func BenchmarkGetPreferredAllocation(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		for _, size := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("gpus=%d/size=%d", gpus, size), func(b *testing.B) {
				request := &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
					AvailableDeviceIDs: uuids(first(gpus)...), AllocationSize: int32(size),
				}}}
				benchmark(b, gpus, func(ctx context.Context, client pluginapi.DevicePluginClient) error {
					_, err := client.GetPreferredAllocation(ctx, request)
					return err
				})
			})
		}
	}
}

func BenchmarkAllocate(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		b.Run(fmt.Sprintf("gpus=%d", gpus), func(b *testing.B) {
			request := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: uuids(first(gpus)...)}}}
			benchmark(b, gpus, func(ctx context.Context, client pluginapi.DevicePluginClient) error {
				_, err := client.Allocate(ctx, request)
				return err
			})
		})
	}
}

// BenchmarkPrefer is the part of GetPreferredAllocation without the socket, for a question
// that was not asked before.
func BenchmarkPrefer(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		for _, size := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("gpus=%d/size=%d", gpus, size), func(b *testing.B) {
				v, available := viewOf(b, fabric(gpus)), uuids(first(gpus)...)
				free := barring()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := v.prefer(v.ask(available, nil, size), free); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// shareOffer has eight cards with a hundred replicas each.
func shareOffer() offer.Offer {
	o := offer.Offer{Resource: resource}
	for card := range 8 {
		for n := range 100 {
			key := gpu.DeviceKey{GPU: gpu.UUID(fmt.Sprintf("GPU-%08d-aaaa-bbbb-cccc-0123456789ab", card)), Share: n + 1}
			o.Devices = append(o.Devices, offer.Device{ID: offer.DeviceID(key), Key: key, Mode: offer.TimeSlicing, Index: fmt.Sprint(card), Health: gpu.Healthy})
		}
	}
	return o
}

// shareIDs are all ids, in no order, as the kubelet names them.
func shareIDs(o offer.Offer) []string {
	ids := make([]string, 0, len(o.Devices))
	for i := range o.Devices {
		ids = append(ids, o.Devices[i*37%len(o.Devices)].ID)
	}
	return ids
}

// BenchmarkPreferShares is what GetPreferredAllocation does for replicas, without the socket: sort
// the request, and answer it.
func BenchmarkPreferShares(b *testing.B) {
	o := shareOffer()
	ids := shareIDs(o)
	free := barring()
	for _, policy := range []placement.Policy{placement.Distributed, placement.Packed} {
		for _, mode := range []offer.Mode{offer.TimeSlicing, offer.MPS} {
			for i := range o.Devices {
				o.Devices[i].Mode = mode
			}
			v := (&viewer{strategy: Strategy{ID: ByUUID}}).build(o, State{Policy: policy}, nil, nil, time.Time{})
			b.Run(fmt.Sprintf("%s/%s/32of800", policy, mode), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := v.prefer(v.ask(ids, nil, 32), free); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkShares are whole calls over the socket.
func BenchmarkShares(b *testing.B) {
	o := shareOffer()
	state := State{Snapshot: &gpu.Snapshot{}, Offers: []offer.Offer{o}}
	b.Run("GetPreferredAllocation/32of800", func(b *testing.B) {
		request := &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: shareIDs(o), AllocationSize: 32,
		}}}
		benchmarkState(b, state, len(o.Devices), func(ctx context.Context, client pluginapi.DevicePluginClient) error {
			_, err := client.GetPreferredAllocation(ctx, request)
			return err
		})
	})
	for _, size := range []int{1, 32} {
		b.Run(fmt.Sprintf("Allocate/%d", size), func(b *testing.B) {
			request := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: shareIDs(o)[:size]}}}
			benchmarkState(b, state, len(o.Devices), func(ctx context.Context, client pluginapi.DevicePluginClient) error {
				_, err := client.Allocate(ctx, request)
				return err
			})
		})
	}
}
