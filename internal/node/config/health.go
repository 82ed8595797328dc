package config

import (
	"fmt"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/health"
)

// HealthRules converts a configuration to the rules that decide how faults affect a GPU's health. getenv returns the
// variables DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS of NVIDIA's device plugin, which apply as well.
func HealthRules(config *v1alpha1.AgentConfig, getenv func(string) string) (health.Rules, error) {
	checks, err := health.ParseChecks(getenv("DP_DISABLE_HEALTHCHECKS"), getenv("DP_ENABLE_HEALTHCHECKS"))
	if err != nil {
		return health.Rules{}, fmt.Errorf("read health checks from the environment: %w", err)
	}
	overrides := health.Overrides{}
	for code, class := range config.HealthClasses {
		overrides[code] = health.Class(class)
	}
	return health.Rules{Checks: checks, Overrides: overrides}, nil
}

// IgnoredXIDs returns the XIDs that do not affect a GPU's health: the default ones and those of the configuration.
func IgnoredXIDs(config *v1alpha1.AgentConfig) map[uint64]bool {
	ignored := health.DefaultIgnoredXIDs()
	for _, xid := range config.IgnoredXIDs {
		ignored[xid] = true
	}
	return ignored
}
