package cdi

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// TestKeepHook: the installed program is used although nothing can be written, and one that was lost is installed again.
func TestKeepHook(t *testing.T) {
	dir := t.TempDir()
	source, dest := filepath.Join(dir, "source"), filepath.Join(dir, "hooks")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(source, []byte("#!/bin/sh\n"), 0o755))
	installed, err := InstallHook(source, dest)
	check(err)
	// A file that cannot be changed, even by root, in a folder in which none can be made: as on a file system that is read-only or full.
	flags := func(path string, set bool) bool {
		file, err := os.Open(path)
		check(err)
		defer file.Close()
		now, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
		if err == nil {
			const immutable = 0x10
			if now &^= immutable; set {
				now |= immutable
			}
			err = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(now))
		}
		return err == nil
	}
	if flags(installed, true) && flags(dest, true) {
		again, err := InstallHook(source, dest)
		if err != nil || again != installed {
			t.Errorf("installed %s, %v", again, err)
		}
		if err := KeepHook(source, installed); err != nil {
			t.Error(err)
		}
		check(os.WriteFile(source, []byte("#!/bin/bash\n"), 0o755))
		if _, err := InstallHook(source, dest); err == nil {
			t.Error("another program was installed where nothing can be written")
		}
		check(os.WriteFile(source, []byte("#!/bin/sh\n"), 0o755))
	} else {
		t.Log("the file system has no immutable files")
	}
	flags(dest, false)
	flags(installed, false)

	for name, spoil := range map[string]func() error{
		"nothing":                   func() error { return nil },
		"it was removed":            func() error { return os.Remove(installed) },
		"its folder was removed":    func() error { return os.RemoveAll(dest) },
		"it was cut off":            func() error { return os.Truncate(installed, 1) },
		"it cannot be executed":     func() error { return os.Chmod(installed, 0o600) },
		"it was replaced by a pipe": func() error { return errors.Join(os.Remove(installed), unix.Mkfifo(installed, 0o755)) },
	} {
		check(spoil())
		if err := KeepHook(source, installed); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		content, err := os.ReadFile(installed)
		if info, stat := os.Stat(installed); string(content) != "#!/bin/sh\n" || err != nil || stat != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q, %v, %v", name, content, err, info)
		}
	}
}
