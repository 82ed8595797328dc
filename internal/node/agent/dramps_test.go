package agent

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/mps"
)

// mps adds a configuration with mode mps to a claim.
func (b *claimBench) mps(claim *resourceapi.ResourceClaim, limits string) *resourceapi.ResourceClaim {
	text := `{"apiVersion":"berth.dev/v1alpha1","kind":"GPUClaimConfig","sharing":{"mode":"mps","mps":` + limits + `}}`
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: b.driver, Parameters: runtime.RawExtension{Raw: []byte(text)}},
		},
	}}
	claim, err := b.clients.ResourceV1().ResourceClaims(claim.Namespace).Update(b.t.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return claim
}

// prepareWithMPS prepares a claim as the kubelet does, again after an error about the MPS daemon: with the race detector, on a machine with
// much other work, a simulated daemon takes up to half of the time that a prepare waits.
func (b *claimBench) prepareWithMPS(ctx context.Context, claim *resourceapi.ResourceClaim) (names []string, err error) {
	for range 3 {
		if names, err = b.prepare(ctx, claim); err == nil || !strings.Contains(err.Error(), "MPS daemon") {
			return names, err
		}
	}
	return names, err
}

// daemonOf returns the daemon of a GPU according to the supervisor, and the GPU's compute mode.
func (b *claimBench) daemonOf(supervisor *mps.Client, index int) (mps.Status, string) {
	b.t.Helper()
	statuses, err := supervisor.Status(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	mode, err := nvidia.NewActions(nvidia.Deps{Library: b.machine.NVML()}).ComputeMode(b.uuid(index))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, status := range statuses {
		if status.GPU == b.uuid(index) {
			return status, mode
		}
	}
	return mps.Status{}, mode
}

// TestMPSOfAClaim: a claim with mode mps has a daemon with its limits, which outlasts the agent; what is prepared on the GPU after it
// finds no daemon, another claim's limits, or MIG on.
func TestMPSOfAClaim(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	client := &mps.Client{Socket: mps.SocketPath(filepath.Join(b.dir, "mps"))}
	claim := b.mps(b.claim("a", b.device(0, "")), `{"pinnedMemoryMiB":8192,"activeThreadPercentage":25}`)
	ctx := t.Context()
	prepare := func(claim *resourceapi.ResourceClaim) []string {
		t.Helper()
		names, err := b.prepareWithMPS(ctx, claim)
		if err != nil {
			t.Fatalf("%v\n%s", err, b.picture())
		}
		return names
	}
	unprepare := func(claim *resourceapi.ResourceClaim) {
		t.Helper()
		if err := b.unprepare(ctx, claim); err != nil {
			t.Fatal(err)
		}
	}
	stop := b.supervise()
	if names := prepare(claim); !slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "=mps-"+string(b.uuid(0))) }) {
		t.Errorf("the CDI names are %v", names)
	}
	daemon, mode := b.daemonOf(client, 0)
	if want := (mps.Limits{PinnedMemoryMiB: 8192, ActiveThreadPercentage: 25, MultiUser: true}); daemon.State != mps.Ready || daemon.Limits != want || mode != nvidia.ComputeModeExclusiveProcess {
		t.Errorf("the daemon is %+v, and the compute mode is %s", daemon, mode)
	}
	b.restart()
	b.until("the agent has the daemon", func() bool { return b.agent.changes.mps.Unready(b.uuid(0)) == "" })
	prepare(claim)
	if now, _ := b.daemonOf(client, 0); now.PID != daemon.PID {
		t.Errorf("the restart of the agent replaced the daemon %d by %d", daemon.PID, now.PID)
	}
	// The next holder comes at once each time.
	unprepare(claim)
	plain := b.claim("plain", b.device(0, ""))
	prepare(plain)
	if now, mode := b.daemonOf(client, 0); now.GPU != "" || mode != nvidia.ComputeModeDefault {
		t.Errorf("beside a claim without MPS there is the daemon %+v, and the compute mode is %s", now, mode)
	}
	unprepare(plain)
	one := b.mps(b.claim("one", b.device(0, "")), `{"singleUser":true}`)
	prepare(one)
	unprepare(one)
	two := b.mps(b.claim("two", b.device(0, "")), `{"activeThreadPercentage":50}`)
	prepare(two)
	if now, _ := b.daemonOf(client, 0); now.State != mps.Ready || now.Limits != (mps.Limits{PinnedMemoryMiB: mps.NoLimit, ActiveThreadPercentage: 50, MultiUser: true}) {
		t.Errorf("the daemon of the second claim is %+v", now)
	}
	unprepare(two)
	part := b.claim("part", b.device(0, "1g.10gb at 0"))
	prepare(part)
	if now, mode := b.daemonOf(client, 0); now.GPU != "" || mode != nvidia.ComputeModeDefault {
		t.Errorf("beside a MIG device there is the daemon %+v, and the compute mode is %s", now, mode)
	}
	unprepare(part)
	stop()
}

// TestMPSBeforeItsSupervisor: a prepare waits for a supervisor that is about to run.
func TestMPSBeforeItsSupervisor(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	claim := b.mps(b.claim("a", b.device(0, "")), `{}`)
	done := make(chan error)
	go func() {
		_, err := b.prepareWithMPS(t.Context(), claim)
		done <- err
	}()
	b.until("the lack of a supervisor is a problem", func() bool { return len(b.problems("MPS_SUPERVISOR")) > 0 })
	defer b.supervise()()
	if err := <-done; err != nil {
		t.Errorf("%v\n%s", err, b.picture())
	}
	b.until("the problem has ended", func() bool { return len(b.problems("MPS_SUPERVISOR")) == 0 })
	if err := b.unprepare(t.Context(), claim); err != nil {
		t.Error(err)
	}
}
