package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func writeFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSchedulerRefused checks that what cannot be the scheduler is refused before anything starts, with what to do.
func TestSchedulerRefused(t *testing.T) {
	tests := map[string]struct {
		o    Options
		want []string
	}{
		"no such program": {Options{Scheduler: "/nowhere/s"}, []string{"--scheduler /nowhere/s", "hack/build.sh scheduler"}},
		"no program":      {Options{Scheduler: writeFile(t, "s", "", 0o600)}, []string{"is no program that can be run"}},
		"a folder":        {Options{Scheduler: t.TempDir()}, []string{"is no program that can be run"}},
		"no such file":    {Options{SchedulerConfig: "/nowhere/c"}, []string{"--scheduler-config", "/nowhere/c", "KubeSchedulerConfiguration"}},
		"no YAML":         {Options{SchedulerConfig: writeFile(t, "c", "a: [", 0o600)}, []string{"this is not YAML"}},
		"a ConfigMap":     {Options{SchedulerConfig: writeFile(t, "c", "kind: ConfigMap\napiVersion: v1", 0o600)}, []string{"it is a ConfigMap of v1", "below config.yaml"}},
		"nothing":         {Options{SchedulerConfig: writeFile(t, "c", "", 0o600)}, []string{"want kind KubeSchedulerConfiguration"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.o.Dir, tc.o.Bin = t.TempDir(), t.TempDir()
			err := tc.o.complete()
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want an error with %q", err, want)
				}
			}
		})
	}
}

// TestSchedulerLaunch checks which program is started with what.
func TestSchedulerLaunch(t *testing.T) {
	c := &Cluster{dir: t.TempDir(), state: &State{Bin: "/bin-of-sandbox"}}
	made, err := c.schedulerLaunch(Options{FeatureGates: map[string]bool{"A": true}})
	if err != nil {
		t.Fatal(err)
	}
	if made.name != "kube-scheduler" || !slices.Equal(made.argv[:2], []string{"/bin-of-sandbox/hyperkube", "kube-scheduler"}) ||
		!slices.Contains(made.argv, "--kubeconfig="+c.pkiPath("scheduler.conf")) || !slices.Contains(made.argv, "--feature-gates=A=true") {
		t.Errorf("by default it is %s with %q", made.name, made.argv)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "mine"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: t.TempDir(), Bin: bin, Scheduler: "mine", SchedulerConfig: writeFile(t, "c", `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: true, resourceName: berth-scheduler}
profiles: [{schedulerName: default-scheduler}]
`, 0o600)}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if made, err = c.schedulerLaunch(o); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.dir, "scheduler.yaml")
	if made.name != "kube-scheduler" || made.argv[0] != filepath.Join(bin, "mine") || !slices.Contains(made.argv, "--config="+file) {
		t.Errorf("with both options it is %s with %q", made.name, made.argv)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		ClientConnection struct {
			Kubeconfig string
			QPS        float64
		}
		LeaderElection map[string]any
		Profiles       []map[string]any
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if config.ClientConnection.Kubeconfig != c.pkiPath("scheduler.conf") || config.ClientConnection.QPS != 1000 ||
		config.LeaderElection["leaderElect"] != false || len(config.Profiles) != 1 {
		t.Errorf("the configuration is\n%s", text)
	}
}
