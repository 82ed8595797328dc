package config

import (
	"reflect"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// StaticFields returns the settings that take effect only when the agent starts: paths and sockets that are already
// open, and settings that clients and containers rely on. The others take effect while it runs.
func StaticFields() []string {
	return []string{
		"deviceListStrategy", "deviceIDStrategy", "passDeviceSpecs", "cdiAnnotationPrefix", "draDriverName",
		"driverRoot", "devRoot", "hostRoot", "kubeletDir", "cdiDir", "hookDir", "containerdStateDir", "cgroupRoot",
		"mpsRoot", "stateDir", "persistentDir", "metricsListen", "pollInterval", "scanDeadline", "nodeName", "standalone",
		"healthClasses", "ignoredXIDs", "taintUnhealthy", "labels", "sampleInterval", "dcgmNames", "dcgmHostnameLabel",
		"dcgmCounters", "dcgmCountersFile",
	}
}

// Static returns the fields that differ between two configurations and take effect only at the next start.
func Static(a, b *v1alpha1.AgentConfig) []string {
	var differ []string
	for _, name := range StaticFields() {
		if !reflect.DeepEqual(fieldOf(a, name).Interface(), fieldOf(b, name).Interface()) {
			differ = append(differ, name)
		}
	}
	return differ
}

// InheritStatic sets the static fields that are empty in c to the values of base.
func InheritStatic(c, base *v1alpha1.AgentConfig) {
	for _, name := range StaticFields() {
		if field := fieldOf(c, name); field.IsZero() {
			field.Set(fieldOf(base, name))
		}
	}
}

// ForceStatic sets static fields of c to the values of base: the given ones, or all.
func ForceStatic(c, base *v1alpha1.AgentConfig, names ...string) {
	if len(names) == 0 {
		names = StaticFields()
	}
	for _, name := range names {
		fieldOf(c, name).Set(fieldOf(base, name))
	}
}

// fieldOf returns the field with a name of the file.
func fieldOf(c *v1alpha1.AgentConfig, name string) reflect.Value {
	value := reflect.ValueOf(c).Elem()
	for i := range value.NumField() {
		if tag, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return value.Field(i)
		}
	}
	return reflect.Value{}
}
