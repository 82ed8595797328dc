package gpu_test

import (
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"pgregory.net/rapid"
)

func TestOverlaps(t *testing.T) {
	whole, share1, share2 := gpu.DeviceKey{GPU: "G0"}, gpu.DeviceKey{GPU: "G0", Share: 1}, gpu.DeviceKey{GPU: "G0", Share: 2}
	mig1, mig2 := gpu.DeviceKey{GPU: "G0", MIG: "M1"}, gpu.DeviceKey{GPU: "G0", MIG: "M2"}
	mig1share, mig2share := gpu.DeviceKey{GPU: "G0", MIG: "M1", Share: 1}, gpu.DeviceKey{GPU: "G0", MIG: "M2", Share: 1}
	tests := map[string]struct {
		a    gpu.DeviceKey
		b    gpu.DeviceKey
		want bool
	}{
		"a GPU and itself":                      {whole, whole, true},
		"two GPUs":                              {whole, gpu.DeviceKey{GPU: "G1"}, false},
		"a GPU and its replica":                 {whole, share1, true},
		"two replicas":                          {share1, share2, false},
		"a replica and itself":                  {share1, share1, true},
		"a GPU and its MIG device":              {whole, mig1, true},
		"a GPU and a replica of its MIG device": {whole, mig1share, true},
		"a replica of the GPU and a MIG device": {share1, mig1, true},
		"a replica of each":                     {share1, mig1share, true},
		"two MIG devices":                       {mig1, mig2, false},
		"a MIG device and another's replica":    {mig1, mig2share, false},
		"a MIG device and its replica":          {mig1, mig1share, true},
		"replicas of two MIG devices":           {mig1share, mig2share, false},
		"MIG devices of one name on two GPUs":   {mig1, gpu.DeviceKey{GPU: "G1", MIG: "M1"}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.a.Overlaps(test.b) != test.want || test.b.Overlaps(test.a) != test.want {
				t.Errorf("Overlaps(%s, %s), want %v", test.a, test.b, test.want)
			}
		})
	}
}

// TestOverlapsOfReplicas: two devices overlap in the same way as those of which they are replicas, but for two replicas of one device.
func TestOverlapsOfReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) gpu.DeviceKey {
			return gpu.DeviceKey{
				GPU:   rapid.SampledFrom([]gpu.UUID{"G0", "G1"}).Draw(t, label+" GPU"),
				MIG:   rapid.SampledFrom([]gpu.UUID{"", "M1", "M2"}).Draw(t, label+" MIG"),
				Share: rapid.IntRange(0, 2).Draw(t, label+" share"),
			}
		}
		a, b := draw("a"), draw("b")
		siblings := a.Unshared() == b.Unshared() && a.Share != b.Share && a.Share > 0 && b.Share > 0
		want := a.Unshared().Overlaps(b.Unshared()) && !siblings
		if a.Overlaps(b) != want || b.Overlaps(a) != want || !a.Overlaps(a) {
			t.Fatalf("Overlaps(%s, %s), want %v", a, b, want)
		}
	})
}

func TestHolderSame(t *testing.T) {
	pod := gpu.Holder{Kind: gpu.HolderPod, PodUID: "u1", Container: "a"}
	claim := gpu.Holder{Kind: gpu.HolderClaim, ID: "c1", Namespace: "ml", Name: "train"}
	tests := map[string]struct {
		a    gpu.Holder
		b    gpu.Holder
		want bool
	}{
		"two containers of a pod":         {pod, gpu.Holder{Kind: gpu.HolderPod, PodUID: "u1", Container: "b"}, true},
		"two pods":                        {pod, gpu.Holder{Kind: gpu.HolderPod, PodUID: "u2", Container: "a"}, false},
		"a pod and its orphan":            {pod, gpu.Holder{Kind: gpu.HolderOrphan, PodUID: "u1", Container: "a"}, false},
		"a claim with and without name":   {claim, gpu.Holder{Kind: gpu.HolderClaim, ID: "c1"}, true},
		"two claims of one name":          {claim, gpu.Holder{Kind: gpu.HolderClaim, ID: "c2", Namespace: "ml", Name: "train"}, false},
		"a claim and a maintenance":       {claim, gpu.Holder{Kind: gpu.HolderMaintenance, ID: "c1"}, false},
		"a claim that two pods consume":   {claim, gpu.Holder{Kind: gpu.HolderClaim, ID: "c1", PodUID: "u2"}, true},
		"two orphans of different pods":   {gpu.Holder{Kind: gpu.HolderOrphan, PodUID: "u1"}, gpu.Holder{Kind: gpu.HolderOrphan, PodUID: "u2"}, false},
		"two pods that are not yet known": {gpu.Holder{Kind: gpu.HolderPod}, gpu.Holder{Kind: gpu.HolderPod, Resource: "x"}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.a.Same(test.b) != test.want || test.b.Same(test.a) != test.want {
				t.Errorf("Same(%v, %v), want %v", test.a, test.b, test.want)
			}
		})
	}
}

func TestHolderString(t *testing.T) {
	for want, holder := range map[string]gpu.Holder{
		"ml/train":                     {Kind: gpu.HolderPod, Namespace: "ml", Name: "train", PodUID: "u1"},
		"an unknown pod":               {Kind: gpu.HolderOrphan},
		"pod u1":                       {Kind: gpu.HolderOrphan, PodUID: "u1"},
		"a pod that is being admitted": {Kind: gpu.HolderPod},
		"ResourceClaim ml/big":         {Kind: gpu.HolderClaim, ID: "c1", Namespace: "ml", Name: "big"},
		"ResourceClaim c1":             {Kind: gpu.HolderClaim, ID: "c1"},
		"ResourceClaim":                {Kind: gpu.HolderClaim},
		"maintenance":                  {Kind: gpu.HolderMaintenance},
		"maintenance (MIG)":            {Kind: gpu.HolderMaintenance, ID: "MIG"},
	} {
		if got := holder.String(); got != want {
			t.Errorf("%+v is %q, want %q", holder, got, want)
		}
	}
}

func TestHolderNames(t *testing.T) {
	pod := func(name string) gpu.Holder { return gpu.Holder{Kind: gpu.HolderPod, Namespace: "ns", Name: name} }
	holdings := []gpu.Holding{
		{Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-y"}, Holder: pod("b")},
		{Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x", Share: 1}, Holder: pod("a")},
		{Key: gpu.DeviceKey{GPU: "GPU-a", MIG: "MIG-x", Share: 2}, Holder: pod("a")},
		{Key: gpu.DeviceKey{GPU: "GPU-b"}, Holder: gpu.Holder{Kind: gpu.HolderMaintenance, ID: "reset"}},
	}
	for key, want := range map[gpu.DeviceKey][]string{
		{GPU: "GPU-a"}:                         {"ns/a", "ns/b"},
		{GPU: "GPU-a", MIG: "MIG-x"}:           {"ns/a"},
		{GPU: "GPU-a", MIG: "MIG-x", Share: 3}: {"ns/a"},
		{GPU: "GPU-a", MIG: "MIG-z"}:           nil,
		{GPU: "GPU-b"}:                         nil,
	} {
		if got := gpu.HolderNames(holdings, key); !slices.Equal(got, want) {
			t.Errorf("holders of %v: %v, want %v", key, got, want)
		}
	}
}
