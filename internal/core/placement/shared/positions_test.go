package shared

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/placement"
)

func uuids(node, n int) []gpu.UUID {
	list := make([]gpu.UUID, n)
	for i := range list {
		list[i] = gpu.UUID(fmt.Sprintf("GPU-%d-%d", node, i))
	}
	return list
}

// TestPositionsThereAndBack translates sets to UUIDs and back.
func TestPositionsThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, placement.MaxGPUs).Draw(t, "gpus")
		list := uuids(1, n)
		p, err := NewPositions(list)
		if err != nil || p.Len() != n {
			t.Fatal(p.Len(), err)
		}
		set := placement.Set(rapid.Uint32().Draw(t, "set"))
		names := p.Append(nil, set)
		known := set & placement.Set(uint64(1)<<n-1)
		slices.Reverse(names)
		if back, err := p.Set(names...); err != nil || back != known || len(names) != known.Len() {
			t.Fatalf("%v became %v and %v: %v", set, names, back, err)
		}
	})
}

// TestOneAnswerForTwoNodes asks for two nodes of one topology: one answer, and the UUIDs of each node.
func TestOneAnswerForTwoNodes(t *testing.T) {
	c := NewCache(Options{})
	for node := range 2 {
		topology := mustTopology(t, c, islands(8, 18))
		p, err := NewPositions(uuids(node, 8))
		if err != nil {
			t.Fatal(err)
		}
		held, err := p.Set(gpu.UUID(fmt.Sprintf("GPU-%d-1", node)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := topology.Choose(0xff&^held, 0, 4)
		want := fmt.Sprintf("[GPU-%d-4 GPU-%d-5 GPU-%d-6 GPU-%d-7]", node, node, node, node)
		if got := fmt.Sprint(p.Append(nil, answer.GPUs)); err != nil || got != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
	if stats := c.Stats(); stats.Choices != 1 {
		t.Errorf("%+v, want one choice", stats)
	}
}

func TestPositionsRefuse(t *testing.T) {
	for want, list := range map[string][]gpu.UUID{
		"number GPUs: the node has 33 GPUs, at most 32 are supported": uuids(1, placement.MaxGPUs+1),
		"number GPUs: GPU 1 has no UUID":                              {"GPU-a", ""},
		"number GPUs: GPUs 0 and 2 have the same UUID GPU-a":          {"GPU-a", "GPU-b", "GPU-a"},
	} {
		if _, err := NewPositions(list); text(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	p, err := NewPositions(uuids(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Set("GPU-1-0", "GPU-x"); text(err) != "find GPU GPU-x: it is none of the 2 GPUs of the node" {
		t.Error(err)
	}
}

// TestPositionsAreCopied changes the list after the call.
func TestPositionsAreCopied(t *testing.T) {
	list := uuids(1, 2)
	p, err := NewPositions(list)
	if err != nil {
		t.Fatal(err)
	}
	list[0] = "GPU-x"
	if set, err := p.Set("GPU-1-0"); err != nil || set != 1 {
		t.Error(set, err)
	}
}
