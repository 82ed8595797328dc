package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Features are what every container with a device gets besides. The list strategies that are not CDI pass them to NVIDIA's container
// runtime; with CDI they are in the spec.
type Features struct {
	GDS     bool
	GDRCopy bool
	MOFED   bool
	// IMEXChannels are the channels that the node has and containers get.
	IMEXChannels []int
}

// Mount is a directory of the host in a container.
type Mount = offer.Mount

// enabled is the value of a feature's variable.
const enabled = "enabled"

// addExtras adds injections and features to an answer without CDI.
func (w *viewer) addExtras(response *pluginapi.ContainerAllocateResponse, devices []*device, v *view) {
	set := func(name, value string) {
		if response.Envs == nil {
			response.Envs = map[string]string{}
		}
		response.Envs[name] = value
	}
	for _, d := range devices {
		for name, value := range d.Injection.Envs {
			set(name, value)
		}
		for _, mount := range d.Injection.Mounts {
			response.Mounts = append(response.Mounts, &pluginapi.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath})
		}
	}
	features, variables := &v.features, &v.traits.Features
	for _, feature := range []struct {
		on       bool
		variable string
	}{{features.GDS, variables.GDS}, {features.GDRCopy, variables.GDRCopy}, {features.MOFED, variables.MOFED}} {
		if feature.on && feature.variable != "" {
			set(feature.variable, enabled)
		}
	}
	if len(features.IMEXChannels) == 0 || variables.IMEXChannels == "" {
		return
	}
	if w.strategy.has(v1alpha1.StrategyVolumeMounts) {
		for _, channel := range features.IMEXChannels {
			response.Mounts = append(response.Mounts, &pluginapi.Mount{ContainerPath: fmt.Sprintf("%s/imex/%d", v.traits.VisibleMounts, channel), HostPath: "/dev/null"})
		}
		return
	}
	channels := make([]string, 0, len(features.IMEXChannels))
	for _, channel := range features.IMEXChannels {
		channels = append(channels, strconv.Itoa(channel))
	}
	set(variables.IMEXChannels, strings.Join(channels, ","))
}

// channelSpecs are the device nodes of the IMEX channels, below the same root of the host as the other nodes.
func (f *Features) channelSpecs(prefix string, control []gpu.DeviceNode) []*pluginapi.DeviceSpec {
	nodes := make([]gpu.DeviceNode, 0, len(f.IMEXChannels))
	for _, channel := range f.IMEXChannels {
		path := prefix + strconv.Itoa(channel)
		node := gpu.DeviceNode{Path: path, HostPath: path}
		at := slices.IndexFunc(control, func(c gpu.DeviceNode) bool { return c.HostPath != "" })
		if at >= 0 {
			if root, ok := strings.CutSuffix(control[at].HostPath, control[at].Path); ok {
				node.HostPath = root + path
			}
		}
		nodes = append(nodes, node)
	}
	return specsOf(nodes)
}
