package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/gpu"
)

// fabric is a machine whose cards are on one NVSwitch fabric, as the real ones of 8 and 16 are.
func fabric(gpus int) *hardware {
	h := machine(gpus)
	for i := range gpus {
		for j := range i {
			h.snapshot.Topology.Set(i, j, gpu.Link{NVLinks: 12, Switched: true, Path: gpu.PathSystem})
		}
	}
	return h
}

// benchmark runs call against an agent on a real Unix socket and prints p50 and p99. asked
// counts looks at the state during the calls, which stands for hardware calls: there is
// no other way from here to the hardware.
func benchmark(b *testing.B, gpus int, call func(context.Context, pluginapi.DevicePluginClient) error) {
	dir, h := kubeletDir(b), fabric(gpus)
	k := startKubelet(b, dir, fakekubelet.Options{})
	asked := 0
	startAgent(b, dir, h, func(m *Manager) {
		m.deps.Instance = "a"
		state := m.deps.State
		m.deps.State = func() State { asked++; return state() }
	})
	await(b, k, healthy(gpus))
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
					if _, err := v.prefer(available, nil, size, free); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
