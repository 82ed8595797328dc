package dra

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// HealthTimeout is how long the kubelet uses a report of the health of a device.
	HealthTimeout = 30 * time.Second
	// HealthResend is the time between two reports without a change: two reports in a row may be lost.
	HealthResend = 10 * time.Second
)

// WatchHealthStatus reports the health of all devices at once, after each change, and every HealthResend, until ctx ends. It waits for
// no file, API or driver.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	changed := d.deps.Changed()
	defer changed.Close()
	resend := d.deps.Clock.NewTicker(HealthResend)
	defer resend.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
		case <-resend.C():
		}
		select {
		case <-ctx.Done():
			return nil
		case reports <- d.healthReport():
		}
	}
}

func (d *Driver) healthReport() kubeletplugin.DeviceHealthReport {
	now := d.deps.Clock.Now()
	var report kubeletplugin.DeviceHealthReport
	for _, device := range d.deps.Devices() {
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: d.deps.Pool, DeviceName: device.Name, Health: statusOf(device.Health),
			LastUpdated: now, HealthCheckTimeout: HealthTimeout, Message: device.Reason,
		})
	}
	return report
}

// statusOf returns what a class of health means for the pod that has the device: a draining GPU still works for it.
func statusOf(class gpu.State) kubeletplugin.HealthStatus {
	switch class {
	case gpu.Healthy, gpu.Degraded, gpu.Draining:
		return kubeletplugin.HealthStatusHealthy
	case "":
		return kubeletplugin.HealthStatusUnknown
	}
	return kubeletplugin.HealthStatusUnhealthy
}
