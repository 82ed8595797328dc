package claims

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/scheduler/model"
)

// manager has ResourceSlices.
type manager struct {
	fwk.SharedDRAManager
	list []*resourceapi.ResourceSlice
}

func (m *manager) ResourceSlices() fwk.ResourceSliceLister { return m }

func (m *manager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return m.list, nil
}

// TestSlicesGone: of 10,000 ResourceSlices of replaced nodes, which have 10,000 names, no memory is kept.
func TestSlicesGone(t *testing.T) {
	m := &manager{}
	s := New(m, model.New(model.Deps{}))
	inUse := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	replace := func(nodes, round int) {
		m.list = nil
		for i := range nodes {
			name := fmt.Sprintf("node-%d-%d", round, i)
			slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-gpus-x7k2p", ResourceVersion: "1"}}
			slice.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.berth.dev", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}}
			for k := range 8 {
				slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", k)})
			}
			m.list = append(m.list, slice)
		}
		if err := s.refresh(); err != nil {
			t.Fatal(err)
		}
		for i := range nodes {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d-%d", round, i)}}
			if _, err := s.predict(t.Context(), node, nil, "", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace(10, 0)
	before := inUse()
	for round := range 20 {
		replace(500, round+1)
	}
	replace(10, 0)
	if grown := inUse() - before; grown > 4<<20 {
		t.Errorf("%d KiB more are in use after 10,000 nodes", grown>>10)
	}
	runtime.KeepAlive(s)
}
