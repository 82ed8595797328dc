package config

import (
	"fmt"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// nvidiaFile has all keys of the file of NVIDIA's device plugin and GPU feature discovery.
type nvidiaFile struct {
	Version   string          `json:"version"`
	Flags     nvidiaFlags     `json:"flags"`
	Resources nvidiaResources `json:"resources"`
	Sharing   nvidiaSharing   `json:"sharing"`
	IMEX      v1alpha1.IMEX   `json:"imex"`
}

type nvidiaFlags struct {
	MIGStrategy             v1alpha1.MIGStrategy `json:"migStrategy"`
	FailOnInitError         bool                 `json:"failOnInitError"`
	MPSRoot                 string               `json:"mpsRoot"`
	DriverRoot              string               `json:"nvidiaDriverRoot"`
	DevRoot                 string               `json:"nvidiaDevRoot"`
	GDRCopy                 bool                 `json:"gdrcopyEnabled"`
	GDS                     bool                 `json:"gdsEnabled"`
	MOFED                   bool                 `json:"mofedEnabled"`
	UseNodeFeatureAPI       bool                 `json:"useNodeFeatureAPI"`
	DeviceDiscoveryStrategy string               `json:"deviceDiscoveryStrategy"`
	Plugin                  nvidiaPlugin         `json:"plugin"`
	GFD                     nvidiaGFD            `json:"gfd"`
}

type nvidiaPlugin struct {
	PassDeviceSpecs     bool                      `json:"passDeviceSpecs"`
	DeviceListStrategy  v1alpha1.StringOrList     `json:"deviceListStrategy"`
	DeviceIDStrategy    v1alpha1.DeviceIDStrategy `json:"deviceIDStrategy"`
	CDIAnnotationPrefix string                    `json:"cdiAnnotationPrefix"`
	CTKPath             string                    `json:"nvidiaCTKPath"`
	ContainerDriverRoot string                    `json:"containerDriverRoot"`
	AllocationPolicy    v1alpha1.SharePolicy      `json:"sharedDevicesAllocationPolicy"`
}

type nvidiaGFD struct {
	Oneshot         bool        `json:"oneshot"`
	NoTimestamp     bool        `json:"noTimestamp"`
	SleepInterval   nvidiaSleep `json:"sleepInterval"`
	OutputFile      string      `json:"outputFile"`
	MachineTypeFile string      `json:"machineTypeFile"`
}

type nvidiaResources struct {
	GPUs []nvidiaResource `json:"gpus"`
	MIG  []nvidiaResource `json:"mig"`
}

type nvidiaResource struct {
	Pattern string `json:"pattern"`
	Name    string `json:"name"`
}

type nvidiaSharing struct {
	TimeSlicing *nvidiaMode `json:"timeSlicing"`
	MPS         *nvidiaMode `json:"mps"`
}

type nvidiaMode struct {
	RenameByDefault            bool           `json:"renameByDefault"`
	FailRequestsGreaterThanOne *bool          `json:"failRequestsGreaterThanOne"`
	Resources                  []nvidiaShared `json:"resources"`
}

type nvidiaShared struct {
	Name     string        `json:"name"`
	Rename   string        `json:"rename"`
	Replicas int           `json:"replicas"`
	Devices  nvidiaDevices `json:"devices"`
}

// nvidiaSleep is a duration, a number of nanoseconds, or "infinite".
type nvidiaSleep struct{}

func (nvidiaSleep) read(d *decoder, node *yaml.Node, field string) {
	const fix = "write a duration such as 60s, or infinite"
	if node.Kind != yaml.ScalarNode {
		d.add(node.Line, field, "want a duration, got "+describe(node), fix)
		return
	}
	if node.ShortTag() == "!!int" || node.Value == "infinite" {
		return
	}
	if _, err := time.ParseDuration(node.Value); err != nil {
		d.add(node.Line, field, strconv.Quote(node.Value)+" is not a duration", fix)
	}
}

// nvidiaDevices are the devices that an entry of sharing selects: all (the zero value), a number of devices, or those
// of a list.
type nvidiaDevices struct {
	count    int
	gpus     []int
	gpuUUIDs []string
	migs     []string
	migUUIDs []string
	oldUUID  bool
	listing  bool
}

func (n *nvidiaDevices) read(d *decoder, node *yaml.Node, field string) {
	const fix = "write all, a number, or a list of indices (0, \"0:1\") and UUIDs"
	switch {
	case node.Kind == yaml.SequenceNode && len(node.Content) > 0:
		n.listing = true
		for i, item := range node.Content {
			path := field + "[" + strconv.Itoa(i) + "]"
			d.lines[path] = item.Line
			if item.Kind != yaml.ScalarNode || !n.add(item.Value) {
				d.add(item.Line, path, describe(item)+" is not a device",
					"write an index as nvidia-smi -L numbers them (a GPU's 0, a MIG device's \"0:1\"), or a UUID as it prints them")
			}
		}
	case node.Kind == yaml.SequenceNode:
		d.add(node.Line, field, "an empty list shares nothing", fix)
	case node.Kind == yaml.ScalarNode && node.Value == "all":
	case node.Kind == yaml.ScalarNode && node.ShortTag() == "!!int":
		count, err := strconv.Atoi(node.Value)
		if err != nil || count < 1 {
			d.add(node.Line, field, node.Value+" is not a number of devices", "write 1 or more, or all")
			return
		}
		n.count = count
	default:
		d.add(node.Line, field, describe(node)+" does not say which devices", fix)
	}
}

// add adds one entry of a list.
func (n *nvidiaDevices) add(device string) bool {
	switch {
	case gpuIndex.MatchString(device):
		index, err := strconv.Atoi(device)
		n.gpus = append(n.gpus, index)
		return err == nil
	case gpuUUID.MatchString(device):
		n.gpuUUIDs = append(n.gpuUUIDs, device)
	case migIndex.MatchString(device):
		n.migs = append(n.migs, device)
	case migUUID.MatchString(device):
		n.migUUIDs = append(n.migUUIDs, device)
	case oldUUID.MatchString(device):
		n.migUUIDs = append(n.migUUIDs, device)
		n.oldUUID = true
	default:
		return false
	}
	return true
}

// ofGPUs and ofMIGs report whether the entry can select devices of that kind.
func (n *nvidiaDevices) ofGPUs() bool { return !n.listing || len(n.gpus)+len(n.gpuUUIDs) > 0 }
func (n *nvidiaDevices) ofMIGs() bool { return !n.listing || len(n.migs)+len(n.migUUIDs) > 0 }

// readNVIDIA reads NVIDIA's file and converts it to a Berth configuration.
func (d *decoder) readNVIDIA(document *yaml.Node) *v1alpha1.AgentConfig {
	const both = "a file of NVIDIA's device plugin has a version and no apiVersion or kind, one of Berth has no version: keep one of them"
	var file nvidiaFile
	d.decode(document, &file, map[string]string{
		"apiVersion":  both,
		"kind":        both,
		"mig-configs": "a file of mig-parted belongs in a ConfigMap that migConfigMap of an AgentConfig names",
	})
	if file.Version == "" {
		d.note("version", "is missing, and the file is read as version: v1, as NVIDIA's device plugin does", "write version: v1")
	} else {
		d.checkVersion(file.Version)
	}
	if len(d.problems) > 0 {
		return nil
	}
	d.nvidiaIgnored(&file)
	c := &v1alpha1.AgentConfig{
		ResourceName:                  defaultResourceName,
		MIGStrategy:                   file.Flags.MIGStrategy,
		SharedDevicesAllocationPolicy: file.Flags.Plugin.AllocationPolicy,
		DeviceIDStrategy:              file.Flags.Plugin.DeviceIDStrategy,
		CDIAnnotationPrefix:           file.Flags.Plugin.CDIAnnotationPrefix,
		GDS:                           file.Flags.GDS,
		GDRCopy:                       file.Flags.GDRCopy,
		MOFED:                         file.Flags.MOFED,
		IMEX:                          file.IMEX,
		DriverRoot:                    file.Flags.DriverRoot,
		DevRoot:                       file.Flags.DevRoot,
		MPSRoot:                       file.Flags.MPSRoot,
		Labels:                        v1alpha1.Labels{NoTimestamp: file.Flags.GFD.NoTimestamp},
	}
	if c.MIGStrategy == "" {
		c.MIGStrategy = v1alpha1.MIGStrategyNone
	}
	for field, origin := range map[string]string{
		"migStrategy": "migStrategy", "driverRoot": "nvidiaDriverRoot", "devRoot": "nvidiaDevRoot", "mpsRoot": "mpsRoot",
		"deviceListStrategy": "plugin.deviceListStrategy", "deviceIDStrategy": "plugin.deviceIDStrategy",
		"cdiAnnotationPrefix": "plugin.cdiAnnotationPrefix", "sharedDevicesAllocationPolicy": "plugin.sharedDevicesAllocationPolicy",
		"hostRoot": "plugin.containerDriverRoot", "passDeviceSpecs": "plugin.passDeviceSpecs",
		"labels.output": "useNodeFeatureAPI", "labels.dir": "gfd.outputFile", "labels.noTimestamp": "gfd.noTimestamp",
	} {
		d.origins[field] = "flags." + origin
	}
	d.nvidiaPlatform(&file.Flags)
	d.nvidiaHostRoot(&file.Flags, c)
	d.nvidiaLabels(&file.Flags, c)
	d.nvidiaStrategies(&file.Flags.Plugin, c)
	(&translation{decoder: d, file: &file, config: c}).run()
	return c
}

// nvidiaShaped reports whether a file without a version is NVIDIA's: it has only keys of NVIDIA's file, and at least
// one that Berth's file does not have.
func nvidiaShaped(document *yaml.Node) bool {
	if document == nil || document.Kind != yaml.MappingNode {
		return false
	}
	own := false
	for i := 0; i+1 < len(document.Content); i += 2 {
		switch document.Content[i].Value {
		case "flags", "resources", "sharing":
			own = true
		case "imex":
		default:
			return false
		}
	}
	return own
}

// nvidiaIgnored notes the fields that NVIDIA's device plugin reads and then ignores: with their documented effect they
// may change the names or the number of devices of a migrated node.
func (d *decoder) nvidiaIgnored(file *nvidiaFile) {
	const followed, check = "is followed; NVIDIA's device plugin ignores it, so ", "remove it to keep what NVIDIA's device plugin advertises"
	if len(file.Resources.GPUs) > 0 {
		d.note("resources.gpus", followed+"GPUs may get other resource names", check)
	}
	if len(file.Resources.MIG) > 0 {
		d.note("resources.mig", followed+"MIG devices may get other resource names", check)
	}
	for _, block := range []struct {
		at   string
		mode *nvidiaMode
	}{{"sharing.timeSlicing", file.Sharing.TimeSlicing}, {"sharing.mps", file.Sharing.MPS}} {
		if block.mode == nil {
			continue
		}
		for i := range block.mode.Resources {
			at := fmt.Sprintf("%s.resources[%d]", block.at, i)
			shared := &block.mode.Resources[i]
			// renameByDefault gives this name anyway.
			usual := block.mode.RenameByDefault && strings.TrimPrefix(shared.Rename,
				nvidiaDomain) == strings.TrimPrefix(shared.Name, nvidiaDomain)+sharedSuffix
			if shared.Rename != "" && !usual {
				d.note(at+".rename", followed+"replicas may get another resource name", check)
			}
			if !reflect.DeepEqual(shared.Devices, nvidiaDevices{}) {
				d.note(at+".devices", followed+"only these devices are shared instead of all", check)
			}
		}
	}
}

// nvidiaPlatform checks the flags that have no field in Berth's configuration.
func (d *decoder) nvidiaPlatform(flags *nvidiaFlags) {
	const strategy = "flags.deviceDiscoveryStrategy"
	switch flags.DeviceDiscoveryStrategy {
	case "", "auto", "nvml":
	case "tegra", "vfio":
		d.reject(strategy, flags.DeviceDiscoveryStrategy+" is not supported: Berth finds its GPUs through NVML",
			"write auto or nvml; keep NVIDIA's device plugin on such nodes")
	default:
		d.reject(strategy, fmt.Sprintf("%q is unknown", flags.DeviceDiscoveryStrategy),
			suggest("write one of", flags.DeviceDiscoveryStrategy, []string{"auto", "nvml"}))
	}
	if path := flags.Plugin.CTKPath; path != "" && path != "/usr/bin/nvidia-ctk" {
		d.note("flags.plugin.nvidiaCTKPath", "has no effect: Berth's CDI spec names a hook program of its own",
			"see hookDir of Berth's AgentConfig")
	}
}

// labelFile is the name of Berth's file for Node Feature Discovery.
const labelFile = "berth-gpu"

// nvidiaLabels converts the flags that choose where labels are written.
func (d *decoder) nvidiaLabels(flags *nvidiaFlags, c *v1alpha1.AgentConfig) {
	const outputFile = "flags.gfd.outputFile"
	file := flags.GFD.OutputFile
	switch {
	case flags.UseNodeFeatureAPI:
		c.Labels.Output = v1alpha1.LabelsNodeFeature
		if file != "" {
			d.note(outputFile, "has no effect beside useNodeFeatureAPI", "remove one of them")
		}
	case file != "":
		c.Labels.Output, c.Labels.Dir = v1alpha1.LabelsFile, file
		if path.IsAbs(file) {
			c.Labels.Dir = path.Dir(file)
		}
		if path.Base(file) != labelFile {
			d.note(outputFile, "Berth's file is called "+labelFile+", in this directory", "delete the file that GPU feature discovery left")
		}
	}
	if flags.GFD.Oneshot {
		d.note("flags.gfd.oneshot", "has no effect: the agent updates the labels as long as it runs", "")
	}
	if d.given("flags.gfd.sleepInterval") {
		d.note("flags.gfd.sleepInterval", "has no effect: labels are written when they change", "")
	}
	if from := flags.GFD.MachineTypeFile; from != "" && from != "/sys/class/dmi/id/product_name" {
		d.note("flags.gfd.machineTypeFile", "has no effect: the machine's name is read from /sys/class/dmi/id/product_name", "")
	}
}

// nvidiaHostRoot derives the mount point of the host's root from that of the driver's root.
func (d *decoder) nvidiaHostRoot(flags *nvidiaFlags, c *v1alpha1.AgentConfig) {
	const field = "flags.plugin.containerDriverRoot"
	seen := strings.TrimRight(flags.Plugin.ContainerDriverRoot, "/")
	if seen == "" || seen == "/driver-root" {
		return // The mount point of NVIDIA's image does not apply to Berth's.
	}
	host, ok := strings.CutSuffix(seen, strings.TrimRight(flags.DriverRoot, "/"))
	if !ok {
		d.note(field, "has no effect: Berth looks for the driver's root below the host's root, at hostRoot followed by nvidiaDriverRoot", "mount the host's root into the agent and set --host-root")
		return
	}
	c.HostRoot = host
	if host == "" {
		c.HostRoot = "/"
	}
}

// nvidiaStrategies converts the strategies as NVIDIA's plugin treats combinations of them.
func (d *decoder) nvidiaStrategies(plugin *nvidiaPlugin, c *v1alpha1.AgentConfig) {
	const field = "flags.plugin.deviceListStrategy"
	cdi := len(plugin.DeviceListStrategy) == 0 // Berth's default.
	cri := false
	for _, text := range plugin.DeviceListStrategy {
		for name := range strings.SplitSeq(text, ",") {
			strategy := v1alpha1.DeviceListStrategy(strings.TrimSpace(name))
			c.DeviceListStrategy = append(c.DeviceListStrategy, strategy)
			cri = cri || strategy == v1alpha1.StrategyCDICRI
			cdi = cdi || strategy.UsesCDI()
		}
	}
	if cri {
		kept := c.DeviceListStrategy[:0]
		for _, strategy := range c.DeviceListStrategy {
			if strategy != v1alpha1.StrategyCDIAnnotations {
				kept = append(kept, strategy)
			}
		}
		if len(kept) < len(c.DeviceListStrategy) {
			d.note(field, "cdi-annotations has no effect beside cdi-cri: the runtime would inject every device twice",
				"remove cdi-annotations")
		}
		c.DeviceListStrategy = kept
	}
	c.PassDeviceSpecs = plugin.PassDeviceSpecs && !cdi
	if plugin.PassDeviceSpecs && cdi {
		d.note("flags.plugin.passDeviceSpecs", "has no effect with CDI: the CDI spec already names the device nodes",
			"remove it, or set deviceListStrategy: envvar")
	}
}
