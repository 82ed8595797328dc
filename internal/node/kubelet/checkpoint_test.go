package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/node/kubelet/checkpoint"
)

// writeKubelet creates a kubelet directory with a checkpoint.
func writeKubelet(t testing.TB, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, CheckpointFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if content != nil {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	blob, err := os.ReadFile(filepath.Join("testdata", "checkpoints", name))
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

type plain struct {
	PodUID        string
	Container     string
	Resource      string
	DeviceIDs     []string
	ByNUMA        map[int64][]string
	Envs          map[string]string
	CDI           []string
	ResponseError string
}

func plainly(checkpoint *Checkpoint) []plain {
	var all []plain
	for _, a := range checkpoint.Assignments {
		p := plain{a.PodUID, a.Container, a.Resource, a.DeviceIDs, a.ByNUMA, a.Response.GetEnvs(), nil, a.ResponseError}
		for _, device := range a.Response.GetCdiDevices() {
			p.CDI = append(p.CDI, device.GetName())
		}
		all = append(all, p)
	}
	return all
}

// TestReadCheckpoint reads files of which two-pods.json and empty.json were
// written by the code of kubelet 1.37.1, old.json has the format of 1.19, and
// seed.json is an example as jq prints it, without a checksum.
func TestReadCheckpoint(t *testing.T) {
	const uuid = "GPU-11ba558d-3437-2335-2fd8-a78c8502f87f"
	tests := map[string]struct {
		file       string
		verified   bool
		old        bool
		want       []plain
		registered map[string][]string
	}{
		"kubelet 1.37, nothing given": {file: "empty.json", verified: true, registered: map[string][]string{}},
		"kubelet 1.37, two pods": {
			file: "two-pods.json", verified: true,
			want: []plain{
				{PodUID: "60921126-5b78-4e9b-867f-371ba9a65349", Container: "init", Resource: "nvidia.com/gpu",
					DeviceIDs: []string{"GPU-c"}, ByNUMA: map[int64][]string{-1: {"GPU-c"}}},
				{
					PodUID: "f2b9f4e5-ba3b-418e-ab8c-c1751a0619d8", Container: "cuda", Resource: "nvidia.com/gpu",
					DeviceIDs: []string{"GPU-a", "GPU-b"}, ByNUMA: map[int64][]string{0: {"GPU-a", "GPU-b"}, 1: {"GPU-b"}},
					Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": uuid}, CDI: []string{"k8s.berth.dev/gpu=" + uuid},
				},
			},
			registered: map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b", "GPU-c"}, "example.com/x": nil},
		},
		"kubelet 1.19": {
			file: "old.json", verified: true, old: true,
			want: []plain{{
				PodUID: "f2b9f4e5-ba3b-418e-ab8c-c1751a0619d8", Container: "cuda", Resource: "nvidia.com/gpu",
				DeviceIDs: []string{"GPU-a", "GPU-b"}, ByNUMA: map[int64][]string{-1: {"GPU-a", "GPU-b"}},
			}},
			registered: map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b"}},
		},
		"printed by jq": {
			file: "seed.json",
			want: []plain{{
				PodUID: "f2b9f4e5-ba3b-418e-ab8c-c1751a0619d8", Container: "cuda", Resource: "nvidia.com/gpu",
				DeviceIDs: []string{uuid}, ByNUMA: map[int64][]string{-1: {uuid}}, Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": uuid},
			}},
			registered: map[string][]string{"nvidia.com/gpu": {uuid}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadCheckpoint(writeKubelet(t, fixture(t, test.file)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, plainly(got), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("assignments (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.registered, got.Registered, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("registered (-want +got):\n%s", diff)
			}
			if got.Verified != test.verified || got.Old != test.old {
				t.Errorf("verified %v, old %v; want %v, %v", got.Verified, got.Old, test.verified, test.old)
			}
		})
	}
}

func TestReadBadCheckpoint(t *testing.T) {
	good := string(fixture(t, "two-pods.json"))
	tests := map[string]struct {
		content string
		offset  int64
		why     string
	}{
		"empty":             {content: "", offset: 0, why: "empty"},
		"CORRUPTED":         {content: "CORRUPTED\n", offset: 1, why: "invalid character 'C'"},
		"zeros":             {content: strings.Repeat("\x00", 512), offset: 1, why: `invalid character '\x00'`},
		"cut off":           {content: good[:len(good)-40], offset: int64(len(good) - 40), why: "ends in the middle"},
		"cut off in a text": {content: good[:100], offset: 100, why: "ends in the middle"},
		"more than one":     {content: good + good, offset: int64(len(good) + 1), why: "invalid character '{' after top-level value"},
		"other JSON":        {content: `{"some":"thing"}`, offset: -1, why: `has no "Data"`},
		"null":              {content: `null`, offset: -1, why: `has no "Data"`},
		"a list":            {content: `[]`, offset: 1, why: "cannot be a JSON array"},
		"wrong type": {content: `{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}`, offset: 40,
			why: "Data.PodDeviceEntries.PodUID cannot be a JSON number"},
		"a device changed": {content: strings.Replace(good, "GPU-c", "GPU-d", 1), offset: -1,
			why: "its checksum is 709635290, its content has"},
		"devices as text": {content: `{"Data":{"PodDeviceEntries":[{"DeviceIDs":"x"}]}}`, offset: 45,
			why: "Data.PodDeviceEntries.DeviceIDs cannot be a JSON string"},
		"too large": {content: "large", offset: -1, why: "the limit is 67108864"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := writeKubelet(t, []byte(test.content))
			if test.content == "large" {
				if err := os.Truncate(filepath.Join(dir, CheckpointFile), MaxCheckpoint+1); err != nil {
					t.Fatal(err)
				}
			}
			_, err := ReadCheckpoint(dir)
			var corrupt *corruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("got %v, want a *CorruptError", err)
			}
			if corrupt.Offset != test.offset || !strings.Contains(corrupt.Why, test.why) {
				t.Errorf("got %q at %d, want %q at %d", corrupt.Why, corrupt.Offset, test.why, test.offset)
			}
			if !strings.Contains(err.Error(), CheckpointFile) {
				t.Errorf("%q does not name the file", err)
			}
		})
	}
}

func TestReadNoCheckpoint(t *testing.T) {
	if _, err := ReadCheckpoint(t.TempDir()); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("without a folder: %v", err)
	}
	if _, err := ReadCheckpoint(writeKubelet(t, nil)); !errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("without a file: %v", err)
	}
	// Neither a folder nor a link out of the directory is a checkpoint.
	dir := writeKubelet(t, nil)
	if err := os.Mkdir(filepath.Join(dir, CheckpointFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCheckpoint(dir); err == nil || errors.Is(err, ErrNoCheckpoint) {
		t.Errorf("a folder: %v", err)
	}
	dir = writeKubelet(t, nil)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, CheckpointFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCheckpoint(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link: %v", err)
	}
}

// TestBadResponse checks that an invalid AllocResp invalidates the response only.
func TestBadResponse(t *testing.T) {
	blob, err := checkpoint.Encode([]checkpoint.PodDevicesEntry{{
		PodUID: "p", ContainerName: "c", ResourceName: "r",
		DeviceIDs: checkpoint.DevicesPerNUMA{0: {"a"}}, AllocResp: []byte{0xff, 0xff},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseCheckpoint(blob)
	if err != nil {
		t.Fatal(err)
	}
	a := got.Assignments[0]
	if !got.Verified || a.Response != nil || a.ResponseError != "AllocResp of 2 bytes is not a ContainerAllocateResponse" || a.DeviceIDs[0] != "a" {
		t.Errorf("got %+v", a)
	}
}

// FuzzParseCheckpoint: any content results in a checkpoint or a *corruptError whose offset is within the content.
func FuzzParseCheckpoint(f *testing.F) {
	for _, name := range []string{"empty.json", "two-pods.json", "old.json", "seed.json"} {
		blob := fixture(f, name)
		f.Add(blob)
		f.Add(blob[:len(blob)/2])
	}
	f.Add([]byte("CORRUPTED"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		got, err := parseCheckpoint(blob)
		if err == nil {
			for _, a := range got.Assignments {
				if (a.Response == nil) != (a.ResponseError != "") {
					t.Fatalf("response %v, error %q", a.Response, a.ResponseError)
				}
			}
			return
		}
		var corrupt *corruptError
		if !errors.As(err, &corrupt) || corrupt.Why == "" || corrupt.Offset < -1 || corrupt.Offset > int64(len(blob))+1 {
			t.Fatalf("got %#v for %q", err, blob)
		}
	})
}

// BenchmarkParseCheckpoint is a node of 8 GPUs with a pod on each, as the agent
// reads it after each Allocate.
func BenchmarkParseCheckpoint(b *testing.B) {
	response, err := proto.Marshal(&v1beta1.ContainerAllocateResponse{
		Envs:       map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-11ba558d-3437-2335-2fd8-a78c8502f87f"},
		CdiDevices: []*v1beta1.CDIDevice{{Name: "k8s.berth.dev/gpu=GPU-11ba558d-3437-2335-2fd8-a78c8502f87f"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var entries []checkpoint.PodDevicesEntry
	for i := range 8 {
		entries = append(entries, checkpoint.PodDevicesEntry{
			PodUID: "60921126-5b78-4e9b-867f-371ba9a6534" + string(rune('0'+i)), ContainerName: "cuda", ResourceName: "nvidia.com/gpu",
			DeviceIDs: checkpoint.DevicesPerNUMA{0: {"GPU-11ba558d-3437-2335-2fd8-a78c8502f87f"}}, AllocResp: response,
		})
	}
	blob, err := checkpoint.Encode(entries, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseCheckpoint(blob); err != nil {
			b.Fatal(err)
		}
	}
}
