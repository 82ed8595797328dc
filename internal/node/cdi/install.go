package cdi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/google/renameio/v2"
)

const hookPrefix = "berth-cdi-hook-"

// hookFile matches the files of InstallHook; ".name" and a number is an interrupted copy.
var hookFile = regexp.MustCompile(`^(` + hookPrefix + `[0-9a-f]{12}|\.` + hookPrefix + `[0-9a-f]{12}[0-9]+)$`)

// InstallHook copies the hook program into destDir, which it creates, and returns the path of the copy. The name contains a hash of
// its content: running hooks are not disturbed, specs of an older agent keep their hook, and the same program is copied
// once. A damaged copy is replaced. Nothing is written where the copy is there, so that the file system may be full or read-only.
func InstallHook(srcBinary, destDir string) (path string, err error) {
	path, sum, err := hookPath(srcBinary, destDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("install CDI hook: %w (it belongs beside berth-agent; make build makes both)", err)
	case err != nil:
		return "", fmt.Errorf("install CDI hook: %w", err)
	}
	if have, err := hashFile(path); err == nil && have == sum {
		if err := makeExecutable(path); err != nil {
			return "", fmt.Errorf("install CDI hook: %w", err)
		}
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("install CDI hook: %w", err)
	}
	if err := copyFile(srcBinary, path); err != nil {
		return "", fmt.Errorf("install CDI hook: %w", err)
	}
	if have, err := hashFile(path); err != nil || have != sum {
		return "", fmt.Errorf("install CDI hook: the copy %s is not the same as %s (%v); is the disk full or faulty?", path, srcBinary, err)
	}
	return path, nil
}

// makeExecutable lets every user run a program, unless they may.
func makeExecutable(path string) error {
	const everyone = 0o555
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&everyone == everyone {
		return err
	}
	return os.Chmod(path, 0o755)
}

// KeepHook installs a hook program again if the copy that InstallHook has returned was removed, cut off or made not executable. It reads no
// content, so it may be called often.
func KeepHook(srcBinary, installed string) error {
	source, err := os.Stat(srcBinary)
	if err != nil {
		return fmt.Errorf("install CDI hook: %w", err)
	}
	if now, err := os.Lstat(installed); err == nil && now.Mode().IsRegular() && now.Size() == source.Size() {
		return makeExecutable(installed)
	}
	path, err := InstallHook(srcBinary, filepath.Dir(installed))
	if err == nil && path != installed {
		return fmt.Errorf("install CDI hook: %s has changed, and is %s now; restart the agent's pod", srcBinary, path)
	}
	return err
}

// InstalledHook returns the path of the copy that InstallHook created of this program; fs.ErrNotExist when there is
// none.
func InstalledHook(srcBinary, destDir string) (string, error) {
	path, _, err := hookPath(srcBinary, destDir)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("find CDI hook: %w", err)
	}
	return path, nil
}

func hookPath(srcBinary, destDir string) (path string, sum [sha256.Size]byte, err error) {
	if sum, err = hashFile(srcBinary); err != nil {
		return "", sum, err
	}
	if destDir, err = filepath.Abs(destDir); err != nil {
		return "", sum, err
	}
	return filepath.Join(destDir, hookPrefix+hex.EncodeToString(sum[:6])), sum, nil
}

// RemoveHooks removes every version that InstallHook copied into a folder, and nothing else, and then the folder if it is empty.
func RemoveHooks(destDir string) error {
	entries, err := os.ReadDir(destDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove CDI hooks: %w", err)
	}
	var failed []error
	left := len(entries)
	for _, entry := range entries {
		if !hookFile.MatchString(entry.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(destDir, entry.Name())); err != nil {
			failed = append(failed, fmt.Errorf("remove CDI hooks: %w", err))
		}
		left--
	}
	if left == 0 && len(failed) == 0 && len(entries) > 0 {
		_ = os.Remove(destDir) // the folder may have files of other programs
	}
	return errors.Join(failed...)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := renameio.NewPendingFile(to, renameio.WithTempDir(filepath.Dir(to)), renameio.WithStaticPermissions(0o755))
	if err != nil {
		return err
	}
	defer func() { _ = target.Cleanup() }()
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	return target.CloseAtomicallyReplace()
}

func hashFile(name string) (sum [sha256.Size]byte, err error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // A pipe must not hold the agent up.
	if err != nil {
		return sum, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return sum, fmt.Errorf("%s is not a regular file", name)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return sum, err
	}
	hash.Sum(sum[:0])
	return sum, nil
}
