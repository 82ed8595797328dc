package agent

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// reconfigure applies changes of the configuration until ctx ends. What did not change
// stays untouched: the units of the same use are equal, and so are the offers made of them.
func (a *Agent) reconfigure(ctx context.Context) error {
	for {
		a.noteConfig()
		a.settled()
		// Policy and features of the device plugin, features of the spec, wanted layouts.
		a.wakePlugin()
		a.cdi.Poke()
		poke(a.relayout)
		select {
		case <-ctx.Done():
			return nil
		case <-a.watch.Changed():
		}
	}
}

// noteConfig tells everybody whether the newest configuration is in force.
func (a *Agent) noteConfig() {
	now := a.watch.Current()
	var causes []gpu.Cause
	if now.Refused != nil {
		causes = append(causes, gpu.Cause{Code: "CONFIG_REFUSED", Message: "configuration refused, the last good one stays in force: " + now.Refused.Error()})
		a.conditions.set(conditionConfig, metav1.ConditionFalse, "Refused", now.Refused.Error())
	} else if !now.Waiting {
		message := "in force: defaults and flags"
		if now.Source != "" {
			message = "in force: " + now.Source
		}
		a.conditions.set(conditionConfig, metav1.ConditionTrue, "InForce", message)
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
	return offer.Refuse(snapshot, offerSettings(inForce), offerSettings(next)), true
}

// offerSettings puts the rules of the configuration into the words of the offers.
func offerSettings(config *v1alpha1.AgentConfig) offer.Settings {
	settings := offer.Settings{ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy)}
	for _, rule := range config.GPUs {
		settings.GPUs = append(settings.GPUs, offer.GPURule{
			Select: offer.GPUSelect{
				Index: rule.Select.Index, UUID: uuids(rule.Select.UUID), Model: rule.Select.Model, Count: rule.Select.Count,
			},
			Exclude: rule.Exclude, ResourceName: rule.ResourceName, Sharing: offerSharing(rule.Sharing),
		})
	}
	for _, rule := range config.MIGDevices {
		settings.MIGDevices = append(settings.MIGDevices, offer.MIGRule{
			Select: offer.MIGSelect{
				GPU: rule.Select.GPU, Index: rule.Select.Index, UUID: uuids(rule.Select.UUID),
				Profile: rule.Select.Profile, NamedAsGPU: rule.Select.NamedAsGPU, Count: rule.Select.Count,
			},
			ResourceName: rule.ResourceName, Sharing: offerSharing(rule.Sharing),
		})
	}
	return settings
}

func uuids(names []string) []gpu.UUID {
	var ids []gpu.UUID
	for _, name := range names {
		ids = append(ids, gpu.UUID(name))
	}
	return ids
}

func offerSharing(from *v1alpha1.Sharing) offer.Sharing {
	if from == nil {
		return offer.Sharing{}
	}
	sharing := offer.Sharing{
		Mode: offer.Mode(from.Mode), Replicas: from.Replicas, ResourceName: from.ResourceName, Rename: from.RenameByDefault,
		RefuseMany: from.FailRequestsGreaterThanOne != nil && *from.FailRequestsGreaterThanOne,
	}
	if from.TimeSlice != v1alpha1.TimeSliceDefault {
		sharing.TimeSlice = string(from.TimeSlice)
	}
	if from.MPS != nil {
		sharing.PinnedMemoryMiB = from.MPS.PinnedMemoryMiB
		sharing.ActiveThreadPercentage = from.MPS.ActiveThreadPercentage
		sharing.SingleUser = from.MPS.SingleUser
	}
	return sharing
}
