package hardware

import (
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
)

func TestFindDriver(t *testing.T) {
	tests := map[string]struct {
		host   string
		config v1alpha1.AgentConfig
		want   [2]string
	}{
		"none":               {host: "title none\n"},
		"Talos":              {host: "-- usr/local/glibc/usr/lib/libnvidia-ml.so.1 --\n", want: [2]string{"/usr/local/glibc", "/"}},
		"on the host":        {host: "-- usr/lib64/libnvidia-ml.so.1 --\n", want: [2]string{"/", "/"}},
		"a driver container": {host: "-- run/nvidia/driver/usr/lib64/libnvidia-ml.so.1 --\n", want: [2]string{"/run/nvidia/driver", "/run/nvidia/driver"}},
		"configured": {host: "-- usr/lib64/libnvidia-ml.so.1 --\n", config: v1alpha1.AgentConfig{DriverRoot: "/drv"},
			want: [2]string{"/drv", ""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			host, err := hosttest.Parse([]byte(tc.host))
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			config := tc.config
			config.HostRoot = host.Root
			FindDriver(&config)
			if got := [2]string{config.DriverRoot, config.DevRoot}; got != tc.want {
				t.Errorf("driver root and device root %q, want %q", got, tc.want)
			}
		})
	}
}
