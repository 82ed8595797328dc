package fakekubelet

import (
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// State is the kubelet's state of one resource, as values.
type State struct {
	// Primary is the base name of the socket that is called; empty when it has stopped.
	Primary string
	// Endpoints are the base names of all connected sockets, sorted.
	Endpoints []string
	// Healthy and Unhealthy are device IDs, sorted.
	Healthy   []string
	Unhealthy []string
	// NUMA has the nodes of each device that has any.
	NUMA map[string][]int64
	// Attempts counts requested registrations, Accepted those accepted.
	Attempts int
	Accepted int
	// From are the sockets of all lists received, in order.
	From []string
	// Lowest is the smallest number of healthy devices since the first list.
	Lowest  int
	Options *pluginapi.DevicePluginOptions
}

// client is a connection to one plugin.
type client struct {
	resource string
	path     string
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
	stopped  bool
}

// resource is the record of one resource; the kubelet's lock guards it.
type resource struct {
	// clients are the connections that the plugin server has; endpoints those that the device manager has. The two
	// differ when a path is registered twice.
	clients   []*client
	endpoints map[string]*client
	primary   *client
	devices   map[string]*pluginapi.Device
	healthy   map[string]bool
	attempts  int
	accepted  int
	from      []string
	lowest    int
}

// take makes a client the primary endpoint.
func (r *resource) take(c *client, legacy bool) error {
	if legacy {
		r.clients = []*client{c}
		r.endpoints = map[string]*client{c.path: c}
	} else {
		if r.endpoints[c.path] != nil {
			r.clients = slices.DeleteFunc(r.clients, func(other *client) bool { return other.path == c.path })
			return fmt.Errorf("device plugin already connected: %s", c.path)
		}
		r.clients = append(r.clients, c)
		r.endpoints[c.path] = c
	}
	r.primary = c
	r.accepted++
	return nil
}

// receive applies a list from any stream.
func (r *resource) receive(c *client, list *pluginapi.ListAndWatchResponse) {
	r.devices, r.healthy = make(map[string]*pluginapi.Device), make(map[string]bool)
	for _, device := range list.Devices {
		r.devices[device.ID] = device
		if device.Health == pluginapi.Healthy {
			r.healthy[device.ID] = true
		}
	}
	r.from = append(r.from, filepath.Base(c.path))
	if len(r.from) == 1 || len(r.healthy) < r.lowest {
		r.lowest = len(r.healthy)
	}
}

// drop records the end of a stream and returns the client to close, which may be another one than the stream's.
func (r *resource) drop(c *client, legacy bool) *client {
	if legacy {
		if len(r.clients) == 0 {
			return c
		}
		newest := r.clients[0]
		r.clients = nil
		r.endpoints = make(map[string]*client)
		newest.stopped = true
		r.fail()
		return newest
	}
	at := slices.IndexFunc(r.clients, func(other *client) bool { return other.path == c.path })
	if at < 0 {
		// Its path was registered twice: the endpoint is never removed.
		return c
	}
	r.clients = slices.Delete(r.clients, at, at+1)
	c.stopped = true
	delete(r.endpoints, c.path)
	for _, remaining := range r.endpoints {
		r.primary = remaining
		return c
	}
	r.fail()
	return c
}

// fail marks all devices unhealthy.
func (r *resource) fail() {
	r.healthy = make(map[string]bool)
	r.lowest = 0
}

func (r *resource) state() State {
	s := State{
		NUMA: make(map[string][]int64), Attempts: r.attempts, Accepted: r.accepted,
		From: slices.Clone(r.from), Lowest: r.lowest,
	}
	if r.primary != nil && !r.primary.stopped {
		s.Primary, s.Options = filepath.Base(r.primary.path), r.primary.options
	}
	for path := range r.endpoints {
		s.Endpoints = append(s.Endpoints, filepath.Base(path))
	}
	for id, device := range r.devices {
		if r.healthy[id] {
			s.Healthy = append(s.Healthy, id)
		} else {
			s.Unhealthy = append(s.Unhealthy, id)
		}
		for _, node := range device.GetTopology().GetNodes() {
			s.NUMA[id] = append(s.NUMA[id], node.ID)
		}
	}
	slices.Sort(s.Endpoints)
	slices.Sort(s.Healthy)
	slices.Sort(s.Unhealthy)
	return s
}
