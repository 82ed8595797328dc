package cli

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-gpu/berth/internal/core/trace"
)

// said is a statement of sources.
func said(value string, kinds ...trace.Kind) trace.Fact {
	fact := trace.Fact{Value: value}
	for _, kind := range kinds {
		fact.Sources = append(fact.Sources, trace.Source{Kind: kind})
	}
	return fact
}

func differ(statements ...trace.Fact) trace.Disagreement {
	return trace.Disagreement{Code: trace.DevicesDiffer, Statements: statements}
}

// gpuNodeBehind is the disagreement about a pod that the agent has not published yet.
func gpuNodeBehind() trace.Disagreement {
	return differ(said("GPU-a", trace.Checkpoint, trace.Ledger), said(trace.Nothing, trace.GPUNode))
}

// TestUntilPublished checks how often the sources are read, and for how long.
func TestUntilPublished(t *testing.T) {
	behind := &trace.Trace{Disagreements: []trace.Disagreement{gpuNodeBehind()}}
	agree, other := &trace.Trace{}, &trace.Trace{Disagreements: []trace.Disagreement{{Code: trace.TwoHolders}}}
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		results []*trace.Trace // nil is an error; the last one repeats
		want    *trace.Trace
		took    time.Duration
	}{
		"agree at once":           {[]*trace.Trace{agree}, agree, 0},
		"another disagreement":    {[]*trace.Trace{other}, other, 0},
		"published after a write": {[]*trace.Trace{behind, behind, behind, agree}, agree, 3 * lookAgain},
		"an error":                {[]*trace.Trace{behind, nil}, nil, lookAgain},
		"never published":         {[]*trace.Trace{behind}, behind, publishing + lookAgain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), 0
				found, err := untilPublished(t.Context(), func() (*trace.Trace, error) {
					calls++
					if now := test.results[min(calls, len(test.results))-1]; now != nil {
						return now, nil
					}
					return nil, failed
				})
				if found != test.want || errors.Is(err, failed) != (test.want == nil) || time.Since(began) != test.took {
					t.Errorf("%+v, %v after %s, want %+v after %s", found, err, time.Since(began), test.want, test.took)
				}
			})
		})
	}
}

// TestUnpublished checks which disagreements berth trace looks at again: those that the agent's next write of the GPUNode can
// end.
func TestUnpublished(t *testing.T) {
	held, behind := said("GPU-a", trace.Checkpoint, trace.Ledger), gpuNodeBehind()
	for name, test := range map[string]struct {
		list []trace.Disagreement
		want bool
	}{
		"none":                  {nil, false},
		"the GPUNode is behind": {[]trace.Disagreement{behind}, true},
		"for two containers":    {[]trace.Disagreement{behind, behind}, true},
		"the GPUNode has another device": {
			[]trace.Disagreement{differ(held, said("GPU-b", trace.GPUNode))}, false,
		},
		"the ledger has no device either": {
			[]trace.Disagreement{differ(held, said(trace.Nothing, trace.GPUNode, trace.Ledger))}, false,
		},
		"another source has no device": {
			[]trace.Disagreement{differ(held, said(trace.Nothing, trace.Ledger))}, false,
		},
		"beside it another disagreement": {
			[]trace.Disagreement{behind, {Code: trace.TwoHolders}}, false,
		},
		"a third source has other devices": {
			[]trace.Disagreement{differ(held, behind.Statements[1], said("GPU-b", trace.OCISpec))}, false,
		},
	} {
		if got := unpublished(test.list); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
