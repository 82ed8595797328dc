package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/placement"
	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// shared is a rule that offers GPUs as time-sliced replicas.
func shared(name string, replicas int, gpus ...int) offer.GPURule {
	return offer.GPURule{
		Select:  offer.GPUSelect{Index: gpus},
		Sharing: offer.Sharing{Mode: offer.TimeSlicing, Replicas: replicas, ResourceName: name},
	}
}

// TestChangeAffectsNoOtherResource: a change at run time leaves the other resources their sockets and streams, and sends nothing on them.
func TestChangeAffectsNoOtherResource(t *testing.T) {
	dir, h := kubeletDir(t), machine(9)
	var names []string
	var rules []offer.GPURule
	for i := range 8 {
		names = append(names, fmt.Sprintf("nvidia.com/shared-%d", i))
		rules = append(rules, shared(names[i], 4, i))
	}
	rules[7].Select.Index = []int{7, 8}
	h.settings[0].GPUs = rules
	k := startKubelet(t, dir, fakekubelet.Options{})
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Instance = "a"
		m.viewer.strategy = Strategy{List: []v1alpha1.DeviceListStrategy{v1alpha1.StrategyEnvVar}, ID: v1alpha1.IDStrategyUUID}
	})
	for i, name := range names {
		awaitResource(t, k, name, healthy(4*len(rules[i].Select.Index)))
	}
	reconfigure := func(rules []offer.GPURule) {
		h.change(func(h *hardware) { h.settings[0].GPUs = rules })
	}
	ctx := context.Background()

	steps := []struct {
		what string
		do   func()
	}{
		{"more replicas of one", func() {
			rules[0].Sharing.Replicas = 6
			reconfigure(slices.Clone(rules))
			awaitResource(t, k, names[0], healthy(6))
		}},
		{"another name", func() {
			rules[0].Sharing.ResourceName = "nvidia.com/renamed"
			reconfigure(slices.Clone(rules))
			awaitResource(t, k, "nvidia.com/renamed", healthy(6))
			awaitResource(t, k, names[0], func(s fakekubelet.State) bool { return s.Primary == "" })
		}},
		{"another policy", func() {
			h.change(func(h *hardware) { h.policy = placement.Packed })
			available := k.State(names[7]).Healthy
			eventually(t, "replicas are packed", func() bool {
				ids, err := k.Preferred(ctx, names[7], available, nil, 2)
				return err == nil && slices.Equal(ids, []string{"GPU-07::0", "GPU-07::1"})
			})
		}},
		{"features", func() {
			h.change(func(h *hardware) { h.features = Features{GDS: true, IMEXChannels: []int{0}} })
			eventually(t, "containers get the features", func() bool {
				answer, err := k.Allocate(ctx, names[1], []string{"GPU-01::3"})
				return err == nil && answer.Envs["NVIDIA_GDS"] == enabled && answer.Envs["NVIDIA_IMEX_CHANNELS"] == "0"
			})
		}},
		{"refusing many", func() {
			rules[7].Sharing.RefuseMany = true
			reconfigure(slices.Clone(rules))
			eventually(t, "two are refused", func() bool {
				_, err := k.Allocate(ctx, names[7], []string{"GPU-07::0", "GPU-08::0"})
				return err != nil && strings.Contains(err.Error(), "maximum request size for shared resources is 1; found 2")
			})
		}},
		{"a GPU is lost", func() {
			h.setHealthy(0, false)
			awaitResource(t, k, "nvidia.com/renamed", healthy(0))
		}},
		{"one is excluded", func() {
			rules[0].Exclude = true
			reconfigure(slices.Clone(rules))
			awaitResource(t, k, "nvidia.com/renamed", func(s fakekubelet.State) bool { return s.Primary == "" })
		}},
	}
	before := make(map[string]fakekubelet.State)
	for _, name := range names[1:] {
		before[name] = k.State(name)
	}
	sockets := ourSockets(t, dir, names[1:])
	for _, step := range steps {
		step.do()
		for _, name := range names[1:] {
			got := k.State(name)
			if len(got.From) != 1 || got.Attempts != 1 || got.Lowest != before[name].Lowest || !slices.Equal(got.Endpoints, before[name].Endpoints) {
				t.Errorf("%s: %s was registered %d times and sent %d lists; now %+v", step.what, name, got.Attempts, len(got.From), got)
			}
		}
		if now := ourSockets(t, dir, names[1:]); len(now) != 7 || !maps.Equal(sockets, now) {
			t.Errorf("%s: the sockets were %v and are %v", step.what, sockets, now)
		}
	}
}

// ourSockets are the sockets of resources with their inodes.
func ourSockets(t *testing.T, dir string, names []string) map[string]fileID {
	t.Helper()
	entries, err := os.ReadDir(pluginDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	sockets := make(map[string]fileID)
	for _, entry := range entries {
		name, ok := parseSocketName(entry.Name())
		if ok && slices.Contains(names, "nvidia.com/"+name.part) {
			sockets[entry.Name()] = identify(pluginDir(dir) + "/" + entry.Name())
		}
	}
	return sockets
}

// TestWarning: there is one when two replicas of one container are of one GPU and were allocated.
func TestWarning(t *testing.T) {
	dir, h, book := kubeletDir(t), machine(2), &blocks{}
	h.settings[0].GPUs = []offer.GPURule{shared(resource, 4, 0, 1)}
	k := startKubelet(t, dir, fakekubelet.Options{})
	var mu sync.Mutex
	var warnings []string
	startAgent(t, dir, h, func(m *Manager) {
		m.deps.Ledger = book
		m.deps.Warn = func(resource, message string) {
			mu.Lock()
			defer mu.Unlock()
			warnings = append(warnings, resource+": "+message)
		}
	})
	await(t, k, healthy(8))
	ctx := context.Background()
	free := k.State(resource).Healthy
	both, err := k.Preferred(ctx, resource, free, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Allocate(ctx, resource, both); err != nil {
		t.Fatal(err)
	}
	second, err := k.Preferred(ctx, resource, []string{"GPU-01::1", "GPU-01::2", "GPU-01::3"}, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Allocate(ctx, resource, second); err != nil {
		t.Fatal(err)
	}
	book.set(0, &ledger.Block{})
	if _, err := k.Allocate(ctx, resource, []string{"GPU-00::1", "GPU-00::2"}); err == nil {
		t.Error("a blocked GPU was allocated")
	}
	mu.Lock()
	defer mu.Unlock()
	want := []string{"nvidia.com/gpu: container asked for 2 of nvidia.com/gpu and both are on GPU 1 (GPU-01): it gets no more of that than with one replica; ask for one, or let other GPUs have replicas free"}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings differ (-want +got):\n%s", diff)
	}
}
