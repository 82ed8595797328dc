package shared

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/placement"
)

// TestMemoIsBounded asks a thousand questions of a memo for 64 answers while one is repeated, which stays.
func TestMemoIsBounded(t *testing.T) {
	c := NewCache(Options{Answers: 64})
	topology := mustTopology(t, c, islands(10, 18))
	p, err := topology.prepared()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(p.answers.buckets) * places; got != 64 {
		t.Fatalf("space for %d answers", got)
	}
	repeated := func() {
		if _, err := topology.Choose(0x3ff, 0, 5); err != nil {
			t.Fatal(err)
		}
	}
	repeated()
	for i := range 1000 {
		available := placement.Set(i + 3)
		if available.Len() < 2 {
			continue
		}
		if _, err := topology.Choose(available, 0, 2); err != nil {
			t.Fatal(err)
		}
		before := c.Stats().Choices
		if repeated(); c.Stats().Choices != before {
			t.Fatalf("after %d questions the repeated one was computed again", i)
		}
	}
}

// TestMemoDoesNotThrash alternates between two questions of a full bucket whose other answers are not asked for any more.
func TestMemoDoesNotThrash(t *testing.T) {
	for offset := range places {
		c := NewCache(Options{Answers: places})
		topology := mustTopology(t, c, islands(10, 18))
		ask := func(available placement.Set) {
			if _, err := topology.Choose(available, 0, 2); err != nil {
				t.Fatal(err)
			}
		}
		for i := range places + offset {
			for range 2 {
				ask(placement.Set(0x3f0 + i))
			}
		}
		for range 20 {
			ask(0xf)
			ask(0x1f)
		}
		before := c.Stats().Choices
		if ask(0xf); c.Stats().Choices != before {
			t.Errorf("after %d more questions: %d were computed", offset, c.Stats().Choices)
		}
	}
}

// TestMemoSizes has an answer for each question about a small node, and no more than it may.
func TestMemoSizes(t *testing.T) {
	for _, test := range []struct{ gpus, answers, want int }{
		{0, 4096, 4}, {1, 4096, 4}, {4, 4096, 32}, {8, 4096, 1024}, {10, 4096, 4096}, {16, 4096, 4096}, {32, 4096, 4096},
		{16, 1, 4}, {16, 5, 8}, {16, 4097, 8192},
	} {
		m := newMemo(test.gpus, test.answers)
		if got := len(m.buckets) * places; got != test.want {
			t.Errorf("%d GPUs, at most %d answers: %d, want %d", test.gpus, test.answers, got, test.want)
		}
	}
}
