package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/cdi"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/berth-gpu/berth/internal/node/nodeapi/fakeapi"
)

// record writes the kubelet's record of prepared claims, each with one device for one pod.
func (b *claimBench) record(claims ...*resourceapi.ResourceClaim) {
	b.t.Helper()
	var list []map[string]any
	for _, claim := range claims {
		list = append(list, map[string]any{
			"ClaimUID": claim.UID, "ClaimName": claim.Name, "Namespace": claim.Namespace, "PodUIDs": map[string]any{"pod-" + claim.Name: map[string]any{}},
			"DriverState": map[string]any{b.driver: map[string]any{"Devices": []any{map[string]any{
				"PoolName": fakeapi.NodeName, "DeviceName": claim.Status.Allocation.Devices.Results[0].Device, "RequestNames": []string{"request-0"},
			}}}},
		})
	}
	data, err := json.Marshal(map[string]any{"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": list})
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"Data": string(data), "Checksum": crc32.ChecksumIEEE(data)})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.kubeletDir(), prepared.FileName), text, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestClaimsAfterReboot: a reboot ends all MIG devices, the ledger and the CDI specs, and the kubelet still has its record of the claims.
// It prepares them again for the pods that it starts again: a MIG device is created at the same placement, and a whole GPU is held all the
// time.
func TestClaimsAfterReboot(t *testing.T) {
	t.Parallel()
	b := newClaimBench(t, "h100x8", "")
	placed := mig.Placed{Profile: "1g.10gb", Start: 4, Size: 1}
	part, whole := b.claim("part", b.device(0, placed.String())), b.claim("whole", b.device(1, ""))
	for _, claim := range []*resourceapi.ResourceClaim{part, whole} {
		if _, err := b.prepare(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	b.record(part, whole)
	b.end()
	if err := errors.Join(b.machine.Reboot(), os.RemoveAll(filepath.Join(b.dir, "state")), os.RemoveAll(filepath.Join(b.dir, "cdi"))); err != nil {
		t.Fatal(err)
	}
	b.boot = "the second boot"
	b.begin()
	if names, err := b.prepare(t.Context(), b.claim("other", b.device(1, ""))); err == nil {
		t.Errorf("another claim got the whole GPU, %v\n%s", names, b.picture())
	}
	names, err := b.prepare(t.Context(), part)
	if err != nil {
		t.Fatalf("%v\n%s", err, b.picture())
	}
	b.has(0, placed, names)
	if names, err = b.prepare(t.Context(), whole); err != nil || !slices.Equal(names, []string{cdi.QualifiedName(string(b.uuid(1)))}) {
		t.Errorf("the whole GPU after the reboot: %v, %v", names, err)
	}
	if held := b.agent.node.ledger.Holdings(); len(held) != 2 {
		t.Errorf("%d holdings, want 2:\n%s", len(held), b.picture())
	}
	for _, claim := range []*resourceapi.ResourceClaim{part, whole} {
		if err := b.unprepare(t.Context(), claim); err != nil {
			t.Error(fmt.Errorf("unprepare %s: %w", claim.Name, err))
		}
	}
	b.idle()
}
