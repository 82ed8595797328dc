package drasync

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/dra/pool"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// classesSource is the source of the problems of DeviceClasses.
	classesSource = "device classes"
	// readClasses is the time between two readings of the DeviceClasses, and readClassesAgain the time while something is wrong with them.
	readClasses      = 10 * time.Minute
	readClassesAgain = 30 * time.Second
)

// checkClasses reports what is wrong with the DeviceClasses of the resources that the node's devices have, until ctx ends.
func (s *Syncer) checkClasses(ctx context.Context) error {
	changed := s.deps.Devices.SubscribeSettled()
	defer changed.Close()
	var served []string
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
			if now := s.served(); !slices.Equal(now, served) {
				served = now
				break
			}
			continue
		case <-next:
		}
		problems := s.classProblems(ctx, served)
		if ctx.Err() != nil {
			return nil
		}
		s.deps.Report(classesSource, problems...)
		if len(problems) > 0 {
			next = s.deps.Clock.After(readClassesAgain)
		} else {
			next = s.deps.Clock.After(readClasses)
		}
	}
}

// served returns the extended resource names of the devices that are allocated through DRA, sorted.
func (s *Syncer) served() []string {
	var names []string
	for _, device := range s.deps.Devices.Current() {
		if device.Use.API == offer.DRA {
			names = append(names, device.Use.Resource)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// classProblems reads the DeviceClasses from the API server's cache and compares them with the names.
func (s *Syncer) classProblems(ctx context.Context, served []string) []gpu.Cause {
	if len(served) == 0 {
		return nil
	}
	list, err := s.deps.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return []gpu.Cause{{Code: class.Missing, Message: fmt.Sprintf("it is not known whether the DeviceClasses of this node's devices exist: list DeviceClasses: %v; apply deploy/options/dra.yaml, which gives the agent the right", err)}}
	}
	var problems []gpu.Cause
	for _, finding := range class.Check(pool.DefaultDriver, served, list.Items) {
		problems = append(problems, gpu.Cause{Code: finding.Code, Message: finding.Message})
	}
	return problems
}
