package mps

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExecRooted checks that a program below another root runs with that root as its own, and sees the pipe directory
// at the same path as here.
func TestExecRooted(t *testing.T) {
	if os.Getenv("BERTH_TEST_ROOTED") != "" {
		t.Fatal(ExecRooted([]string{os.Getenv("BERTH_TEST_ROOTED"), "nvidia-cuda-mps-control", "-test.run=^TestRootedProgram$"}))
	}
	if os.Getuid() != 0 {
		t.Skip("skipped: only root may make another root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The other root has this binary as the program, and the libraries that it needs.
	root, pipe := t.TempDir(), t.TempDir()
	for _, dir := range []string{"usr/bin", pipe[1:], "dev/shm"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	libraries, err := exec.Command("ldd", self).Output()
	if err != nil {
		t.Skipf("skipped: the libraries of this test are not known: %v", err)
	}
	for word := range strings.FieldsSeq(string(libraries)) {
		if !filepath.IsAbs(word) {
			continue
		}
		content, err := os.ReadFile(word)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(word)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, word), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(pipe, "here"), []byte("yes"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, "-test.run=^TestExecRooted$")
	command.Env = []string{"BERTH_TEST_ROOTED=" + root, "BERTH_TEST_INSIDE=1", "CUDA_MPS_PIPE_DIRECTORY=" + pipe}
	if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "root of its own: yes") {
		t.Errorf("the program returned %v\n%s", err, out)
	}
}

// TestRootedProgram is the program that TestExecRooted starts.
func TestRootedProgram(t *testing.T) {
	if os.Getenv("BERTH_TEST_INSIDE") == "" {
		t.Skip("skipped: TestExecRooted runs this")
	}
	if _, err := os.Stat("/usr/bin/nvidia-cuda-mps-control"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "here"))
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("root of its own: " + string(content) + "\n")
}

func TestExecRootedRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"/"}, {"relative", "program"}, {"/", "../program"}} {
		if err := ExecRooted(args); err == nil || !strings.Contains(err.Error(), "want ROOT PROGRAM") {
			t.Errorf("ExecRooted(%q) = %v", args, err)
		}
	}
	if err := ExecRooted([]string{t.TempDir(), "nvidia-cuda-mps-control"}); err == nil || !strings.Contains(err.Error(),
		"is the driver installed there?") {
		t.Errorf("without the program: %v", err)
	}
}
