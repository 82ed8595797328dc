package config

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// maxResourceName is the longest resource name, domain included, that NVIDIA's
// device plugin accepts; the API itself would take a longer domain.
const maxResourceName = 63

// Load reads the file and fills in the defaults; an empty path means all defaults.
// Override, which may be nil, is called in between: command line flags win over
// the file. The error is an *Error for anything that is wrong inside the file.
func Load(path string, override func(*v1alpha1.AgentConfig)) (*v1alpha1.AgentConfig, error) {
	var data []byte
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read config: %w (the path comes from --config)", err)
		}
	}
	return Parse(path, data, override)
}

// Parse is Load on the bytes of a file named file.
func Parse(file string, data []byte, override func(*v1alpha1.AgentConfig)) (*v1alpha1.AgentConfig, error) {
	var config v1alpha1.AgentConfig
	d := strict(file, data, &config)
	if err := d.err(); err != nil {
		return nil, err
	}
	d.checkType(config)
	if override != nil {
		override(&config)
	}
	setDefaults(&config)
	d.check(&config)
	if err := d.err(); err != nil {
		return nil, err
	}
	return &config, nil
}

func setDefaults(c *v1alpha1.AgentConfig) {
	text := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	duration := func(field **metav1.Duration, value time.Duration) {
		if *field == nil {
			*field = &metav1.Duration{Duration: value}
		}
	}
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: kind}
	text(&c.ResourceName, "nvidia.com/gpu")
	if len(c.DeviceListStrategy) == 0 {
		c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
	}
	if c.DeviceIDStrategy == "" {
		c.DeviceIDStrategy = v1alpha1.IDStrategyUUID
	}
	text(&c.CDIAnnotationPrefix, "cdi.k8s.io/")
	text(&c.DriverRoot, "/")
	text(&c.DevRoot, c.DriverRoot)
	text(&c.HostRoot, "/")
	text(&c.KubeletDir, "/var/lib/kubelet")
	text(&c.CDIDir, "/var/run/cdi")
	text(&c.HookDir, "/opt/berth/bin")
	text(&c.StateDir, "/run/berth")
	text(&c.ContainerdStateDir, "/run/containerd")
	text(&c.Listen, "127.0.0.1:9835")
	duration(&c.PollInterval, 5*time.Second)
	duration(&c.ScanDeadline, 10*time.Second)
	text(&c.NodeName, os.Getenv("NODE_NAME"))
	if c.NodeName == "" {
		// The kubelet's default too; an error leaves the name empty, which check reports.
		name, _ := os.Hostname()
		c.NodeName = strings.ToLower(name)
	}
}

const kind = "AgentConfig"

// checkType accepts a file without apiVersion and kind: the flag says what it is.
func (d *decoder) checkType(c v1alpha1.AgentConfig) {
	if want := v1alpha1.GroupVersion().String(); c.APIVersion != "" && c.APIVersion != want {
		d.reject("apiVersion", fmt.Sprintf("want %s, got %s", want, c.APIVersion), "this agent reads "+want+" only")
	}
	if c.Kind != "" && c.Kind != kind {
		d.reject("kind", fmt.Sprintf("want %s, got %s", kind, c.Kind), "")
	}
}

// check names every combination that the agent could not honour.
func (d *decoder) check(c *v1alpha1.AgentConfig) {
	d.checkResource(c.ResourceName)
	d.checkStrategies(c)
	oneOf(d, "deviceIDStrategy", c.DeviceIDStrategy, v1alpha1.IDStrategyUUID, v1alpha1.IDStrategyIndex)
	if !strings.HasSuffix(c.CDIAnnotationPrefix, "/") {
		d.reject("cdiAnnotationPrefix", strconv.Quote(c.CDIAnnotationPrefix)+" does not end with a slash", "write "+c.CDIAnnotationPrefix+"/")
	}
	for i, device := range c.Exclude {
		if _, err := strconv.Atoi(device); err != nil && !strings.HasPrefix(device, "GPU-") {
			d.reject(fmt.Sprintf("exclude[%d]", i), strconv.Quote(device)+" is neither a GPU's UUID nor its index", "berth-agent inspect gpus lists both")
		}
	}
	for _, path := range []struct{ field, value string }{
		{"driverRoot", c.DriverRoot}, {"devRoot", c.DevRoot}, {"hostRoot", c.HostRoot}, {"kubeletDir", c.KubeletDir},
		{"cdiDir", c.CDIDir}, {"hookDir", c.HookDir}, {"stateDir", c.StateDir}, {"containerdStateDir", c.ContainerdStateDir},
	} {
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
	if c.NodeName == "" && !c.Standalone {
		d.reject("nodeName", "the node's name is not known", "set it, or NODE_NAME, or standalone: true")
	}
}

func (d *decoder) checkResource(name string) {
	if len(name) > maxResourceName {
		d.reject("resourceName", fmt.Sprintf("%q has %d characters, at most %d are allowed", name, len(name), maxResourceName), "shorten it")
		return
	}
	if wrong := validation.IsQualifiedName(name); len(wrong) > 0 || !strings.Contains(name, "/") {
		d.reject("resourceName", strconv.Quote(name)+" is not a resource name", "write it as domain/name, such as nvidia.com/gpu")
	}
}

func (d *decoder) checkStrategies(c *v1alpha1.AgentConfig) {
	known := []v1alpha1.DeviceListStrategy{
		v1alpha1.StrategyCDICRI, v1alpha1.StrategyCDIAnnotations, v1alpha1.StrategyEnvVar, v1alpha1.StrategyVolumeMounts,
	}
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
	if c.PassDeviceSpecs && (cri || annotations) {
		d.reject("passDeviceSpecs", "device specs and CDI exclude each other: the CDI spec already names the device nodes", "remove passDeviceSpecs, or set deviceListStrategy: [envvar]")
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
	d.reject(field, fmt.Sprintf("%q is unknown", string(value)), suggestion(string(value), names))
}
