package sim

import (
	"fmt"
	"slices"
)

// The ways in which an MPS control daemon reports the limits that were set. NVIDIA's manual shows memory in whole GiB,
// rounded down; the behaviour of other versions is not documented.
const (
	MPSAnswersGiB       = "gib"        // whole GiB, rounded down: 3G after 3840M
	MPSAnswersGiBUp     = "gib-up"     // whole GiB, rounded up: 4G after 3840M
	MPSAnswersExact     = "exact"      // the value that was set
	MPSAnswersSmaller   = "smaller"    // half
	MPSAnswersLarger    = "larger"     // twice as much
	MPSAnswersNothing   = "nothing"    // an empty line
	MPSAnswersWords     = "words"      // a sentence
	MPSAnswersOtherPart = "other-part" // half the percentage of threads
)

// MPSAnswers lists the ways to answer; the first is the default.
func MPSAnswers() []string {
	return []string{
		MPSAnswersGiB, MPSAnswersGiBUp, MPSAnswersExact, MPSAnswersSmaller, MPSAnswersLarger, MPSAnswersNothing,
		MPSAnswersWords, MPSAnswersOtherPart,
	}
}

// SetMPSAnswers sets how the MPS control daemons of the machine answer, including running ones.
func (m *Machine) SetMPSAnswers(way string) error {
	if !slices.Contains(MPSAnswers(), way) {
		return fmt.Errorf("set answers of MPS: %q is none of %v", way, MPSAnswers())
	}
	err := m.change(func(st *state) ([]event, error) {
		st.MPSAnswers = way
		return []event{{Type: eventSetting, Note: "MPS answers " + way}}, nil
	})
	if err != nil {
		return fmt.Errorf("set answers of MPS: %w", err)
	}
	return nil
}
