package dra

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// staleAfter is how old a socket has to be that is removed because no process serves it: a new one may not listen yet.
const staleAfter = time.Second

// randomInstance returns 10 random characters (50 bits). With them, the paths of the sockets are short enough (107 bytes) below the
// kubelet's directory of each distribution; with the UID of a pod they are not on MicroK8s.
func randomInstance() string { return strings.ToLower(rand.Text()[:10]) }

// listen makes a socket that only root can connect to. Its end removes the file.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect the socket: %w", err), listener.Close())
	}
	return listener, nil
}

// removeStale removes the sockets that match the pattern and that no process serves, and returns their paths.
func removeStale(pattern string, now time.Time) ([]string, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != fs.ModeSocket || now.Sub(info.ModTime()) < staleAfter {
			continue
		}
		connection, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = connection.Close()
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, nil
}
