package config_test

import (
	"testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/node/config"
)

func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

// TestHealthRules checks that the classes of the file and the variables of NVIDIA's device plugin both apply.
func TestHealthRules(t *testing.T) {
	file := &v1alpha1.AgentConfig{HealthClasses: map[string]string{"XID94": "ignore"}}
	rules, err := config.HealthRules(file, environment(map[string]string{"DP_DISABLE_HEALTHCHECKS": "xids"}))
	if err != nil || rules.Overrides["XID94"] != health.Ignore || !rules.Checks.NoXIDs {
		t.Errorf("rules are %+v, %v; want an ignored XID 94 and no check of XIDs", rules, err)
	}
	if rules, err := config.HealthRules(&v1alpha1.AgentConfig{},
		environment(nil)); err != nil || rules.Checks.NoXIDs || len(rules.Overrides) > 0 {
		t.Errorf("without settings the rules are %+v, %v", rules, err)
	}
	if _, err := config.HealthRules(file, environment(map[string]string{"DP_ENABLE_HEALTHCHECKS": "sixty"})); err == nil {
		t.Error("a variable that is no list of XIDs is accepted")
	}
}

// TestIgnoredXIDs checks that those of the file are added to the default ones.
func TestIgnoredXIDs(t *testing.T) {
	ignored := config.IgnoredXIDs(&v1alpha1.AgentConfig{IgnoredXIDs: []uint64{99}})
	if !ignored[99] || !ignored[13] || ignored[79] {
		t.Errorf("ignored are %v, want 99 and the default ones such as 13, but not 79", ignored)
	}
}
