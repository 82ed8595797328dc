package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestEveryFieldIsStaticOrLive checks that each field takes effect while the agent runs, or is listed as static.
func TestEveryFieldIsStaticOrLive(t *testing.T) {
	live := []string{
		"resourceName", "sharedDevicesAllocationPolicy", "migStrategy", "gpus", "migDevices", "migLayouts", "migConfigMap",
		"gds", "gdrcopy", "mofed", "imex",
	}
	var fields []string
	of := reflect.TypeFor[v1alpha1.AgentConfig]()
	for field := range of.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			fields = append(fields, name)
		}
	}
	classified := slices.Concat(live, StaticFields())
	slices.Sort(fields)
	slices.Sort(classified)
	if diff := cmp.Diff(fields, classified); diff != "" {
		t.Errorf("fields that are not in exactly one of the lists (-AgentConfig +lists):\n%s", diff)
	}
}

func TestStatic(t *testing.T) {
	base, err := Parse("", []byte("nodeName: a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := base.DeepCopy()
	changed.GPUs = []v1alpha1.GPURule{{Exclude: true}}
	changed.ResourceName = "berth.dev/gpu"
	if got := Static(base, changed); got != nil {
		t.Errorf("Static names %v for rules and names, want nothing", got)
	}
	changed.CDIDir, changed.PollInterval = "/cdi", &metav1.Duration{Duration: time.Second}
	if diff := cmp.Diff([]string{"cdiDir", "pollInterval"}, Static(base, changed)); diff != "" {
		t.Errorf("Static (-want +got):\n%s", diff)
	}
	ForceStatic(changed, base)
	if got := Static(base, changed); got != nil || changed.ResourceName != "berth.dev/gpu" {
		t.Errorf("after ForceStatic %v differ and the resource name is %s, want nothing and what it was", got, changed.ResourceName)
	}
	open := &v1alpha1.AgentConfig{CDIDir: "/cdi"}
	InheritStatic(open, base)
	if diff := cmp.Diff([]string{"cdiDir"}, Static(base, open)); diff != "" || open.ResourceName != "" {
		t.Errorf("after InheritStatic (-want +got):\n%s\nand the resource name is %q, want none", diff, open.ResourceName)
	}
}
