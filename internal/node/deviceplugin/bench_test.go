package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// fabric is a machine whose GPUs are on one NVSwitch fabric, as real ones with 8 and 16 are.
func fabric(gpus int) *hardware {
	h := machine(gpus)
	for i := range gpus {
		for j := range i {
			h.snapshot.Topology.Set(i, j, gpu.Link{Kind: gpu.LinkNVLink, Count: 12, Switched: true, Path: gpu.PathSystem})
		}
	}
	return h
}

// benchmark runs call against an agent on a real Unix socket and prints p50 and p99. It counts how often the state is read during the
// calls, which stands for hardware calls: there is no other way from here to the hardware.
func benchmark(b *testing.B, gpus int, call func(context.Context, pluginapi.DevicePluginClient) error) {
	benchmarkState(b, fabric(gpus).State(), gpus, call)
}

func benchmarkState(b *testing.B, state State, devices int, call func(context.Context, pluginapi.DevicePluginClient) error) {
	dir := kubeletDir(b)
	k := startKubelet(b, dir, fakekubelet.Options{})
	reads := 0
	startAgent(b, dir, machine(1), func(m *Manager) {
		m.deps.Instance = "a"
		m.deps.State = func() State { reads++; return state }
	})
	await(b, k, healthy(devices))
	before, ctx := reads, context.Background()
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
	b.ReportMetric(float64(reads-before), "hardware-calls")
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

// BenchmarkPrefer is the part of GetPreferredAllocation without the socket, for a request that is not in the cache.
func BenchmarkPrefer(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		for _, size := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("gpus=%d/size=%d", gpus, size), func(b *testing.B) {
				v, available := viewOf(b, fabric(gpus)), uuids(first(gpus)...)
				free := blocking()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := v.prefer(v.request(available, nil, size), free); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// replicaOffer has eight GPUs with a hundred replicas each.
func replicaOffer() offer.Offer {
	o := offer.Offer{Resource: resource}
	for i := range 8 {
		for n := range 100 {
			key := gpu.DeviceKey{GPU: gpu.UUID(fmt.Sprintf("GPU-%08d-aaaa-bbbb-cccc-0123456789ab", i)), Share: n + 1}
			o.Devices = append(o.Devices, offer.Device{ID: offer.DeviceID(key), Key: key, Mode: offer.TimeSlicing, Index: fmt.Sprint(i), Health: gpu.Healthy})
		}
	}
	return o
}

// replicaIDs are all IDs, in no order, as the kubelet names them.
func replicaIDs(o offer.Offer) []string {
	ids := make([]string, 0, len(o.Devices))
	for i := range o.Devices {
		ids = append(ids, o.Devices[i*37%len(o.Devices)].ID)
	}
	return ids
}

// BenchmarkPreferReplicas is GetPreferredAllocation for replicas without the socket.
func BenchmarkPreferReplicas(b *testing.B) {
	o := replicaOffer()
	ids := replicaIDs(o)
	free := blocking()
	for _, policy := range []placement.Policy{placement.Distributed, placement.Packed} {
		for _, mode := range []offer.Mode{offer.TimeSlicing, offer.MPS} {
			for i := range o.Devices {
				o.Devices[i].Mode = mode
			}
			v := (&viewer{vendors: testVendors(), strategy: Strategy{ID: v1alpha1.IDStrategyUUID}}).build(o, State{Policy: policy}, nil, nil, time.Time{})
			b.Run(fmt.Sprintf("%s/%s/32of800", policy, mode), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := v.prefer(v.request(ids, nil, 32), free); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkReplicas are whole calls over the socket.
func BenchmarkReplicas(b *testing.B) {
	o := replicaOffer()
	state := State{Snapshot: &gpu.Snapshot{}, Offers: []offer.Offer{o}}
	b.Run("GetPreferredAllocation/32of800", func(b *testing.B) {
		request := &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: replicaIDs(o), AllocationSize: 32,
		}}}
		benchmarkState(b, state, len(o.Devices), func(ctx context.Context, client pluginapi.DevicePluginClient) error {
			_, err := client.GetPreferredAllocation(ctx, request)
			return err
		})
	})
	for _, size := range []int{1, 32} {
		b.Run(fmt.Sprintf("Allocate/%d", size), func(b *testing.B) {
			request := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: replicaIDs(o)[:size]}}}
			benchmarkState(b, state, len(o.Devices), func(ctx context.Context, client pluginapi.DevicePluginClient) error {
				_, err := client.Allocate(ctx, request)
				return err
			})
		})
	}
}
