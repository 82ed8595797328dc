package openers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	namedPod   = "11111111-2222-3333-4444-555555555555"
	unknownPod = "99999999-2222-3333-4444-555555555555"
)

// procRoot has the process of a container for each PID.
func procRoot(t *testing.T, pods map[int]string) string {
	root := t.TempDir()
	for pid, uid := range pods {
		dir := filepath.Join(root, strconv.Itoa(pid))
		stat := strconv.Itoa(pid) + " (x) S" + strings.Repeat(" 1", 49) + "\n"
		if err := errors.Join(
			os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod"+uid+"/"+strings.Repeat("a", 64)+"\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFind(t *testing.T) {
	refused := errors.New("the driver does not answer")
	tests := map[string]struct {
		id        gpu.UUID
		processes []gpu.Process
		err       error
		want      []Opener
		wantErr   string
	}{
		"nobody":      {id: "GPU-a"},
		"no such GPU": {id: "GPU-b", wantErr: "the last scan did not find the GPU"},
		"no answer":   {id: "GPU-a", err: refused, wantErr: refused.Error()},
		"Berth's daemon and its server": {id: "GPU-a", processes: []gpu.Process{
			{PID: 10, Parent: 1, Program: "nvidia-cuda-mps"}, {PID: 11, Parent: 10,
				Program: "nvidia-cuda-mps"}, {PID: 12, Program: "python"},
		}, want: []Opener{{PID: 12, Program: "python", Stop: "end process 12"}}},
		"of the host": {id: "GPU-a", processes: []gpu.Process{
			{PID: 2, Program: "nv-hostengine"}, {PID: 3, Program: "nvidia-persiste"}, {PID: 4, Program: "Xorg"}, {PID: 5},
		}, want: []Opener{
			{PID: 2, Program: "nv-hostengine", Stop: "stop DCGM (systemctl stop nvidia-dcgm)"},
			{PID: 3, Program: "nvidia-persiste", Stop: "stop the persistence daemon (systemctl stop nvidia-persistenced)"},
			{PID: 4, Program: "Xorg", Stop: "stop the display (systemctl isolate multi-user.target)"},
			{PID: 5, Stop: "end process 5"},
		}},
		"of pods": {id: "GPU-a", processes: []gpu.Process{{PID: 20, Program: "python"}, {PID: 21, Program: "dcgm-exporter"},
			{PID: 22, Program: "python"}}, want: []Opener{
			{PID: 20, Program: "python", Pod: "ml/train", Stop: "delete pod ml/train"},
			{PID: 21, Program: "dcgm-exporter", Pod: "ml/train",
				Stop: "remove DCGM from the node (label nvidia.com/gpu.deploy.dcgm-exporter=false and nvidia.com/gpu.deploy.dcgm=false, or delete pod ml/train)"},
			{PID: 22, Program: "python", Pod: "with UID " + unknownPod, Stop: "delete pod with UID " + unknownPod},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			finder := New(Deps{
				Current:   func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{UUID: "GPU-a"}}} },
				Processes: func(context.Context, *gpu.GPU) ([]gpu.Process, error) { return tc.processes, tc.err },
				Daemon:    func(gpu.UUID) int { return 10 },
				PodName:   func(uid string) string { return map[string]string{namedPod: "ml/train"}[uid] },
				ProcRoot:  procRoot(t, map[int]string{20: namedPod, 21: namedPod, 22: unknownPod}),
			})
			got, err := finder.Find(t.Context(), tc.id)
			if tc.wantErr == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("openers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestIsDaemon checks that the control daemon of the GPU and its child processes are Berth's own, and no other process
// is.
func TestIsDaemon(t *testing.T) {
	all := []gpu.Process{{PID: 10, Parent: 1}, {PID: 11, Parent: 10}, {PID: 12, Parent: 11}, {PID: 20, Parent: 1}, {PID: 21, Parent: 21}}
	for _, p := range all {
		if got, want := isDaemon(10, all, p), p.PID < 20; got != want {
			t.Errorf("process %d: %v, want %v", p.PID, got, want)
		}
		if isDaemon(0, all, p) {
			t.Errorf("process %d belongs to a daemon, and there is none", p.PID)
		}
	}
	if !isDaemon(10, all[1:], all[1]) {
		t.Error("a server whose daemon does not have the GPU open is not recognised")
	}
}
