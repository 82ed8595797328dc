package cli

import (
	"testing"

	"github.com/berth-gpu/berth/internal/core/trace"
)

// TestUnpublished checks which disagreements berth trace looks at again: those that the agent's next write of the GPUNode can
// end.
func TestUnpublished(t *testing.T) {
	from := func(kinds ...trace.Kind) []trace.Source {
		var list []trace.Source
		for _, kind := range kinds {
			list = append(list, trace.Source{Kind: kind})
		}
		return list
	}
	held := trace.Fact{Value: "GPU-a", Sources: from(trace.Checkpoint, trace.Ledger)}
	differ := func(statements ...trace.Fact) trace.Disagreement {
		return trace.Disagreement{Code: trace.DevicesDiffer, Statements: statements}
	}
	behind := differ(held, trace.Fact{Value: trace.Nothing, Sources: from(trace.GPUNode)})
	for name, test := range map[string]struct {
		list []trace.Disagreement
		want bool
	}{
		"none":                             {nil, false},
		"the GPUNode is behind":            {[]trace.Disagreement{behind}, true},
		"for two containers":               {[]trace.Disagreement{behind, behind}, true},
		"the GPUNode has another device":   {[]trace.Disagreement{differ(held, trace.Fact{Value: "GPU-b", Sources: from(trace.GPUNode)})}, false},
		"the ledger has no device either":  {[]trace.Disagreement{differ(held, trace.Fact{Value: trace.Nothing, Sources: from(trace.GPUNode, trace.Ledger)})}, false},
		"another source has no device":     {[]trace.Disagreement{differ(held, trace.Fact{Value: trace.Nothing, Sources: from(trace.Ledger)})}, false},
		"beside it another disagreement":   {[]trace.Disagreement{behind, {Code: trace.TwoHolders}}, false},
		"a third source has other devices": {[]trace.Disagreement{differ(held, behind.Statements[1], trace.Fact{Value: "GPU-b", Sources: from(trace.OCISpec)})}, false},
	} {
		if got := unpublished(test.list); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
