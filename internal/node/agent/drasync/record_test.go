package drasync

import (
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/prepared"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// TestRecordedClaims: all claims of the kubelet's file are listed with their pods, without the file they are not known, and a damaged file
// is an error.
func TestRecordedClaims(t *testing.T) {
	dir := t.TempDir()
	read := RecordedClaims("/", dir, "gpu.berth.dev")
	if claims, err := read(); err != nil || claims != nil {
		t.Errorf("without the file: %v, %v", claims, err)
	}
	data := `{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[
		{"ClaimUID":"shared","ClaimName":"s","Namespace":"ml","PodUIDs":{"b":{},"a":{}},"DriverState":{"gpu.berth.dev":{"Devices":[{"PoolName":"n","DeviceName":"gpu-1"}]}}},
		{"ClaimUID":"unprepared","ClaimName":"u","Namespace":"ml","PodUIDs":{"c":{}},"DriverState":{"gpu.berth.dev":{}}},
		{"ClaimUID":"other","ClaimName":"o","Namespace":"ml","PodUIDs":{"d":{}},"DriverState":{"nic.example.com":{"Devices":[{"PoolName":"n","DeviceName":"nic"}]}}}]}`
	text, err := json.Marshal(map[string]any{"Data": data, "Checksum": crc32.ChecksumIEEE([]byte(data))})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, prepared.FileName)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	claims, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ledger.ClaimPods{
		{UID: "other", Pods: []gpu.Pod{{UID: "d"}}}, {UID: "shared", Pods: []gpu.Pod{{UID: "a"}, {UID: "b"}}}, {UID: "unprepared", Pods: []gpu.Pod{{UID: "c"}}},
	}, claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if err := os.Truncate(path, int64(len(text)/2)); err != nil {
		t.Fatal(err)
	}
	if claims, err := read(); err == nil {
		t.Errorf("a damaged file: %v", claims)
	}
}
