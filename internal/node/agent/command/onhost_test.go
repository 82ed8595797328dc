package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

func parseHostOptions(t *testing.T, args ...string) *hostOptions {
	t.Helper()
	o, flags := &hostOptions{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Bind(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func agentConfig(root string) *v1alpha1.AgentConfig {
	return &v1alpha1.AgentConfig{HostRoot: root, KubeletDir: "/var/lib/kubelet", CDIDir: "/var/run/cdi", HookDir: "/opt/berth/bin", StateDir: "/run/berth",
		PersistentDir: "/var/lib/berth", MPSRoot: "/run/berth/mps", DRADriverName: "gpu.berth.dev", Labels: v1alpha1.Labels{Dir: "/etc/features.d"}}
}

// TestHostOptionsApply checks that a directory is found below the mount through the links of the host, and that nothing changes without the
// flag.
func TestHostOptionsApply(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"var", "run/cdi"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	got := parseHostOptions(t, "--on-host", "--dra-driver", "gpu.example.com").Apply(agentConfig(root))
	if got.CDIDir != root+"/run/cdi" || got.HookDir != root+"/opt/berth/bin" || got.KubeletDir != root+"/var/lib/kubelet" || got.Labels.Dir != root+"/etc/features.d" || got.DRADriverName != "gpu.example.com" {
		t.Errorf("the configuration is %+v", got)
	}
	if got := parseHostOptions(t).Apply(agentConfig(root)); got.CDIDir != "/var/run/cdi" || got.DRADriverName != "gpu.berth.dev" {
		t.Errorf("without the flag it is %+v", got)
	}
}

// TestFoldersOnHost checks which folders are removed: those of Berth that are empty, with what MPS daemons left, and no other.
func TestFoldersOnHost(t *testing.T) {
	tests := map[string]struct {
		hookDir string
		mpsRoot string
		dirs    []string
		files   []string
		want    []string
	}{
		"the usual folders": {
			dirs: []string{"opt/berth/bin", "run/berth/mps/GPU-a/log", "var/lib/berth"}, files: []string{"run/berth/mps/state.json"},
			want: []string{"opt", "run", "var", "var/lib"},
		},
		"files of others": {
			dirs: []string{"opt/berth/bin", "run/berth", "var/lib/berth"}, files: []string{"opt/berth/other", "var/lib/berth/other"},
			want: []string{"opt", "opt/berth", "opt/berth/other", "run", "var", "var/lib", "var/lib/berth", "var/lib/berth/other"},
		},
		"hooks in a folder of the persistent state": {
			hookDir: "/var/lib/berth/bin", dirs: []string{"var/lib/berth/bin"}, want: []string{"var", "var/lib"},
		},
		"hooks in a folder of the administrator": {
			hookDir: "/usr/local/bin", dirs: []string{"usr/local/bin"}, want: []string{"usr", "usr/local", "usr/local/bin"},
		},
		"MPS daemons in a folder of the administrator": {
			mpsRoot: "/run/nvidia/mps", dirs: []string{"run/nvidia/mps"}, files: []string{"run/nvidia/mps/state"}, want: []string{"run", "run/nvidia", "run/nvidia/mps", "run/nvidia/mps/state"},
		},
		"MPS daemons in the root":  {mpsRoot: "/", dirs: []string{"a"}, want: []string{"a"}},
		"no folder of MPS daemons": {mpsRoot: "none", dirs: []string{"run/berth"}, files: []string{"run/berth/other"}, want: []string{"run", "run/berth", "run/berth/other"}},
		"nothing":                  {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range tc.dirs {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range tc.files {
				if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config := agentConfig(root)
			if tc.hookDir != "" {
				config.HookDir = tc.hookDir
			}
			if tc.mpsRoot != "" {
				config.MPSRoot = strings.TrimPrefix(tc.mpsRoot, "none")
			}
			o := parseHostOptions(t, "--on-host")
			for range 2 {
				if err := o.Finish(t.Context(), o.Apply(config), &bytes.Buffer{}); err != nil {
					t.Fatal(err)
				}
			}
			var left []string
			err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
				if path != root {
					left = append(left, path[len(root)+1:])
				}
				return err
			})
			if err != nil || !slices.Equal(left, tc.want) {
				t.Errorf("left %v, %v; want %v", left, err, tc.want)
			}
		})
	}
}

// TestHold checks that a probe succeeds while the command holds, and neither before nor after it.
func TestHold(t *testing.T) {
	if err := probeRemoval(t.Context()); err == nil {
		t.Fatal("the probe succeeds before the command")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- parseHostOptions(t, "--hold").Finish(ctx, agentConfig("/"), &bytes.Buffer{}) }()
	for deadline := time.Now().Add(10 * time.Second); probeRemoval(t.Context()) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the probe does not succeed")
		}
	}
	if err := probeRemoval(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := probeRemoval(t.Context()); err == nil {
		t.Error("the probe succeeds after the command")
	}
}

// TestMounted checks that nothing is removed through a mount below the folder of MPS daemons.
func TestMounted(t *testing.T) {
	root := t.TempDir()
	shm := filepath.Join(root, "run/berth/mps/GPU-a/shm")
	if err := os.MkdirAll(shm, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("onhost-test", shm, "tmpfs", 0, ""); err != nil {
		t.Skipf("this process may not mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shm, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(shm, "of-a-client")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := parseHostOptions(t, "--on-host")
	if err := o.Finish(t.Context(), o.Apply(agentConfig(root)), &out); err != nil || !strings.Contains(out.String(), "until the next boot, since "+shm+" is mounted") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestPluginRoot: on the host the folder of device plugins does not follow the kubelet's root directory.
func TestPluginRoot(t *testing.T) {
	config := &v1alpha1.AgentConfig{HostRoot: t.TempDir(), KubeletDir: "/var/lib/k0s/kubelet"}
	for onHost, want := range map[bool]string{true: config.HostRoot + "/var/lib/kubelet", false: "/var/lib/k0s/kubelet"} {
		if got := (&hostOptions{onHost: onHost}).PluginRoot(config); got != want {
			t.Errorf("on the host %t: %s, want %s", onHost, got, want)
		}
	}
}
