package pool

import (
	"testing"

	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
)

// BenchmarkBuild computes, validates and compares what 8 dynamic H100 publish, as after each change of the inventory.
func BenchmarkBuild(b *testing.B) {
	s := nvidiatest.New(b, "h100x8").Scan()
	with := settings(s, upTo(8)...)
	before := Build(s, with, nil).Slices
	for b.Loop() {
		result := Build(s, with, before)
		if err := Validate(result.Slices); err != nil {
			b.Fatal(err)
		}
		if changes := Compare(before, result.Slices); changes.Touched() != 0 {
			b.Fatal(changes)
		}
	}
}
