package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// checkType accepts a file without apiVersion and kind, because the flag implies them.
func (d *decoder) checkType(c *v1alpha1.AgentConfig) {
	if want := v1alpha1.GroupVersion().String(); c.APIVersion != "" && c.APIVersion != want {
		d.reject("apiVersion", fmt.Sprintf("want %s, got %s", want, c.APIVersion), "this agent reads "+want+" only")
	}
	if c.Kind != "" && c.Kind != kind {
		d.reject("kind", fmt.Sprintf("want %s, got %s", kind, c.Kind), "")
	}
}

// check reports every combination of settings that the agent cannot support.
func (d *decoder) check(c *v1alpha1.AgentConfig) {
	d.checkResource("resourceName", c.ResourceName)
	d.checkStrategies(c)
	oneOf(d, "deviceIDStrategy", c.DeviceIDStrategy, v1alpha1.DeviceIDStrategies()...)
	oneOf(d, "sharedDevicesAllocationPolicy", c.SharedDevicesAllocationPolicy, v1alpha1.PolicyDistributed, v1alpha1.PolicyPacked)
	oneOf(d, "migStrategy", c.MIGStrategy, v1alpha1.MIGStrategyNone, v1alpha1.MIGStrategySingle, v1alpha1.MIGStrategyMixed)
	if !strings.HasSuffix(c.CDIAnnotationPrefix, "/") {
		d.reject("cdiAnnotationPrefix", strconv.Quote(c.CDIAnnotationPrefix)+" does not end with a slash",
			"write "+c.CDIAnnotationPrefix+"/")
	}
	d.checkDRADriverName(c.DRADriverName)
	d.checkGPURules(c)
	d.checkMIGDeviceRules(c)
	d.checkLayouts("migLayouts", c.MIGLayouts)
	if c.MIGConfigMap != "" {
		d.checkConfigMapName("migConfigMap", c.MIGConfigMap)
	}
	if ids := c.IMEX.ChannelIDs; len(ids) > 0 && !slices.Equal(ids, []int{0}) {
		d.reject("imex.channelIDs", fmt.Sprintf("%v is neither [] nor [0]", ids), "a node has one channel, write [0]")
	}
	for _, path := range []struct{ field, value string }{
		{"driverRoot", c.DriverRoot}, {"devRoot", c.DevRoot}, {"hostRoot", c.HostRoot}, {"kubeletDir", c.KubeletDir},
		{"cdiDir", c.CDIDir}, {"hookDir", c.HookDir}, {"stateDir", c.StateDir}, {"persistentDir",
			c.PersistentDir}, {"containerdStateDir", c.ContainerdStateDir},
		{"mpsRoot", c.MPSRoot}, {"labels.dir", c.Labels.Dir},
	} {
		if path.field == "devRoot" && c.DevRoot == c.DriverRoot {
			continue // It follows driverRoot, which was checked already.
		}
		if path.field == "containerdStateDir" && path.value == "" {
			continue // It is found.
		}
		if !strings.HasPrefix(path.value, "/") {
			d.reject(path.field, strconv.Quote(path.value)+" is not an absolute path", "begin it with /")
		}
	}
	if c.PollInterval.Duration < 100*time.Millisecond {
		d.reject("pollInterval", c.PollInterval.Duration.String()+" is under 100ms", "the default is 5s")
	}
	if c.ScanDeadline.Duration < 100*time.Millisecond {
		d.reject("scanDeadline", c.ScanDeadline.Duration.String()+" is under 100ms", "the default is 10s")
	}
	d.checkMetrics(c)
	d.checkLabels(c)
	d.checkHealthClasses(c.HealthClasses)
	if c.NodeName == "" && !c.Standalone {
		d.reject("nodeName", "the node's name is unknown", "set it, or NODE_NAME, or standalone: true")
	}
}

func (d *decoder) checkMetrics(c *v1alpha1.AgentConfig) {
	if path := c.DCGMCountersFile; path != "" && !strings.HasPrefix(path, "/") {
		d.reject("dcgmCountersFile", strconv.Quote(path)+" is not an absolute path", "begin it with /")
	}
	oneOf(d, "dcgmHostnameLabel", c.DCGMHostnameLabel, "Hostname", "hostname")
	if c.SampleInterval.Duration < 500*time.Millisecond {
		d.reject("sampleInterval", c.SampleInterval.Duration.String()+" is under 500ms", "the default is 10s")
	}
}

// checkDRADriverName checks the name as the API server and the kubelet do.
func (d *decoder) checkDRADriverName(name string) {
	if len(name) > resourceapi.DriverNameMaxLength || len(validation.IsDNS1123Subdomain(name)) > 0 {
		d.reject("draDriverName", fmt.Sprintf("%q is not a DNS name of at most %d lower-case characters", name, resourceapi.DriverNameMaxLength), "write a name such as "+defaultDRADriverName)
	}
}

func (d *decoder) checkStrategies(c *v1alpha1.AgentConfig) {
	known := v1alpha1.DeviceListStrategies()
	for i, strategy := range c.DeviceListStrategy {
		oneOf(d, fmt.Sprintf("deviceListStrategy[%d]", i), strategy, known...)
		if slices.Contains(c.DeviceListStrategy[:i], strategy) {
			d.reject(fmt.Sprintf("deviceListStrategy[%d]", i), string(strategy)+" is given twice", "keep one")
		}
	}
	cri := slices.Contains(c.DeviceListStrategy, v1alpha1.StrategyCDICRI)
	annotations := slices.Contains(c.DeviceListStrategy, v1alpha1.StrategyCDIAnnotations)
	if cri && annotations {
		d.reject("deviceListStrategy", "cdi-cri and cdi-annotations exclude each other: the runtime would inject every device twice", "keep cdi-cri, unless your kubelet is older than 1.31")
	}
	if c.PassDeviceSpecs && c.UsesCDI() {
		d.reject("passDeviceSpecs", "device specs and CDI exclude each other: the CDI spec already names the device nodes", "remove passDeviceSpecs, or set deviceListStrategy: [envvar]")
	}
}

func (d *decoder) checkLabels(c *v1alpha1.AgentConfig) {
	const field = "labels.output"
	output := c.Labels.Output
	oneOf(d, field, output, v1alpha1.LabelsNode, v1alpha1.LabelsFile, v1alpha1.LabelsNodeFeature, v1alpha1.LabelsNone)
	if !c.Standalone || output != v1alpha1.LabelsNode && output != v1alpha1.LabelsNodeFeature {
		return
	}
	fix := "write file or none, or leave out standalone"
	if d.origin(field) != field {
		fix = "set it to false, or leave out standalone"
	}
	d.reject(field, string(output)+" is written through the API server, and standalone works without one", fix)
}

func (d *decoder) checkHealthClasses(classes map[string]string) {
	for _, code := range slices.Sorted(maps.Keys(classes)) {
		field := "healthClasses[" + code + "]"
		if err := (health.Overrides{code: health.Class(classes[code])}).Check(); err != nil {
			what, fix, _ := strings.Cut(strings.TrimPrefix(err.Error(), "override the class of "+code+": "), "; ")
			if near := spelling.Nearest(classes[code], classNames()); near != "" && near != classes[code] {
				fix = "did you mean " + near + "? the classes are " + strings.Join(classNames(), ", ")
			}
			d.reject(field, what, fix)
			continue
		}
		if xid, ok := health.XIDOf(code); ok && health.XIDCode(xid) != code {
			d.reject(field, "this is not the form of a cause", "write "+health.XIDCode(xid))
		}
	}
}

// classNames lists the classes of causes.
func classNames() []string {
	var names []string
	for _, class := range health.Classes() {
		names = append(names, string(class))
	}
	return names
}

func (d *decoder) checkConfigMapName(field, value string) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		d.reject(field, strconv.Quote(value)+" is not the name of a ConfigMap", "write it as NAMESPACE/NAME, such as berth/mig-layouts")
	}
}

func oneOf[T ~string](d *decoder, field string, value T, known ...T) {
	if slices.Contains(known, value) {
		return
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	d.reject(field, fmt.Sprintf("%q is unknown", string(value)), suggest("write one of", string(value), names))
}
