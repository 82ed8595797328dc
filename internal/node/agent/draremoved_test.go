package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// conditions returns the conditions of a claim's devices as "device status reason: message".
func (b *claimBench) conditions(claim *resourceapi.ResourceClaim) (list []string) {
	b.t.Helper()
	now, err := b.clients.ResourceV1().ResourceClaims(claim.Namespace).Get(b.t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, device := range now.Status.Devices {
		for _, condition := range device.Conditions {
			list = append(list, strings.TrimSuffix(device.Device+" "+string(condition.Status)+" "+condition.Reason+": "+condition.Message, ": "))
		}
	}
	return list
}

// problems returns the messages of the agent's problems with a code.
func (b *claimBench) problems(code string) (list []string) {
	for _, cause := range b.agent.reports.problems.All() {
		if cause.Code == code {
			list = append(list, cause.Message)
		}
	}
	return list
}

// TestClaimOfARemovedGPU: when the GPU of a prepared claim is removed, the claim's status and a problem say so and what to do, and so does
// the error of a further prepare; an unprepare releases it.
func TestClaimOfARemovedGPU(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	ctx := t.Context()
	placed := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	names := []string{b.device(0, placed.String()), b.device(1, "")}
	claims := []*resourceapi.ResourceClaim{b.claim("part", names[0]), b.claim("whole", names[1])}
	var want []string
	for i, claim := range claims {
		if _, err := b.prepare(ctx, claim); err != nil {
			t.Fatalf("%v\n%s", err, b.picture())
		}
		b.until("the status has the healthy device", func() bool { return cmp.Equal(b.conditions(claim), []string{names[i] + " True Healthy"}) })
		want = append(want, "GPU "+string(b.uuid(i))+" is not on this node any more: it was removed, or the driver does not list it; delete the pods of the claim, and the claim, to get another GPU")
	}
	b.inject(sim.Fault{GPU: string(b.uuid(1)), Remove: true})
	b.inject(sim.Fault{GPU: string(b.uuid(0)), Remove: true})
	if err := b.agent.node.inventory.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	messages := []string{"claim ns/part: " + want[0], "claim ns/whole: " + want[1]}
	b.until("the claims are reported", func() bool { return cmp.Equal(b.problems("DRA_GPU_REMOVED"), messages) })
	for i, claim := range claims {
		entry := []string{names[i] + " False Gone: " + want[i]}
		b.until("the status says so", func() bool { return cmp.Equal(b.conditions(claim), entry) })
		if _, err := b.prepare(ctx, claim); err == nil || !strings.Contains(err.Error(), "claim ns/"+claim.Name) ||
			!strings.Contains(err.Error(), "device "+names[i]+" is not on this node any more: its GPU was removed") ||
			!strings.Contains(err.Error(), "delete the pod and its claim") {
			t.Errorf("a further prepare: %v", err)
		}
		if err := b.unprepare(ctx, claim); err != nil {
			t.Error(err)
		}
	}
	b.until("nothing is reported", func() bool { return len(b.problems("DRA_GPU_REMOVED")) == 0 })
	b.idle()
}

// TestRetryDuringAPrepare: a kubelet that has given up a prepare repeats it while the driver still creates the MIG device, twice at once.
// Both retries get the one device that the first one has begun to create; one for a prepared claim writes nothing.
func TestRetryDuringAPrepare(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	placed := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	claim := b.claim("train", b.device(0, placed.String()))
	id := b.uuid(0)
	b.inject(sim.Fault{GPU: string(id), Hang: "CreateGpuInstanceWithPlacement"})
	first, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer end()
	if _, err := b.prepare(first, claim); err == nil {
		t.Fatal("the prepare has succeeded while the driver hangs")
	}
	type result struct {
		names []string
		err   error
	}
	ended := make(chan result, 2)
	for range cap(ended) {
		go func() {
			names, err := b.prepare(t.Context(), claim)
			ended <- result{names, err}
		}()
	}
	b.until("the driver is called", func() bool { return strings.Contains(b.picture(), "is being changed to MIG with") })
	if err := b.machine.Clear(string(id)); err != nil {
		t.Fatal(err)
	}
	for range cap(ended) {
		got := <-ended
		if got.err != nil {
			t.Fatalf("%v\n%s", got.err, b.picture())
		}
		b.has(0, placed, got.names)
	}
	on := b.agent.node.inventory.Current().GPU(id)
	if len(on.MIG.Devices) != 1 || len(on.MIG.Empty) > 0 || len(b.agent.node.ledger.Holdings()) != 1 {
		t.Errorf("the claim has more than one device:\n%s", b.picture())
	}
	book, err := filepath.Glob(filepath.Join(b.dir, "*", ledger.File))
	if err != nil || len(book) != 1 {
		t.Fatalf("the ledger's files are %v (%v)", book, err)
	}
	before, err := os.Stat(book[0])
	if err != nil {
		t.Fatal(err)
	}
	if names, err := b.prepare(t.Context(), claim); err != nil || names[0] != b.parts(0)[placed] {
		t.Errorf("a further prepare: %v %v", names, err)
	}
	if after, err := os.Stat(book[0]); err != nil || !os.SameFile(before, after) || after.ModTime() != before.ModTime() {
		t.Errorf("a prepare of a prepared claim has written the ledger (%v)", err)
	}
	if err := b.unprepare(t.Context(), claim); err != nil {
		t.Error(err)
	}
	b.idle()
}
