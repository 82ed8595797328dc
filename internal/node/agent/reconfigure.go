package agent

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// reconfigure applies changes of the configuration until ctx ends. What did not change
// stays untouched: the units of the same use are equal, and so are the offers made of them.
func (a *Agent) reconfigure(ctx context.Context) error {
	changes := a.watch.Subscribe()
	defer changes.Close()
	for {
		a.noteConfig()
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C():
		}
	}
}

// noteConfig tells everybody whether the newest configuration is in force.
func (a *Agent) noteConfig() {
	now := a.watch.Current()
	var causes []gpu.Cause
	if now.Refused != nil {
		causes = append(causes, gpu.Cause{Code: "CONFIG_REFUSED", Message: "configuration refused, the last good one stays in force: " + now.Refused.Error()})
		a.conditions.Set(nodeapi.ConditionConfig, metav1.ConditionFalse, "Refused", now.Refused.Error())
	} else if !now.Waiting {
		message := "in force: defaults and flags"
		if now.Source != "" {
			message = "in force: " + now.Source
		}
		a.conditions.Set(nodeapi.ConditionConfig, metav1.ConditionTrue, "InForce", message)
	}
	for _, lost := range now.Lost {
		causes = append(causes, gpu.Cause{Code: lost.Code, Message: lost.Err.Error()})
	}
	for _, object := range now.Forbidden {
		causes = append(causes, gpu.Cause{Code: "CONFIG_FORBIDDEN", Message: object})
	}
	if len(now.Restart) > 0 {
		causes = append(causes, gpu.Cause{Code: "CONFIG_RESTART", Message: "changed settings take effect only when the agent starts again: " + strings.Join(now.Restart, ", ")})
	}
	a.problemList.Set("config", causes...)
}

// hardwareJudge answers what the hardware cannot have; it implements configwatch.Judge.
type hardwareJudge struct {
	agent   *Agent
	changed <-chan struct{}
}

func (a *Agent) judge() configwatch.Judge { return hardwareJudge{a, a.inventory.Subscribe().C()} }

// Changed implements configwatch.Judge.
func (j hardwareJudge) Changed() <-chan struct{} { return j.changed }

// Refuse implements configwatch.Judge. Without a driver it is not known what the GPUs can have.
func (j hardwareJudge) Refuse(inForce, next *v1alpha1.AgentConfig) (error, bool) {
	snapshot := j.agent.inventory.Current()
	if !snapshot.Driver.Present() {
		return nil, false
	}
	return offer.Refuse(snapshot, config.OfferSettings(inForce), config.OfferSettings(next)), true
}
