package config

import (
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	kind = "AgentConfig"
	// DefaultStateDir is the agent's default state directory.
	DefaultStateDir = "/run/berth"
	// DefaultPersistentDir is the default directory of state that must survive a reboot.
	DefaultPersistentDir = "/var/lib/berth"
	defaultResourceName  = "nvidia.com/gpu"
	defaultDRADriverName = "gpu.berth.dev"
	// defaultLabelsDir is where Node Feature Discovery reads files from.
	defaultLabelsDir = "/etc/kubernetes/node-feature-discovery/features.d"
)

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
	text(&c.ResourceName, defaultResourceName)
	if len(c.DeviceListStrategy) == 0 {
		c.DeviceListStrategy = []v1alpha1.DeviceListStrategy{v1alpha1.StrategyCDICRI}
	}
	text((*string)(&c.DeviceIDStrategy), string(v1alpha1.IDStrategyUUID))
	text((*string)(&c.SharedDevicesAllocationPolicy), string(v1alpha1.PolicyDistributed))
	text((*string)(&c.MIGStrategy), string(v1alpha1.MIGStrategyMixed))
	text(&c.CDIAnnotationPrefix, "cdi.k8s.io/")
	text(&c.DRADriverName, defaultDRADriverName)
	text(&c.DriverRoot, "/")
	text(&c.DevRoot, c.DriverRoot)
	text(&c.HostRoot, "/")
	text(&c.KubeletDir, "/var/lib/kubelet")
	text(&c.CDIDir, "/var/run/cdi")
	text(&c.HookDir, "/opt/berth/bin")
	text(&c.StateDir, DefaultStateDir)
	text(&c.PersistentDir, DefaultPersistentDir)
	text(&c.MPSRoot, "/run/berth/mps")
	duration(&c.PollInterval, 5*time.Second)
	duration(&c.ScanDeadline, 10*time.Second)
	duration(&c.SampleInterval, 10*time.Second)
	text(&c.DCGMHostnameLabel, "Hostname")
	output := v1alpha1.LabelsNode
	if c.Standalone {
		output = v1alpha1.LabelsNone // There is no API server to write to.
	}
	text((*string)(&c.Labels.Output), string(output))
	text(&c.Labels.Dir, defaultLabelsDir)
	text(&c.NodeName, os.Getenv("NODE_NAME"))
	if c.NodeName == "" {
		// The kubelet's default too; an error leaves the name empty, which check reports.
		name, _ := os.Hostname()
		c.NodeName = strings.ToLower(name)
	}
	for i := range c.GPUs {
		if sharing := c.GPUs[i].Sharing; sharing != nil {
			setSharingDefaults(sharing)
			if sharing.Mode == v1alpha1.SharingTimeSlicing {
				text((*string)(&sharing.TimeSlice), string(v1alpha1.TimeSliceDefault))
			}
		}
	}
	for i := range c.MIGDevices {
		if sharing := c.MIGDevices[i].Sharing; sharing != nil {
			setSharingDefaults(sharing)
		}
	}
}

func setSharingDefaults(s *v1alpha1.Sharing) {
	if s.FailRequestsGreaterThanOne == nil {
		// NVIDIA's defaults: with MPS, a second replica has no effect for a container.
		fail := s.Mode == v1alpha1.SharingMPS
		s.FailRequestsGreaterThanOne = &fail
	}
}
