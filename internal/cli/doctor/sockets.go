package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

const (
	checkKubelet = "kubelet"
	checkCgroup  = "cgroup"
)

// kubelet checks the kubelet's directory and its two sockets.
func (c *checker) kubelet(ctx context.Context) {
	c.kubeletDirOfAgent()
	dir := c.deps.PluginDir
	_, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.problem(checkKubelet, "KUBELET_DIR_MISSING", "%s does not exist", dir)
		return
	case err != nil:
		c.unknown(checkKubelet, "%s: %s", dir, reason(err))
		return
	}
	for _, socket := range []string{filepath.Join(dir, "kubelet.sock"), filepath.Join(c.deps.KubeletDir, "pod-resources", "kubelet.sock")} {
		err := dial(ctx, socket)
		switch {
		case err == nil:
			c.ok(checkKubelet, "%s answers", socket)
		case errors.Is(err, fs.ErrPermission):
			c.unknown(checkKubelet, "%s: %v", socket, err)
		default:
			c.problem(checkKubelet, "KUBELET_SOCKET_DOWN", "%s: %v", socket, err)
		}
	}
}

// kubeletDirOfAgent compares the agent's setting with the root directory of the running kubelet.
func (c *checker) kubeletDirOfAgent() {
	config := c.agentSays.Config.Config
	if config == nil || config.KubeletDir == "" || !c.deps.KubeletRuns {
		return
	}
	full, err := hostconfig.Beneath(c.deps.HostRoot, config.KubeletDir)
	if err != nil {
		return
	}
	set, failure := os.Stat(full)
	used, err := os.Stat(c.deps.KubeletDir)
	if err == nil && (failure != nil || !os.SameFile(set, used)) {
		c.problem(checkKubelet, "KUBELET_DIR_DIFFERS", "the agent is set to %s; the running kubelet's root directory is %s", config.KubeletDir, c.deps.KubeletDir)
	}
}

// dial opens and closes a connection; the error does not contain the address.
func dial(ctx context.Context, socket string) error {
	dialer := net.Dialer{Timeout: patience}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		if call, ok := errors.AsType[*os.SyscallError](err); ok {
			return call.Err
		}
		return err
	}
	return conn.Close()
}

// cgroup checks the cgroup version.
func (c *checker) cgroup() {
	path := filepath.Join(c.deps.Cgroup, "cgroup.controllers")
	_, err := os.Stat(path)
	if err == nil {
		c.ok(checkCgroup, "version 2 (%s)", path)
		return
	}
	if _, err := os.Stat(c.deps.Cgroup); err != nil {
		c.unknown(checkCgroup, "%s: %s", c.deps.Cgroup, reason(err))
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		c.problem(checkCgroup, "CGROUP_V1", "%s does not exist", path)
		return
	}
	c.unknown(checkCgroup, "%s: %s", path, reason(err))
}
