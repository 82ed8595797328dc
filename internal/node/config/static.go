package config

import (
	"reflect"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// StaticFields returns the settings that only a start of the agent can change: paths and
// sockets that are open by then, and what an agent's clients and containers already rely on.
// The others take effect while it runs.
func StaticFields() []string {
	return []string{
		"deviceListStrategy", "deviceIDStrategy", "passDeviceSpecs", "cdiAnnotationPrefix",
		"driverRoot", "devRoot", "hostRoot", "kubeletDir", "cdiDir", "hookDir", "containerdStateDir", "cgroupRoot",
		"mpsRoot", "stateDir", "persistentDir", "metricsListen", "pollInterval", "scanDeadline", "nodeName", "standalone",
		"healthClasses", "ignoredXIDs", "taintUnhealthy", "labels", "sampleInterval", "dcgmNames", "dcgmHostnameLabel",
	}
}

// Static names the fields in which two configurations differ and which take effect only
// at the next start.
func Static(a, b *v1alpha1.AgentConfig) []string {
	var differ []string
	for _, name := range StaticFields() {
		if !reflect.DeepEqual(fieldOf(a, name).Interface(), fieldOf(b, name).Interface()) {
			differ = append(differ, name)
		}
	}
	return differ
}

// InheritStatic gives the static fields that c leaves open the values of base.
func InheritStatic(c, base *v1alpha1.AgentConfig) {
	for _, name := range StaticFields() {
		if field := fieldOf(c, name); field.IsZero() {
			field.Set(fieldOf(base, name))
		}
	}
}

// ForceStatic gives all static fields of c the values of base.
func ForceStatic(c, base *v1alpha1.AgentConfig) {
	for _, name := range StaticFields() {
		fieldOf(c, name).Set(fieldOf(base, name))
	}
}

// fieldOf finds a field by the name that it has in the file.
func fieldOf(c *v1alpha1.AgentConfig, name string) reflect.Value {
	value := reflect.ValueOf(c).Elem()
	for i := range value.NumField() {
		if tag, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return value.Field(i)
		}
	}
	return reflect.Value{}
}
