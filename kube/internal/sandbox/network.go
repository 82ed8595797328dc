package sandbox

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The network of a sandbox is one bridge with 10.N.0.0/16 on it, N from its
// identity. Node i has the address 10.N.i.1 and gives its pods the rest of
// 10.N.i.0/24; services are 10.N.255.0/24, of which the first, the API
// server's, is a real address of the bridge, so that clients in pods find it
// where they expect it although there is no kube-proxy. All pods share one
// segment, so nothing is routed or translated: no sysctl or iptables rule of
// the machine is touched.
const serviceOctet = 255

func nodeIP(network string, index int) string { return fmt.Sprintf("%s.%d.1", network, index) }
func serviceIP(network string) string         { return fmt.Sprintf("%s.%d.1", network, serviceOctet) }
func serviceCIDR(network string) string       { return fmt.Sprintf("%s.%d.0/24", network, serviceOctet) }

// pickNetwork chooses N so that 10.N.0.0/16 meets no address or route of the
// machine.
func pickNetwork(id string) (string, error) {
	taken, err := takenPrefixes()
	if err != nil {
		return "", err
	}
	return pickNetworkFrom(id, taken)
}

func pickNetworkFrom(id string, taken []netip.Prefix) (string, error) {
	h := fnv.New32a()
	h.Write([]byte(id))
	const first, count = 64, 128
	for i := range uint32(count) {
		n := first + (h.Sum32()+i)%count
		network := fmt.Sprintf("10.%d", n)
		prefix := netip.MustParsePrefix(network + ".0.0/16")
		free := true
		for _, t := range taken {
			if t.Overlaps(prefix) {
				free = false
			}
		}
		if free {
			return network, nil
		}
	}
	return "", errors.New("choose a network: every 10.64.0.0/16 to 10.191.0.0/16 meets an address or route of this machine")
}

func takenPrefixes() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var taken []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			taken = append(taken, p.Masked())
		}
	}
	data, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return append(taken, parseRoutes(string(data))...), nil
}

// parseRoutes reads /proc/net/route: little-endian hexadecimal destinations
// and masks. The default route is left out.
func parseRoutes(table string) []netip.Prefix {
	var out []netip.Prefix
	for i, line := range strings.Split(table, "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) < 8 {
			continue
		}
		dest, err1 := strconv.ParseUint(f[1], 16, 32)
		mask, err2 := strconv.ParseUint(f[7], 16, 32)
		if err1 != nil || err2 != nil || mask == 0 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{byte(dest), byte(dest >> 8), byte(dest >> 16), byte(dest >> 24)})
		ones, _ := net.IPv4Mask(byte(mask), byte(mask>>8), byte(mask>>16), byte(mask>>24)).Size()
		out = append(out, netip.PrefixFrom(addr, ones))
	}
	return out
}

// makeBridge makes the bridge with the addresses of the nodes and of the API
// server on it.
func makeBridge(ctx context.Context, bridge, network string, nodes int) error {
	if err := ip(ctx, "link", "add", bridge, "type", "bridge"); err != nil {
		return err
	}
	for i := range nodes {
		if err := ip(ctx, "addr", "add", nodeIP(network, i)+"/16", "dev", bridge); err != nil {
			return err
		}
	}
	if err := ip(ctx, "addr", "add", serviceIP(network)+"/32", "dev", bridge); err != nil {
		return err
	}
	return ip(ctx, "link", "set", bridge, "up")
}

func removeBridge(ctx context.Context, bridge string) error {
	if _, err := os.Stat(filepath.Join("/sys/class/net", bridge)); err != nil {
		return nil
	}
	return ip(ctx, "link", "del", bridge)
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

// freePorts finds ports of 127.0.0.1 that nobody listens on. They are all held
// until the last is found, so that no two are the same.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// apiPort is 443, where clients in pods look for the API server, unless
// something on the machine listens there on all addresses.
func apiPort(addr string) (int, error) {
	for _, port := range []string{"443", "0"} {
		l, err := net.Listen("tcp4", net.JoinHostPort(addr, port))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port, nil
	}
	return 0, fmt.Errorf("find a port for the API server on %s: none is free", addr)
}

// kubeletPort is kubelet's usual one unless something on the machine listens
// there on all addresses.
func kubeletPort(addr string) int {
	const usual = 10250
	for _, port := range []int{usual, 0} {
		l, err := net.Listen("tcp4", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	return usual
}
