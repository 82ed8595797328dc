package dra

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
)

// apiServer returns a client of an API server that names slices, counts their versions, and sets the time of taints.
func apiServer() *fake.Clientset {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}})
	var version atomic.Int64
	stamp := func(slice *resourceapi.ResourceSlice) {
		slice.ResourceVersion = strconv.FormatInt(version.Add(1), 10)
		for i := range slice.Spec.Devices {
			for k := range slice.Spec.Devices[i].Taints {
				if taint := &slice.Spec.Devices[i].Taints[k]; taint.TimeAdded == nil {
					taint.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
				}
			}
		}
	}
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		stamp(slice)
		slice.Name = fmt.Sprintf("%s%x", slice.GenerateName, 0xffff-version.Load()) // no order by creation
		return false, nil, nil
	})
	client.PrependReactor("update", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		stamp(action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice))
		return false, nil, nil
	})
	return client
}

// publisher writes slices with the controller that Kubernetes' library for DRA drivers has for it.
type publisher struct {
	t          *testing.T
	client     *fake.Clientset
	controller *resourceslice.Controller
	last       resourceslice.Stats
}

func newPublisher(t *testing.T) *publisher {
	p := &publisher{t: t, client: apiServer()}
	ctx, cancel := context.WithCancel(t.Context())
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: pool.DefaultDriver, KubeClient: p.client, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "node-uid"},
		ErrorHandler: func(_ context.Context, err error, message string) { t.Errorf("%s: %v", message, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.controller = controller
	t.Cleanup(func() {
		cancel()
		controller.Stop()
	})
	return p
}

// published returns the slices that the API server has.
func (p *publisher) published() []resourceapi.ResourceSlice {
	list, err := p.client.ResourceV1().ResourceSlices().List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return list.Items
}

// publish returns how many slices the controller wrote or deleted.
func (p *publisher) publish(result pool.Result) int {
	made := resourceslice.Pool{}
	for i := range result.Slices {
		spec := &result.Slices[i].Spec
		made.Slices = append(made.Slices, resourceslice.Slice{Devices: spec.Devices, SharedCounters: spec.SharedCounters})
	}
	p.controller.Update(&resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{nodeName: made}})
	synctest.Wait()
	now := p.controller.GetStats()
	touched := now.NumCreates + now.NumUpdates + now.NumDeletes - p.last.NumCreates - p.last.NumUpdates - p.last.NumDeletes
	p.last = now
	return int(touched)
}

// TestTouchedSlicesOfTheLibrary changes a node and compares the number of slices that Kubernetes' own controller writes with that of
// pool.Compare. A fault, a repair, a lost GPU and one that leaves write one slice each.
func TestTouchedSlicesOfTheLibrary(t *testing.T) {
	snapshot := scan(t, "h100x8").snapshot
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		s, with := *snapshot, settings(snapshot, true)
		s.GPUs = slices.Clone(s.GPUs)
		for _, step := range []struct {
			what   string
			change func()
			want   int
		}{
			{"the first publication", func() {}, 5},
			{"nothing", func() {}, 0},
			{"a fault", func() { s.GPUs[2].Health.State = gpu.NeedsReset }, 1},
			{"another fault", func() { s.GPUs[7].Health.State = gpu.Degraded }, 1},
			{"a worse fault", func() { s.GPUs[7].Health.State = gpu.Unhealthy }, 1},
			{"a repair", func() { s.GPUs[2].Health.State = gpu.Healthy }, 1},
			{"a GPU goes to the device plugin", func() { delete(with.GPUs, s.GPUs[0].UUID) }, 1},
			{"another one", func() { delete(with.GPUs, s.GPUs[5].UUID) }, 1},
			{"the first returns", func() { with.GPUs[s.GPUs[0].UUID] = pool.Use{DynamicMIG: true} }, 1},
			{"a GPU is removed", func() { s.GPUs, s.Topology = s.GPUs[:7], snapshot.Topology[:7] }, 1},
			{"a GPU is not dynamic any more", func() { with.GPUs[s.GPUs[1].UUID] = pool.Use{} }, 1},
			{"a driver upgrade", func() {
				for i := range s.GPUs {
					s.GPUs[i].Driver.Version = "595.10"
				}
			}, 5},
		} {
			step.change()
			for i := range s.Topology {
				s.Topology[i] = s.Topology[i][:len(s.GPUs)]
			}
			before := p.published()
			result := pool.Build(&s, with, before)
			if err := pool.Validate(result.Slices); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			changes := pool.Compare(before, result.Slices)
			if got := p.publish(result); got != step.want || changes.Touched() != got {
				t.Errorf("%s: the library touches %d slices, Compare says %d, want %d: %+v", step.what, got, changes.Touched(), step.want, changes)
			}
			generations := map[int64]bool{}
			for _, slice := range p.published() {
				generations[slice.Spec.Pool.Generation] = true
			}
			if len(generations) != 1 {
				t.Errorf("%s: generations %v", step.what, generations)
			}
			if touched := p.publish(pool.Build(&s, with, p.published())); touched != 0 {
				t.Errorf("%s: the published slices are written again: %d", step.what, touched)
			}
		}
	})
}

// TestStandardAttributes compares the attributes that Kubernetes defines with what its own functions read from sysfs.
func TestStandardAttributes(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			m := scan(t, profile)
			result := build(t, m.snapshot, settings(m.snapshot, false))
			for _, slice := range result.Slices {
				for _, device := range slice.Spec.Devices {
					g := m.snapshot.GPU(result.Devices[device.Name].GPU)
					checkStandard(t, m.sys, g.PCI.String(), device.Attributes)
				}
			}
		})
	}
}

func checkStandard(t *testing.T, sys, address string, got map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) {
	t.Helper()
	root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address, deviceattribute.WithFSFromRoot(sys))
	if err != nil {
		t.Fatal(err)
	}
	bus, err := deviceattribute.GetPCIBusIDAttribute(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []deviceattribute.DeviceAttribute{root, bus} {
		if value := got[want.Name].StringValue; value == nil || *value != *want.Value.StringValue {
			t.Errorf("%s: %s is %v, want %s", address, want.Name, value, *want.Value.StringValue)
		}
	}
	numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(address, deviceattribute.ScalarAttribute, deviceattribute.WithFSFromRoot(sys))
	value := got[deviceattribute.StandardDeviceAttributeNUMANode].IntValue
	if (err == nil) != (value != nil) || value != nil && *value != *numa.Value.IntValue {
		t.Errorf("%s: the NUMA node is %v, want %+v, %v", address, value, numa, err)
	}
}
