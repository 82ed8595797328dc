package sandbox

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A sandbox has its own network namespace, so that it cannot conflict with an address, port or rule of the machine.
// Inside it every port is the usual one, and nothing in it can be reached from outside except the API server, through a
// forwarder that listens on 127.0.0.1.
//
// Inside is one bridge with 10.64.0.0/16. Node i has the address 10.64.i.1 and assigns the rest of 10.64.i.0/24 to its
// pods. Services are 10.64.255.0/24; the first address, the API server's, is a real address of the bridge, so that
// clients in pods reach it although there is no kube-proxy. All pods share one segment, so nothing is routed or
// translated.
const (
	bridge      = "berth0"
	network     = "10.64"
	serviceIP   = network + ".255.1"
	serviceCIDR = network + ".255.0/24"
	// apiServerInside is the address of the API server for the sandbox's own programs.
	apiServerInside = "https://" + serviceIP + ":443"
	kubeletPort     = 10250
	// bridgeMAC is set because a bridge otherwise takes the lowest address of its ports. That address changes as pods
	// come and go, and pods with the old one in their ARP tables would lose the API server.
	bridgeMAC = "0a:58:0a:40:ff:01"
	// healthzPorts is the first of the kubelets' healthz ports, which share the namespace's loopback address.
	healthzPorts = 10300
)

// The processes of the network, as named in the state file.
const (
	procNetwork   = "network"
	procForwarder = "forwarder"
)

func nodeIP(index int) string { return fmt.Sprintf("%s.%d.1", network, index) }

// makeNetwork creates the namespace, which a process keeps alive, with the bridge in it.
func (c *Cluster) makeNetwork(ctx context.Context) error {
	_, err := c.start(launch{
		name: procNetwork, argv: []string{filepath.Join(c.state.Bin, "workload"), "pause"}, outside: true,
		enter: func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make network namespace: %w", err)
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	commands := [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", bridge, "address", bridgeMAC, "type", "bridge"},
		{"addr", "add", serviceIP + "/32", "dev", bridge},
		{"link", "set", bridge, "up"},
	}
	for i := range c.state.Nodes {
		commands = append(commands, []string{"addr", "add", nodeIP(i) + "/16", "dev", bridge})
	}
	return c.inNetwork(func() error {
		for _, args := range commands {
			if err := ip(ctx, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// inNetwork runs f on a thread in the sandbox's network namespace.
func (c *Cluster) inNetwork(f func() error) error {
	return onFreshThread(func() error {
		if err := c.enterNetwork(); err != nil {
			return err
		}
		return f()
	})
}

// enterNetwork moves this thread into the sandbox's network namespace.
func (c *Cluster) enterNetwork() error {
	holder := c.snapshot().process("", procNetwork)
	if holder == nil || !holder.Alive() {
		return fmt.Errorf("enter the sandbox's network: the process that holds it is not running")
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", holder.PID), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter the sandbox's network: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the sandbox's network: %w", err)
	}
	return nil
}

// DialInside connects to an address inside the sandbox's network, which must be an IP address with a port.
func (c *Cluster) DialInside(ctx context.Context, kind, address string) (net.Conn, error) {
	var conn net.Conn
	err := c.inNetwork(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, kind, address)
		return err
	})
	return conn, err
}

// openForwarder chooses the port of 127.0.0.1 at which the API server is reachable from outside, and starts the
// forwarder. The forwarder runs inside and inherits a socket from outside.
func (c *Cluster) openForwarder() error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("choose a port for the API server: %w", err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("choose a port for the API server: %w", err)
	}
	defer file.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	if err := c.update(func(s *State) { s.APIServer = "https://127.0.0.1:" + strconv.Itoa(port) }); err != nil {
		return err
	}
	_, err = c.start(launch{
		name: procForwarder, files: []*os.File{file},
		argv: []string{filepath.Join(c.state.Bin, "workload"), "forward", "3", strings.TrimPrefix(apiServerInside, "https://")},
	})
	return err
}

func ip(ctx context.Context, args ...string) error {
	path, err := lookPath("ip")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
