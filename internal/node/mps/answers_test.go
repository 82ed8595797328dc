package mps

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestAnswers checks that a daemon whose response is rounded or cannot be parsed is Ready with a remark, and that one
// that reports more than was set, nothing, or another percentage is not Ready.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		way    string
		memory int64
		state  State
		reason string
	}{
		{sim.MPSAnswersGiB, 3840, Ready, "reports 3G after the memory limit was set to 3840 MiB"},
		{sim.MPSAnswersGiB, 2048, Ready, ""},
		{sim.MPSAnswersGiB, 512, Ready, "reports 0G after the memory limit was set to 512 MiB"},
		{sim.MPSAnswersGiBUp, 3840, Ready, "reports 4G after the memory limit was set to 3840 MiB"},
		{sim.MPSAnswersExact, 3840, Ready, ""},
		{sim.MPSAnswersSmaller, 3840, Ready, "reports 1920M after the memory limit was set to 3840 MiB"},
		{sim.MPSAnswersWords, 3840, Ready, "limit applies to new clients"},
		{sim.MPSAnswersWords, NoLimit, Ready, ""},
		{sim.MPSAnswersLarger, 3840, Failed, "reports 7680M after the memory limit was set to 3840 MiB"},
		{sim.MPSAnswersNothing, 3840, Failed, "reports no memory limit after 3840 MiB"},
		{sim.MPSAnswersOtherPart, 3840, Failed, "reports 12.5 % after the active thread percentage was set to 25 %"},
	} {
		t.Run(test.way, func(t *testing.T) {
			n := newNode(t)
			n.check(n.machine.SetMPSAnswers(test.way))
			s := n.start(n.deps())
			want := n.want(0)
			want.PinnedMemoryMiB = test.memory
			s.ask(want)
			now := s.await(string(test.state), inState(test.state, test.reason))[0]
			if test.reason == "" && strings.Contains(now.Reason, "reports") {
				t.Errorf("remark %q", now.Reason)
			}
			if test.state == Ready && now.Limits != want.Limits {
				t.Errorf("limits %+v, want %+v", now.Limits, want.Limits)
			}
			s.set()
		})
	}
}
