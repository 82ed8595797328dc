package sim

import (
	"fmt"
	"slices"
)

// The ways in which an MPS control daemon answers for the limits that were set. The manual shows memory in whole GiB, rounded
// down; nothing says what other versions do.
const (
	MPSAnswersGiB       = "gib"        // whole GiB, rounded down: 3G after 3840M
	MPSAnswersGiBUp     = "gib-up"     // whole GiB, rounded up: 4G after 3840M
	MPSAnswersExact     = "exact"      // as it was set
	MPSAnswersSmaller   = "smaller"    // half
	MPSAnswersLarger    = "larger"     // twice as much
	MPSAnswersNothing   = "nothing"    // an empty line
	MPSAnswersWords     = "words"      // a sentence
	MPSAnswersOtherPart = "other-part" // half the percentage of threads
)

// MPSAnswers are the ways to answer, the first the usual one.
func MPSAnswers() []string {
	return []string{
		MPSAnswersGiB, MPSAnswersGiBUp, MPSAnswersExact, MPSAnswersSmaller, MPSAnswersLarger, MPSAnswersNothing, MPSAnswersWords, MPSAnswersOtherPart,
	}
}

// SetMPSAnswers chooses how the MPS control daemons of the machine answer, those that run included.
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
