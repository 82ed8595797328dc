package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	checkKubelet = "kubelet"
	checkCgroup  = "cgroup"
)

// containerdVersion reads the version from a containerd (containerd.services.version.v1).
func containerdVersion(ctx context.Context, socket string) (string, error) {
	if _, err := os.Stat(socket); err != nil {
		return "", fmt.Errorf("%s: %s", socket, reason(err))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("%s: %w", socket, err)
	}
	defer conn.Close()
	answer := &emptypb.Empty{}
	if err := conn.Invoke(ctx, "/containerd.services.version.v1.Version/Version", &emptypb.Empty{}, answer); err != nil {
		return "", fmt.Errorf("%s: %w", socket, err)
	}
	// The first field of the answer is the version; a message type without fields keeps it as an unknown field.
	rest := []byte(answer.ProtoReflect().GetUnknown())
	for len(rest) > 0 {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			break
		}
		rest = rest[n:]
		if field == 1 && kind == protowire.BytesType {
			if version, n := protowire.ConsumeString(rest); n >= 0 {
				return version, nil
			}
		}
		if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			break
		}
		rest = rest[n:]
	}
	return "", fmt.Errorf("%s: the answer contains no version", socket)
}

// kubelet checks the kubelet's directory and its two sockets.
func (c *checker) kubelet(ctx context.Context) {
	dir := filepath.Join(c.deps.KubeletDir, "device-plugins")
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
