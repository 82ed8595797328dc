package model

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-gpu/berth/internal/cluster/fleetview"
	"github.com/berth-gpu/berth/internal/core/fleet"
)

// nodeInfo is a node of the scheduler's snapshot without pods.
type nodeInfo struct {
	fwk.NodeInfo
	node *corev1.Node
}

func (n nodeInfo) Node() *corev1.Node         { return n.node }
func (n nodeInfo) GetGeneration() int64       { return 1 }
func (n nodeInfo) GetPods() []fwk.PodInfo     { return nil }
func (n nodeInfo) GetRequested() fwk.Resource { return nothing{} }

type nothing struct{ fwk.Resource }

func (nothing) GetMilliCPU() int64 { return 0 }
func (nothing) GetMemory() int64   { return 0 }

// TestNodesGone: of 10,000 nodes that come and go with their GPUNodes, of the pods that were predicted to run on them, and of the label
// keys of gangs, nothing is kept.
func TestNodesGone(t *testing.T) {
	m := New(Deps{})
	for round := range 20 {
		var nodes []fwk.NodeInfo
		for i := range 500 {
			name := fmt.Sprintf("n-%d-%d", round, i)
			nodes = append(nodes, nodeInfo{node: &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}},
			}})
			m.SetHardware(&fleetview.Hardware{Node: name})
		}
		m.Sync(nodes)
		for i := range 500 {
			m.Assume(types.UID(fmt.Sprint(round, i)), fmt.Sprintf("n-%d-%d", round, i), []fleet.Shape{{CPU: 1000}}, nil)
		}
		for i := range maxTopologies + 1 {
			m.Topology([]string{fmt.Sprintf("example.com/level-%d", i)})
		}
		if len(m.topologies) > maxTopologies {
			t.Fatalf("%d topologies are kept", len(m.topologies))
		}
		for i := range 500 {
			m.DropHardware(fmt.Sprintf("n-%d-%d", round, i))
		}
	}
	m.Sync(nil)
	kept := len(m.hardware) + len(m.changed) + len(m.assumed) + len(m.onNode) + len(m.topologies) + len(m.views) + len(m.nodes) + m.fleet.Len()
	if kept > 0 {
		t.Errorf("%d hardware, %d changed, %d assumed, %d on nodes, %d topologies, %d views, %d nodes and %d in the fleet are kept",
			len(m.hardware), len(m.changed), len(m.assumed), len(m.onNode), len(m.topologies), len(m.views), len(m.nodes), m.fleet.Len())
	}
}
