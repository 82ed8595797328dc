package sandbox

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
	"github.com/berth-gpu/berth/internal/node/gpunode"
)

// checkAPIProfiles returns the profile of each API node that has one, by its name. A key of the option is a name, or a pattern of names
// with * and ?; a name precedes a pattern.
func (o *Options) checkAPIProfiles() (map[string]string, error) {
	of, by := map[string]string{}, map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(o.APINodeProfiles)) {
		name := o.APINodeProfiles[key]
		if !slices.Contains(profile.Names(), name) {
			return nil, fmt.Errorf("--api-node-profile %s=%s: there is no such machine: one of %s", key, name, strings.Join(profile.Names(), ", "))
		}
		matched := false
		for i := range o.APINodes {
			node := apiNodeName(i)
			hit, err := path.Match(key, node)
			if err != nil {
				return nil, fmt.Errorf("--api-node-profile %s=%s: %w: use * and ? as in api-node-00*", key, name, err)
			}
			matched = matched || hit
			if _, named := o.APINodeProfiles[node]; !hit || named && key != node {
				continue
			}
			if other := by[node]; other != "" {
				return nil, fmt.Errorf("--api-node-profile: %s and %s both match %s: name each node once", other, key, node)
			}
			of[node], by[node] = name, key
		}
		if !matched {
			return nil, fmt.Errorf("--api-node-profile %s=%s: no API node matches: with --api-nodes %d they are api-node-0000 to %s", key, name,
				o.APINodes, apiNodeName(max(0, o.APINodes-1)))
		}
	}
	return of, nil
}

// apiMachine is what the GPUNode and the Node of an API node have of its machine.
type apiMachine struct {
	status v1alpha1.GPUNodeStatus
}

// gpus returns how many GPUs the machine offers whole.
func (m *apiMachine) gpus() int {
	count := 0
	for i := range m.status.Devices {
		if m.status.Devices[i].Offered != nil {
			count++
		}
	}
	return count
}

// readAPIMachine reads a simulated machine as the agent does. GPUs in MIG mode are not offered: what an agent offers of them depends on its
// configuration, and an API node has none.
func readAPIMachine(ctx context.Context, name string) (*apiMachine, error) {
	dir, err := os.MkdirTemp("", "berth-sandbox-machine-")
	if err != nil {
		return nil, fmt.Errorf("make simulated machine %s: %w", name, err)
	}
	defer os.RemoveAll(dir)
	machine, err := sim.CreateWith(filepath.Join(dir, "machine"), name, sim.Options{Seed: name, NoDeviceNodes: true})
	if err != nil {
		return nil, err
	}
	root := machine.Root()
	vendors := hardware.Open(hardware.Deps{Library: machine.NVML(), Roots: hardware.Roots{Driver: root, Dev: root,
		Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}})
	if open, ok := hardware.Find[interface{ Close() }](vendors); ok {
		defer open.Close()
	}
	// The machines of the simulator are of the only vendor.
	snapshot, err := vendors[0].Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read simulated machine %s: %w", name, err)
	}
	offered := map[gpu.UUID]v1alpha1.DeviceOffer{}
	for i := range snapshot.GPUs {
		if !snapshot.GPUs[i].MIG.Enabled {
			offered[snapshot.GPUs[i].UUID] = v1alpha1.DeviceOffer{Resource: apiNodeResource}
		}
	}
	built := gpunode.Build(name, gpunode.Input{AgentVersion: apiNodeAgent, Snapshot: &snapshot, Offered: offered})
	return &apiMachine{status: built.Status}, nil
}

// readAPIMachines reads each profile of the API nodes once.
func (c *Cluster) readAPIMachines(ctx context.Context) (map[string]*apiMachine, error) {
	machines := map[string]*apiMachine{}
	for _, name := range c.snapshot().APINodeProfiles {
		if machines[name] != nil {
			continue
		}
		machine, err := readAPIMachine(ctx, name)
		if err != nil {
			return nil, err
		}
		machines[name] = machine
	}
	return machines, nil
}

// of returns what the GPUNode of a node says of its machine: the UUIDs are its own, since those of GPUs are unique in a cluster.
func (m *apiMachine) of(node string) v1alpha1.GPUNodeStatus {
	status := m.status.DeepCopy()
	for i := range status.Devices {
		d := &status.Devices[i]
		d.UUID = fmt.Sprintf("GPU-%s-%d", node, d.Index)
		for k := range d.MIGDevices {
			d.MIGDevices[k].UUID = fmt.Sprintf("MIG-%s-%d-%d", node, d.Index, k)
		}
	}
	return *status
}

// plainMachine is the machine of an API node without a profile: GPUs without links.
func plainMachine() *apiMachine {
	m := &apiMachine{status: v1alpha1.GPUNodeStatus{AgentVersion: apiNodeAgent, Driver: v1alpha1.GPUDriver{Version: apiNodeDriver, CUDAVersion: "13.0"},
		Summary: v1alpha1.GPUSummary{GPUs: apiNodeGPUs, Free: apiNodeGPUs, Model: apiNodeModel}}}
	for i := range apiNodeGPUs {
		m.status.Devices = append(m.status.Devices, v1alpha1.GPUDevice{
			Index: i, Minor: i, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 16+i), Product: apiNodeModel,
			Architecture: "Ampere", ComputeCapability: "8.0", MemoryBytes: 40 << 30, NUMANode: i / 4,
			Health: v1alpha1.DeviceHealth{State: "Healthy"}, Offered: &v1alpha1.DeviceOffer{Resource: apiNodeResource},
		})
	}
	return m
}

// heldGate is the gate of a node that waits for its validation.
func heldGate(node string) *v1alpha1.GateStatus {
	return &v1alpha1.GateStatus{State: v1alpha1.GateHeld, Since: metav1.Now(), Mode: v1alpha1.GateEnforce, TaintKey: v1alpha1.TaintNotValidated, Tainted: true,
		Message: "waits for the validation pod", Key: node + "-1"}
}
