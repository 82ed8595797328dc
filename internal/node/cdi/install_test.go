package cdi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstallHook(t *testing.T) {
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	source, dest := filepath.Join(dir, "source"), filepath.Join(dir, "a", "b")
	// A program that runs until its input ends.
	program, err := exec.LookPath("cat")
	check(err)
	content, err := os.ReadFile(program)
	check(err)
	check(os.WriteFile(source, content, 0o600))

	first, err := InstallHook(source, dest)
	check(err)
	info, err := os.Stat(first)
	check(err)
	if info.Mode().Perm() != 0o755 || !hookFile.MatchString(filepath.Base(first)) || filepath.Dir(first) != dest {
		t.Errorf("installed %s with mode %v", first, info.Mode())
	}
	running := exec.CommandContext(t.Context(), first)
	input, err := running.StdinPipe()
	check(err)
	check(running.Start())

	again, err := InstallHook(source, dest)
	check(err)
	if now, _ := os.Stat(again); again != first || !os.SameFile(info, now) {
		t.Errorf("the same binary was copied again, to %s", again)
	}

	check(os.WriteFile(source, append(content, '\n'), 0o600))
	second, err := InstallHook(source, dest)
	check(err)
	if second == first {
		t.Error("another binary has the same name")
	}
	if _, err := os.Stat(first); err != nil {
		t.Errorf("the older hook was removed, although specs name it: %v", err)
	}

	// A damaged copy is replaced without changing the file that may be running.
	check(os.Remove(second))
	check(os.WriteFile(second, content[:100], 0o644))
	third, err := InstallHook(source, dest)
	check(err)
	healed, err := os.ReadFile(third)
	check(err)
	if info, _ := os.Stat(third); third != second || len(healed) != len(content)+1 || info.Mode().Perm() != 0o755 {
		t.Errorf("the damaged copy was not replaced: %s, %d bytes", third, len(healed))
	}

	check(RemoveHooks(dest))
	if _, err := os.Stat(dest); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	check(input.Close())
	if err := running.Wait(); err != nil {
		t.Errorf("the running hook was disturbed: %v", err)
	}

	for name, source := range map[string]string{"missing": filepath.Join(dir, "nothing"), "a folder": dir} {
		if _, err := InstallHook(source, dest); err == nil || !strings.HasPrefix(err.Error(), "install CDI hook: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
