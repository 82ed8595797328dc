package drasync

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/dra/class"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// classSource is the source of the problems.
	classSource = "device classes"
	// classesReadEvery is the time between two readings of the DeviceClasses, and readAgain the time while something is wrong with them.
	classesReadEvery = 10 * time.Minute
	classesReadAgain = 30 * time.Second
)

// classChecker is the actor.
type classChecker struct {
	Client     kubernetes.Interface
	DriverName string
	// Served returns the extended resource names of the devices that are allocated through DRA, sorted; Changed subscribes to its changes.
	Served  func() []string
	Changed func() *signal.Subscription
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.WithTicker
}

// Run reports what is wrong with the DeviceClasses of the resources that the node's devices have, until ctx ends.
func (c *classChecker) Run(ctx context.Context) error {
	changed := c.Changed()
	defer changed.Close()
	var served []string
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
			if now := c.Served(); !slices.Equal(now, served) {
				served = now
				break
			}
			continue
		case <-next:
		}
		problems := c.problems(ctx, served)
		if ctx.Err() != nil {
			return nil
		}
		c.Report(classSource, problems...)
		if len(problems) > 0 {
			next = c.Clock.After(classesReadAgain)
		} else {
			next = c.Clock.After(classesReadEvery)
		}
	}
}

// problems compares the DeviceClasses with the names.
func (c *classChecker) problems(ctx context.Context, served []string) []gpu.Cause {
	if len(served) == 0 {
		return nil
	}
	classes, err := classList(ctx, c.Client)
	if err != nil {
		return []gpu.Cause{{Code: class.Missing, Message: fmt.Sprintf("it is not known whether the DeviceClasses of this node's devices exist: list DeviceClasses: %v; set rights.dra of the chart, which gives the agent the right", err)}}
	}
	var problems []gpu.Cause
	for _, finding := range class.Check(c.DriverName, served, classes) {
		problems = append(problems, gpu.Cause{Code: finding.Code, Message: finding.Message})
	}
	return problems
}

// classList reads the DeviceClasses from the API server's cache. The agent has the right to list them only.
func classList(ctx context.Context, client kubernetes.Interface) ([]resourceapi.DeviceClass, error) {
	found, err := client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return found.Items, nil
}

// ClassExists returns a function that reports whether the API server has DRA and the DeviceClass of a name, and lets the agent read it. It
// is nil without an API server.
func ClassExists(client kubernetes.Interface, name string) func(context.Context) (bool, error) {
	if client == nil {
		return nil
	}
	return func(ctx context.Context) (bool, error) {
		classes, err := classList(ctx, client)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return false, nil
		}
		return slices.ContainsFunc(classes, func(c resourceapi.DeviceClass) bool { return c.Name == name }), err
	}
}
