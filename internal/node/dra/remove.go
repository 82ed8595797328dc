package dra

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Remove removes all sockets of a driver below the kubelet's directory, and the driver's folder when it is empty then, for an
// uninstall. An agent that still runs makes its own again. It is no error when there are none.
func Remove(kubeletDir, driver string) error {
	plugin := pluginDir(kubeletDir, driver)
	var errs []error
	for _, pattern := range socketPatterns(registryDir(kubeletDir), plugin, driver) {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("remove the sockets of the DRA driver: %w", err)
		}
		for _, path := range paths {
			if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove the sockets of the DRA driver: %w", err))
			}
		}
	}
	_ = os.Remove(plugin) // In a container it is a mount point, and stays.
	return errors.Join(errs...)
}

// registryDir returns the kubelet's folder for registration sockets.
func registryDir(kubeletDir string) string { return filepath.Join(kubeletDir, "plugins_registry") }

// pluginDir returns the folder of a driver's own sockets.
func pluginDir(kubeletDir, driver string) string { return filepath.Join(kubeletDir, "plugins", driver) }

// socketPatterns match the sockets of all instances of a driver.
func socketPatterns(registry, plugin, driver string) []string {
	return []string{filepath.Join(registry, driver+"-*reg.sock"), filepath.Join(plugin, "dra*.sock")}
}
