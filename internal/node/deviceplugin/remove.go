package deviceplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Remove removes every socket of Berth's below the kubelet's directory, for an uninstall.
// An agent that still runs makes its own again. Nothing of others is touched, and an
// absent directory is no error.
func Remove(kubeletDir string) error {
	dir := pluginDir(kubeletDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove device plugin sockets: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if isOurs(entry) {
			errs = append(errs, removeSocket(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// isOurs tells Berth's sockets, also those that do not listen yet, from anything else.
func isOurs(entry fs.DirEntry) bool {
	_, ours := parseSocketName(strings.TrimPrefix(entry.Name(), bindPrefix))
	return ours && entry.Type() == fs.ModeSocket
}

// removeAbandoned removes the sockets of dead agents: those that refuse connections, and
// those that were bound but have not been listening for longer than age. Living ones stay.
func removeAbandoned(dir string, now time.Time, age time.Duration, log *slog.Logger) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if !isOurs(entry) || !isAbandoned(path, entry, now, age) {
			continue
		}
		if err := removeSocket(path); err != nil {
			log.Warn("cannot remove a dead agent's socket", "error", err)
		}
	}
}

func isAbandoned(path string, entry fs.DirEntry, now time.Time, age time.Duration) bool {
	if strings.HasPrefix(entry.Name(), bindPrefix) {
		info, err := entry.Info()
		return err == nil && now.Sub(info.ModTime()) > age
	}
	conn, err := net.DialTimeout("unix", path, dialLimit)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
