package cdi

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// injectionNode has the results of the functions of InjectionDeps.
type injectionNode struct {
	usesCDI bool
	config  v1alpha1.AgentConfig
	names   map[string]bool
	known   bool
	units   []offer.Unit
	// without has the reason why a GPU has no daemon.
	without map[gpu.UUID]string
	// ending has the reason why a GPU is not free of a daemon.
	ending map[gpu.UUID]string
}

func (n injectionNode) source() *InjectionSource {
	return NewInjectionSource(InjectionDeps{
		UsesCDI: n.usesCDI, Plain: map[string]bool{"other": true}, MPSDirs: mpsDirs, Config: func() *v1alpha1.AgentConfig { return &n.config },
		Names:    func() (map[string]bool, bool) { return n.names, n.known },
		MPSUnits: func() []offer.Unit { return n.units }, WithoutDaemon: func(id gpu.UUID) string { return n.without[id] },
		Ending: func(id gpu.UUID) string { return n.ending[id] },
	})
}

// mpsDirs are those of a daemon below /run/mps.
func mpsDirs(id gpu.UUID) (pipe, shm string) {
	return "/run/mps/" + string(id) + "/pipe", "/run/mps/" + string(id) + "/shm"
}

func TestInjectionKnown(t *testing.T) {
	channels := v1alpha1.AgentConfig{}
	channels.IMEX.ChannelIDs = []int{0}
	tests := map[string]struct {
		node injectionNode
		want bool
	}{
		"nothing depends on files":       {injectionNode{}, true},
		"CDI before the files were read": {injectionNode{usesCDI: true}, false},
		"CDI":                            {injectionNode{usesCDI: true, known: true}, true},
		"IMEX before":                    {injectionNode{config: channels}, false},
		"IMEX":                           {injectionNode{config: channels, known: true}, true},
	}
	for name, tc := range tests {
		if got := tc.node.source().Known(); got != tc.want {
			t.Errorf("%s: known is %v, want %v", name, got, tc.want)
		}
	}
}

func TestInjection(t *testing.T) {
	replicas := offer.Injection{
		CDIDevices: []string{"k8s.berth.dev/gpu=mps-GPU-a"},
		Envs:       map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/mps/GPU-a/pipe"},
		Mounts: []offer.Mount{
			{HostPath: "/run/mps/GPU-a/pipe", ContainerPath: "/mps/GPU-a/pipe"}, {HostPath: "/run/mps/GPU-a/shm",
				ContainerPath: "/dev/shm"},
		},
	}
	whole, part := gpu.DeviceKey{GPU: "GPU-a"}, gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x"}
	tests := map[string]struct {
		node       injectionNode
		vendor     string
		key        gpu.DeviceKey
		mode       offer.Mode
		api        offer.API
		injectable bool
		want       offer.Injection
		notReady   string
	}{
		"without CDI":              {node: injectionNode{}, key: whole, injectable: true},
		"not in the spec":          {node: injectionNode{usesCDI: true, known: true}, key: whole},
		"before the spec was read": {node: injectionNode{usesCDI: true, names: map[string]bool{"GPU-a": true}}, key: whole},
		"a plain vendor":           {node: injectionNode{usesCDI: true}, vendor: "other", key: whole, injectable: true},
		"in the spec": {node: injectionNode{usesCDI: true, known: true, names: map[string]bool{"GPU-a": true}},
			key: whole, injectable: true},
		"a MIG device beside its GPU": {node: injectionNode{usesCDI: true, known: true, names: map[string]bool{"GPU-a": true}}, key: part},
		"a MIG device in the spec": {node: injectionNode{usesCDI: true, known: true, names: map[string]bool{"MIG-x": true}},
			key: part, injectable: true},
		"time slicing needs no daemon": {node: injectionNode{without: map[gpu.UUID]string{"GPU-a": "no daemon"}}, key: whole,
			mode: offer.TimeSlicing, injectable: true},
		"MPS without CDI": {node: injectionNode{}, key: whole, mode: offer.MPS, injectable: true, want: replicas},
		"MPS without its daemon": {node: injectionNode{without: map[gpu.UUID]string{"GPU-a": "no daemon"}}, key: whole,
			mode: offer.MPS, injectable: true, want: replicas, notReady: "no daemon"},
		"MPS before its spec": {node: injectionNode{usesCDI: true, known: true, names: map[string]bool{"GPU-a": true}},
			key: whole, mode: offer.MPS, injectable: true, want: replicas, notReady: "the directories of its MPS daemon are not in the CDI spec yet"},
		"MPS in the spec": {node: injectionNode{usesCDI: true, known: true,
			names: map[string]bool{"GPU-a": true, "mps-GPU-a": true}}, key: whole, mode: offer.MPS, injectable: true, want: replicas},
		"a daemon that is ending": {node: injectionNode{ending: map[gpu.UUID]string{"GPU-a": "it has not ended"}}, key: whole,
			injectable: true, notReady: "it has not ended"},
		"a daemon that is ending on a GPU of DRA": {node: injectionNode{ending: map[gpu.UUID]string{"GPU-a": "it has not ended"}}, key: whole,
			api: offer.DRA, injectable: true},
		"a daemon of another GPU": {node: injectionNode{without: map[gpu.UUID]string{"GPU-b": "no daemon"}}, key: whole,
			mode: offer.MPS, injectable: true, want: replicas},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			source := tc.node.source()
			if got := source.Injectable(tc.vendor, tc.key); got != tc.injectable {
				t.Errorf("injectable is %v, want %v", got, tc.injectable)
			}
			got, notReady := source.Injection(tc.key, offer.Use{Mode: tc.mode, API: tc.api})
			if diff := cmp.Diff(tc.want, got); diff != "" || notReady != tc.notReady {
				t.Errorf("not ready: %q, want %q; injection (-want +got):\n%s", notReady, tc.notReady, diff)
			}
		})
	}
}

func TestInjectionExtras(t *testing.T) {
	config := v1alpha1.AgentConfig{GDS: true, MOFED: true}
	config.IMEX.ChannelIDs, config.IMEX.Required = []int{0, 2}, true
	n := injectionNode{
		config: config, without: map[gpu.UUID]string{"GPU-b": "its MPS daemon is not started yet"},
		units: []offer.Unit{{Key: gpu.DeviceKey{GPU: "GPU-a"}}, {Key: gpu.DeviceKey{GPU: "GPU-b"}}},
	}
	want := Extras{
		GDS: true, MOFED: true, IMEXChannels: []int{0, 2}, IMEXRequired: true,
		MPS: []MPSDevice{{GPU: "GPU-a", PipeDir: "/run/mps/GPU-a/pipe", ShmDir: "/run/mps/GPU-a/shm"}},
	}
	if diff := cmp.Diff(want, n.source().Extras()); diff != "" {
		t.Errorf("extras (-want +got):\n%s", diff)
	}
}
