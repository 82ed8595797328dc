package stack

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

func node(name, model, driver string, gate *v1alpha1.GateStatus) v1alpha1.GPUNode {
	n := v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.GPUNodeStatus{Gate: gate}}
	n.Status.Summary.Model, n.Status.Driver.Version = model, driver
	if model != "" {
		n.Status.Summary.GPUs = 1
	}
	return n
}

func gate(state v1alpha1.GateState, code, message string) *v1alpha1.GateStatus {
	return &v1alpha1.GateStatus{State: state, Code: code, Message: message}
}

func TestCounts(t *testing.T) {
	validated := gate(v1alpha1.GateValidated, "", "by a pod")
	held := gate(v1alpha1.GateHeld, "", "waits for the operator")
	tests := map[string]struct {
		nodes []v1alpha1.GPUNode
		// want are nodes and validated, reason and message; then the pools.
		want  string
		pools []string
	}{
		"no node":             {nil, "0/0 Reconciled: 0 of 0 nodes with GPUs accept pods", nil},
		"a node without GPUs": {[]v1alpha1.GPUNode{node("a", "", "", nil)}, "0/0 Reconciled: 0 of 0 nodes with GPUs accept pods", nil},
		"without a gate": {[]v1alpha1.GPUNode{node("a", "A", "1", nil)}, "1/1 Reconciled: 1 of 1 nodes with GPUs accept pods",
			[]string{"A/1 1/1 Reconciled: "}},
		"validated": {[]v1alpha1.GPUNode{node("a", "A", "1", validated), node("b", "A", "1", validated)}, "2/2 Reconciled: 2 of 2 nodes with GPUs accept pods",
			[]string{"A/1 2/2 Reconciled: "}},
		"pools are sorted by model and driver": {[]v1alpha1.GPUNode{node("a", "B", "1", held), node("b", "A", "2", validated), node("c", "A", "1", held), node("d", "A", "1", held)},
			"1/4 NodesNotValidated: a: waits for the operator (and 2 more)",
			[]string{"A/1 0/2 NodesNotValidated: c: waits for the operator (and 1 more)", "A/2 1/1 Reconciled: ", "B/1 0/1 NodesNotValidated: a: waits for the operator"}},
		"no driver, by state":                {[]v1alpha1.GPUNode{node("a", "", "", gate(v1alpha1.GateFound, "", ""))}, "0/1 DriverMissing: a: it is Found", []string{"/ 0/1 DriverMissing: a: it is Found"}},
		"found, with a driver":               {[]v1alpha1.GPUNode{node("a", "", "1", gate(v1alpha1.GateFound, "LIBRARY", "m"))}, "0/1 NodesNotValidated: a: LIBRARY: m", []string{"/1 0/1 NodesNotValidated: a: LIBRARY: m"}},
		"validated, with a code of before":   {[]v1alpha1.GPUNode{node("a", "A", "1", gate(v1alpha1.GateValidated, "VALIDATE_X", "m"))}, "1/1 Reconciled: 1 of 1 nodes with GPUs accept pods", []string{"A/1 1/1 Reconciled: "}},
		"the first by priority, not by name": {[]v1alpha1.GPUNode{node("a", "A", "1", held), node("b", "A", "1", gate(v1alpha1.GateHeld, "VALIDATE_CUDA", "cuInit")), node("c", "A", "1", gate(v1alpha1.GateDriverReady, "RUNTIME_CDI_OFF", "off"))}, "0/3 RuntimeCDIOff: c: RUNTIME_CDI_OFF: off", []string{"A/1 0/3 RuntimeCDIOff: c: RUNTIME_CDI_OFF: off"}},
		"validation before not validated":    {[]v1alpha1.GPUNode{node("a", "A", "1", held), node("b", "A", "1", gate(v1alpha1.GateHeld, "VALIDATE_CUDA", "cuInit"))}, "0/2 ValidationFailed: b: VALIDATE_CUDA: cuInit", []string{"A/1 0/2 ValidationFailed: b: VALIDATE_CUDA: cuInit"}},
		"the driver before all":              {[]v1alpha1.GPUNode{node("a", "A", "1", gate(v1alpha1.GateDriverReady, "RUNTIME_CDI_OFF", "off")), node("b", "", "", gate(v1alpha1.GateFound, "DRIVER_MISSING", "none"))}, "0/2 DriverMissing: b: DRIVER_MISSING: none", []string{"/ 0/1 DriverMissing: b: DRIVER_MISSING: none", "A/1 0/1 RuntimeCDIOff: a: RUNTIME_CDI_OFF: off"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				status := v1alpha1.GPUStackStatus{Pools: []v1alpha1.StackPool{{Model: "of before"}}}
				reason, message := counts(&status, tc.nodes)
				if got := fmt.Sprintf("%d/%d %s: %s", status.Validated, status.Nodes, reason, message); got != tc.want {
					t.Errorf("got  %q\nwant %q", got, tc.want)
				}
				var pools []string
				for _, p := range status.Pools {
					pools = append(pools, fmt.Sprintf("%s/%s %d/%d %s: %s", p.Model, p.Driver, p.Validated, p.Nodes, p.Reason, p.Message))
				}
				if diff := cmp.Diff(tc.pools, pools); diff != "" {
					t.Errorf("pools (-want +got):\n%s", diff)
				}
				slices.Reverse(tc.nodes)
			}
		})
	}
}

// TestBounds: the API server takes 64 pools, and a message of 32 KiB.
func TestBounds(t *testing.T) {
	var nodes []v1alpha1.GPUNode
	for i := range 100 {
		nodes = append(nodes, node(fmt.Sprint(i), fmt.Sprintf("A%03d", i), "1", gate(v1alpha1.GateHeld, "", strings.Repeat("x", 40000))))
	}
	var status v1alpha1.GPUStackStatus
	reason, message := counts(&status, nodes)
	if len(status.Pools) != 64 || status.Nodes != 100 || status.Pools[63].Model != "A063" {
		t.Errorf("%d pools of %d nodes", len(status.Pools), status.Nodes)
	}
	if c := condition(nil, attempts.New(clocktesting.NewFakeClock(time.Now()), slog.New(slog.DiscardHandler)), reason, message); len(c.Message) > 32768 {
		t.Errorf("the message has %d bytes", len(c.Message))
	}
}
