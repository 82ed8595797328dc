package deviceplugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// DefaultAnnotationPrefix is the prefix that the CDI specification reserves.
const DefaultAnnotationPrefix = "cdi.k8s.io/"

// Strategy is how devices are injected into the container. Several list strategies may be combined. Empty fields mean cdi-cri, uuid
// and DefaultAnnotationPrefix.
type Strategy struct {
	List []v1alpha1.DeviceListStrategy
	ID   v1alpha1.DeviceIDStrategy
	// PassDeviceSpecs adds the device nodes themselves, for a CPU manager that
	// rewrites the device cgroup; only beside envvar or volume-mounts, as CDI carries them already.
	PassDeviceSpecs  bool
	AnnotationPrefix string
}

// validate returns what is wrong with a strategy and how to fix it.
func (s Strategy) validate() error {
	var errs []error
	for i, list := range s.List {
		if !slices.Contains(v1alpha1.DeviceListStrategies(), list) {
			errs = append(errs, fmt.Errorf("unknown device list strategy %q: use one or more of %v", list, v1alpha1.DeviceListStrategies()))
		}
		if slices.Contains(s.List[:i], list) {
			errs = append(errs, fmt.Errorf("device list strategy %q is given twice: name it once", list))
		}
	}
	if s.ID != "" && !slices.Contains(v1alpha1.DeviceIDStrategies(), s.ID) {
		errs = append(errs, fmt.Errorf("unknown device id strategy %q: use %s or %s", s.ID, v1alpha1.IDStrategyUUID, v1alpha1.IDStrategyIndex))
	}
	if s.PassDeviceSpecs && !s.has(v1alpha1.StrategyEnvVar) && !s.has(v1alpha1.StrategyVolumeMounts) {
		errs = append(errs, errors.New("device specs are passed only beside the list strategies envvar and volume-mounts: drop passDeviceSpecs, since CDI carries the device nodes already, or add one of the two"))
	}
	if s.AnnotationPrefix != "" && !strings.HasSuffix(s.AnnotationPrefix, "/") {
		errs = append(errs, fmt.Errorf("CDI annotation prefix %q must end in a slash, as in %s", s.AnnotationPrefix, DefaultAnnotationPrefix))
	}
	return errors.Join(errs...)
}

func (s Strategy) has(list v1alpha1.DeviceListStrategy) bool { return slices.Contains(s.List, list) }

func (s Strategy) usesCDI() bool {
	return slices.ContainsFunc(s.List, v1alpha1.DeviceListStrategy.UsesCDI)
}
