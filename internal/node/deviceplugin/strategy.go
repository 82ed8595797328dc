package deviceplugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ListStrategy is a way to tell the container runtime which devices a container gets.
type ListStrategy string

// The values of NVIDIA's device-list-strategy.
const (
	// CDICRI names CDI devices in the CRI's own field.
	CDICRI ListStrategy = "cdi-cri"
	// CDIAnnotations names CDI devices in an annotation of the container.
	CDIAnnotations ListStrategy = "cdi-annotations"
	// EnvVar sets NVIDIA_VISIBLE_DEVICES for NVIDIA's container runtime.
	EnvVar ListStrategy = "envvar"
	// VolumeMounts mounts /dev/null once per device for NVIDIA's container runtime, where
	// it is set to believe mounts only.
	VolumeMounts ListStrategy = "volume-mounts"
)

// IDStrategy is the name by which a device is passed on.
type IDStrategy string

// The values of NVIDIA's device-id-strategy.
const (
	ByUUID  IDStrategy = "uuid"
	ByIndex IDStrategy = "index"
)

// DefaultAnnotationPrefix is the prefix that the CDI specification reserves.
const DefaultAnnotationPrefix = "cdi.k8s.io/"

// Strategy is how the chosen devices reach the container. Several list strategies may be
// combined. Empty fields mean cdi-cri, uuid and DefaultAnnotationPrefix.
type Strategy struct {
	List []ListStrategy
	ID   IDStrategy
	// PassDeviceSpecs adds the device nodes themselves, for a CPU manager that
	// rewrites the device cgroup; only beside envvar or volume-mounts, as CDI carries them already.
	PassDeviceSpecs  bool
	AnnotationPrefix string
}

var listStrategies = []ListStrategy{CDIAnnotations, CDICRI, EnvVar, VolumeMounts}

// Validate says what is wrong with a strategy and how to mend it.
func (s Strategy) Validate() error {
	var errs []error
	for i, list := range s.List {
		if !slices.Contains(listStrategies, list) {
			errs = append(errs, fmt.Errorf("unknown device list strategy %q: use one or more of %v", list, listStrategies))
		}
		if slices.Contains(s.List[:i], list) {
			errs = append(errs, fmt.Errorf("device list strategy %q is given twice: name it once", list))
		}
	}
	if s.ID != "" && s.ID != ByUUID && s.ID != ByIndex {
		errs = append(errs, fmt.Errorf("unknown device id strategy %q: use %s or %s", s.ID, ByUUID, ByIndex))
	}
	if s.PassDeviceSpecs && !s.has(EnvVar) && !s.has(VolumeMounts) {
		errs = append(errs, errors.New("device specs are passed only beside the list strategies envvar and volume-mounts: drop passDeviceSpecs, since CDI carries the device nodes already, or add one of the two"))
	}
	if s.AnnotationPrefix != "" && !strings.HasSuffix(s.AnnotationPrefix, "/") {
		errs = append(errs, fmt.Errorf("CDI annotation prefix %q must end in a slash, as in %s", s.AnnotationPrefix, DefaultAnnotationPrefix))
	}
	return errors.Join(errs...)
}

func (s Strategy) has(list ListStrategy) bool { return slices.Contains(s.List, list) }

func (s Strategy) usesCDI() bool { return s.has(CDICRI) || s.has(CDIAnnotations) }
