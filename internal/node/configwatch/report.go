package configwatch

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// Configuration is the watcher of the configuration.
type Configuration interface {
	Current() State
	Subscribe() *signal.Subscription
}

// Conditions are those of the GPUNode.
type Conditions interface {
	Set(kind string, status metav1.ConditionStatus, reason, message string)
}

// ReporterDeps are what a Reporter is made of.
type ReporterDeps struct {
	Config     Configuration
	Conditions Conditions
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
}

// Reporter is the actor. Make it with NewReporter, start it with Run.
type Reporter struct{ deps ReporterDeps }

// NewReporter makes a Reporter.
func NewReporter(deps ReporterDeps) *Reporter { return &Reporter{deps} }

// Run reports until ctx ends.
func (s *Reporter) Run(ctx context.Context) error {
	changes := s.deps.Config.Subscribe()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C():
			s.sync()
		}
	}
}

// sync reports the present state.
func (s *Reporter) sync() {
	now := s.deps.Config.Current()
	switch {
	case now.Refused != nil:
		s.deps.Conditions.Set(nodeapi.ConditionConfig, metav1.ConditionFalse, "Refused", now.Refused.Error())
	case !now.Waiting:
		message := "in force: defaults and flags"
		if now.Source != "" {
			message = "in force: " + now.Source
		}
		s.deps.Conditions.Set(nodeapi.ConditionConfig, metav1.ConditionTrue, "InForce", message)
	}
	s.deps.Report("config", problems(now)...)
}

// problems returns the problems of the configuration and of its sources.
func problems(now State) []gpu.Cause {
	var causes []gpu.Cause
	if now.Refused != nil {
		causes = append(causes, gpu.Cause{Code: "CONFIG_REFUSED", Message: "configuration refused, the last good one stays in force: " + now.Refused.Error()})
	}
	for _, lost := range now.Lost {
		causes = append(causes, gpu.Cause{Code: lost.Code, Message: lost.Err.Error()})
	}
	for _, err := range now.Unsaved {
		causes = append(causes, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error() + "; a restart could not go back to what is in force now"})
	}
	for _, object := range now.Forbidden {
		causes = append(causes, gpu.Cause{Code: "CONFIG_FORBIDDEN", Message: object})
	}
	if len(now.Restart) > 0 {
		causes = append(causes, gpu.Cause{Code: "CONFIG_RESTART", Message: "changed settings take effect only when the agent starts again: " + strings.Join(now.Restart, ", ")})
	}
	return causes
}
