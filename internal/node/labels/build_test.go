package labels

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const h100 = "NVIDIA H100 80GB HBM3"

// gpus returns a snapshot of GPUs of these products, whose UUIDs are GPU-0 and so on.
func gpus(products ...string) *gpu.Snapshot {
	s := &gpu.Snapshot{Vendors: []gpu.VendorState{{Name: gpu.NVIDIA, Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.Version{Major: 13}}}}, Topology: gpu.NewTopology(len(products))}
	for i, product := range products {
		s.GPUs = append(s.GPUs, gpu.GPU{
			Vendor: gpu.NVIDIA, UUID: uuid(i), Index: i, PCI: gpu.PCIAddress{Bus: uint8(i)}, Product: product,
			ComputeCapability: gpu.Version{Major: 9}, MemoryBytes: 80 << 30,
		})
	}
	return s
}

func uuid(i int) gpu.UUID { return gpu.UUID("GPU-" + string(rune('0'+i))) }

// unit returns the use of a whole GPU.
func unit(i int, use offer.Use) offer.Unit {
	return offer.Unit{Key: gpu.DeviceKey{GPU: uuid(i)}, Use: use}
}

func TestBuild(t *testing.T) {
	shared := func(replicas int, resource string) offer.Use {
		return offer.Use{Resource: resource, Mode: offer.TimeSlicing, Replicas: replicas}
	}
	whole := offer.Use{Resource: offer.DefaultResource}
	for name, test := range map[string]struct {
		in    Input
		want  Labels // among others
		never []string
	}{
		"nothing":     {in: Input{}, never: []string{"nvidia.com/gpu.machine"}},
		"no GPU":      {in: Input{Snapshot: gpus()}, never: []string{"nvidia.com/gpu.machine"}},
		"present":     {in: Input{Snapshot: gpus(h100)}, want: Labels{"nvidia.com/gpu.present": "true"}},
		"no presence": {in: Input{Snapshot: gpus()}, never: []string{"nvidia.com/gpu.present"}},
		"timestamp": {in: Input{Snapshot: gpus(h100), Timestamp: time.Unix(1700000000, 999)},
			want: Labels{"nvidia.com/gfd.timestamp": "1700000000"}},
		"versions of three pieces": {in: Input{Snapshot: gpus(h100)}, want: Labels{
			"nvidia.com/cuda.driver-version.full": "580.95.05", "nvidia.com/cuda.driver-version.major": "580",
			"nvidia.com/cuda.driver-version.minor": "95", "nvidia.com/cuda.driver-version.revision": "05",
			"nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "95", "nvidia.com/cuda.driver.rev": "05",
			"nvidia.com/cuda.runtime-version.full": "13.0", "nvidia.com/cuda.runtime.major": "13", "nvidia.com/cuda.runtime.minor": "0",
		}, never: []string{"nvidia.com/gfd.timestamp", "nvidia.com/vgpu.present", "nvidia.com/gpu.clique"}},
		"versions of two pieces": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) { s.Vendors[0].Driver.Version = "555.42" })}, want: Labels{
			"nvidia.com/cuda.driver-version.full": "555.42", "nvidia.com/cuda.driver-version.revision": "", "nvidia.com/cuda.driver.rev": "",
		}},
		"version of one piece": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) { s.Vendors[0].Driver.Version = "devel" })},
			want: Labels{"nvidia.com/cuda.driver-version.full": "devel"}, never: []string{"nvidia.com/cuda.driver-version.major"}},
		"no driver": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) { s.Vendors = nil })},
			never: []string{"nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.runtime.major"}},
		"machine": {in: Input{Snapshot: gpus(h100), Host: Host{Machine: " PowerEdge  XE9680 (0A1B)™ "}},
			want: Labels{"nvidia.com/gpu.machine": "PowerEdge-XE9680-0A1B"}},
		"no machine": {in: Input{Snapshot: gpus(h100)}, want: Labels{"nvidia.com/gpu.machine": "unknown"}},
		"compute":    {in: Input{Snapshot: gpus(h100), Host: Host{Classes: map[gpu.UUID]uint32{"GPU-0": 0x030200}}}, want: Labels{"nvidia.com/gpu.mode": "compute"}},
		"graphics":   {in: Input{Snapshot: gpus(h100), Host: Host{Classes: map[gpu.UUID]uint32{"GPU-0": 0x030000}}}, want: Labels{"nvidia.com/gpu.mode": "graphics"}},
		"classes differ": {in: Input{Snapshot: gpus(h100, h100), Host: Host{Classes: map[gpu.UUID]uint32{"GPU-0": 0x030000, "GPU-1": 0x030200}}},
			want: Labels{"nvidia.com/gpu.mode": "unknown"}},
		"no class":  {in: Input{Snapshot: gpus(h100)}, want: Labels{"nvidia.com/gpu.mode": "unknown"}},
		"no vGPU":   {in: Input{Snapshot: gpus(h100), Host: Host{VGPU: &VGPU{}}}, want: Labels{"nvidia.com/vgpu.present": "false"}, never: []string{"nvidia.com/vgpu.host-driver-version"}},
		"vGPU":      {in: Input{Snapshot: gpus(h100), Host: Host{VGPU: &VGPU{Present: true, DriverVersion: "550.90.05", DriverBranch: "r550_00"}}}, want: Labels{"nvidia.com/vgpu.present": "true", "nvidia.com/vgpu.host-driver-version": "550.90.05", "nvidia.com/vgpu.host-driver-branch": "r550_00"}},
		"unshared":  {in: Input{Snapshot: gpus(h100, h100), Units: []offer.Unit{unit(0, whole), unit(1, whole)}}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mps.capable": "false", "nvidia.com/gpu.memory": "81920"}},
		"shared":    {in: Input{Snapshot: gpus(h100), Units: []offer.Unit{unit(0, shared(4, offer.DefaultResource))}}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}},
		"renamed":   {in: Input{Snapshot: gpus(h100), Units: []offer.Unit{unit(0, shared(4, "nvidia.com/gpu.shared"))}}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.replicas": "4"}},
		"own name":  {in: Input{Snapshot: gpus(h100), ResourceName: "a.b/gpu", Units: []offer.Unit{unit(0, shared(4, "a.b/gpu"))}}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}},
		"one share": {in: Input{Snapshot: gpus(h100), Units: []offer.Unit{unit(0, shared(1, offer.DefaultResource))}}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}},
		"MPS":       {in: Input{Snapshot: gpus(h100), Units: []offer.Unit{unit(0, offer.Use{Resource: offer.DefaultResource, Mode: offer.MPS, Replicas: 8})}}, want: Labels{"nvidia.com/mps.capable": "true", "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "8"}},
		"MPS on one of three": {in: Input{Snapshot: gpus(h100, h100, h100), Units: []offer.Unit{unit(0, offer.Use{Resource: "x/y", Mode: offer.MPS, Replicas: 8}), unit(1, whole), unit(2, whole)}},
			want: Labels{"nvidia.com/mps.capable": "true", "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}},
		"shared in equal parts": {in: Input{Snapshot: gpus(h100, h100), Units: []offer.Unit{unit(0, shared(4, "x/y")), unit(1, shared(2, "x/y"))}},
			want: Labels{"nvidia.com/gpu.replicas": "2"}},
		"excluded GPUs do not count": {in: Input{Snapshot: gpus(h100, h100, h100), Units: []offer.Unit{unit(2, shared(2, "x/y"))}},
			want: Labels{"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.count": "3"}},
		"most GPUs": {in: Input{Snapshot: gpus("B", "A", "B")}, want: Labels{
			"nvidia.com/gpu.product": "B", "nvidia.com/gpu.count": "2", "model.berth.dev/A.count": "1", "model.berth.dev/B.count": "2", "model.berth.dev/B.family": "hopper"}},
		"equal GPUs": {in: Input{Snapshot: gpus("B", "A", "B", "A")}, want: Labels{"nvidia.com/gpu.product": "A", "nvidia.com/gpu.count": "2"}},
		"one model":  {in: Input{Snapshot: gpus("A")}, never: []string{"model.berth.dev/A.count"}},
		"no product": {in: Input{Snapshot: gpus("", "")}, want: Labels{"nvidia.com/gpu.count": "2"}, never: []string{"nvidia.com/gpu.product"}},
		"a product is better than none": {in: Input{Snapshot: gpus("", "", "A")}, want: Labels{"nvidia.com/gpu.product": "A", "nvidia.com/gpu.count": "1"},
			never: []string{"model.berth.dev/A.count"}},
		"sharing by model": {in: Input{Snapshot: gpus("A", "B"), Units: []offer.Unit{unit(0, whole), unit(1, shared(3, "x/y"))}}, want: Labels{
			"model.berth.dev/A.replicas": "1", "model.berth.dev/B.replicas": "3", "model.berth.dev/B.sharing-strategy": "time-slicing"}},
		"cliques agree":  {in: Input{Snapshot: with(gpus(h100, h100, h100), cliques("c.1", "", "c.1"))}, want: Labels{"nvidia.com/gpu.clique": "c.1"}},
		"cliques differ": {in: Input{Snapshot: with(gpus(h100, h100), cliques("c.1", "c.2"))}, never: []string{"nvidia.com/gpu.clique"}},
		"no memory and no capability": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) {
			s.GPUs[0].MemoryBytes, s.GPUs[0].ComputeCapability = 0, gpu.Version{}
		})}, never: []string{"nvidia.com/gpu.memory", "nvidia.com/gpu.family", "nvidia.com/gpu.compute.major"}},
		"all lost": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) { s.GPUs[0].Health.State = gpu.Gone })}, want: Labels{
			"berth.dev/gpu.healthy": "0", "berth.dev/gpu.unhealthy": "1"}, never: []string{"nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/mig.capable"}},
		"degraded GPUs are advertised": {in: Input{Snapshot: with(gpus(h100, h100, h100), func(s *gpu.Snapshot) {
			s.GPUs[0].Health.State, s.GPUs[1].Health.State = gpu.Degraded, gpu.NeedsReset
		})}, want: Labels{"berth.dev/gpu.healthy": "2", "berth.dev/gpu.unhealthy": "1", "nvidia.com/gpu.count": "3"}},
		"islands": {in: Input{Snapshot: with(gpus(h100, h100, h100, h100, h100, h100), func(s *gpu.Snapshot) {
			s.Topology.Set(0, 5, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
			s.Topology.Set(5, 2, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
			s.Topology.Set(1, 3, gpu.Link{Kind: gpu.LinkNVLink, Count: 4})
		})}, want: Labels{"berth.dev/nvlink.islands": "2", "berth.dev/nvlink.largest-island": "3"}},
		"no islands":  {in: Input{Snapshot: gpus(h100, h100)}, want: Labels{"berth.dev/nvlink.islands": "0"}, never: []string{"berth.dev/nvlink.largest-island"}},
		"no topology": {in: Input{Snapshot: with(gpus(h100), func(s *gpu.Snapshot) { s.Topology = nil })}, never: []string{"berth.dev/nvlink.islands"}},
		"partial compute": {in: Input{MIGStrategy: offer.MIGMixed, Snapshot: with(gpus(h100), func(s *gpu.Snapshot) {
			s.GPUs[0].MIG = gpu.MIG{Capable: true, Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-1", Profile: "1c.3g.40gb", MemoryBytes: 40 << 30}}, {Partition: gpu.Partition{UUID: "MIG-2"}}}}
		})}, want: Labels{
			"nvidia.com/mig-1c.3g.40gb.slices.gi": "3", "nvidia.com/mig-1c.3g.40gb.slices.ci": "1", "nvidia.com/mig-1c.3g.40gb.memory": "40960",
			"nvidia.com/mig-1c.3g.40gb.product": "NVIDIA-H100-80GB-HBM3-MIG-1c.3g.40gb", "nvidia.com/mig-1c.3g.40gb.count": "1",
		}, never: []string{"nvidia.com/mig-.count"}},
		"attributes are what each device has": {in: Input{MIGStrategy: offer.MIGMixed, Snapshot: with(gpus(h100, "B"), func(s *gpu.Snapshot) {
			s.GPUs[0].MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{{
				Partition: gpu.Partition{UUID: "MIG-1", Profile: "1g.10gb"},
				Attributes: gpu.MIGAttributes{
					Multiprocessors: 16, CopyEngines: 1, Decoders: 1, Encoders: 9, JPEGs: 1, OFAs: 1,
				},
			}}}
			s.GPUs[1].MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{{
				Partition: gpu.Partition{UUID: "MIG-2", Profile: "1g.10gb"},
				Attributes: gpu.MIGAttributes{
					Multiprocessors: 14, CopyEngines: 2, Decoders: 3, Encoders: 4, JPEGs: 5,
				},
			}}}
		})}, want: Labels{
			"nvidia.com/mig-1g.10gb.multiprocessors": "14", "nvidia.com/mig-1g.10gb.engines.copy": "1", "nvidia.com/mig-1g.10gb.engines.decoder": "1",
			"nvidia.com/mig-1g.10gb.engines.encoder": "4", "nvidia.com/mig-1g.10gb.engines.jpeg": "1", "nvidia.com/mig-1g.10gb.engines.ofa": "0",
		}},
		"attributes of one device not known": {in: Input{MIGStrategy: offer.MIGMixed, Snapshot: with(gpus(h100), func(s *gpu.Snapshot) {
			s.GPUs[0].MIG = gpu.MIG{Enabled: true, Devices: []gpu.MIGDevice{
				{Partition: gpu.Partition{UUID: "MIG-1", Profile: "1g.10gb"}, Attributes: gpu.MIGAttributes{Multiprocessors: 16}}, {Partition: gpu.Partition{UUID: "MIG-2", Profile: "1g.10gb"}},
			}}
		})}, want: Labels{"nvidia.com/mig-1g.10gb.count": "2"}, never: []string{
			"nvidia.com/mig-1g.10gb.multiprocessors", "nvidia.com/mig-1g.10gb.engines.copy",
		}},
		"profile not known": {in: Input{MIGStrategy: offer.MIGSingle, Snapshot: with(gpus(h100), func(s *gpu.Snapshot) {
			s.GPUs[0].MIG = gpu.MIG{Capable: true, Enabled: true, Devices: []gpu.MIGDevice{{Partition: gpu.Partition{UUID: "MIG-2"}}}}
		})}, want: Labels{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "nvidia.com/gpu.sharing-strategy": "", "nvidia.com/gpu.memory": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := build(test.in)
			for key, want := range test.want {
				if value, ok := got[key]; !ok || value != want {
					t.Errorf("%s is %q, present %v; want %q", key, value, ok, want)
				}
			}
			for _, key := range test.never {
				if value, ok := got[key]; ok {
					t.Errorf("%s is %q; want none", key, value)
				}
			}
		})
	}
}

func with(s *gpu.Snapshot, change func(*gpu.Snapshot)) *gpu.Snapshot {
	change(s)
	return s
}

// cliques gives each GPU the clique "cluster.N".
func cliques(names ...string) func(*gpu.Snapshot) {
	return func(s *gpu.Snapshot) {
		for i, name := range names {
			if name != "" {
				s.GPUs[i].Clique = gpu.Clique{ClusterUUID: name[:1], ID: uint32(name[2] - '0')}
			}
		}
	}
}
