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

// Remove removes all sockets of Berth below the kubelet's directory, for an uninstall. An agent that still runs makes its own again.
// Other files are kept, and an absent directory is no error.
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

// isOurs reports whether an entry is a socket of Berth, including one that does not listen yet.
func isOurs(entry fs.DirEntry) bool {
	_, ours := parseSocketName(strings.TrimPrefix(entry.Name(), bindPrefix))
	return ours && entry.Type() == fs.ModeSocket
}

// removeAbandoned removes the sockets of agents that have ended: those that refuse connections, and those that were bound longer than
// age ago and do not listen.
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
			log.Warn("Could not remove the socket of an agent that ended", "error", err)
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
