package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/signal"
)

const (
	// StatusSource is the source of the StatusWriter's problem, and SourceRemoved that of the claims whose GPU is not on the node any more.
	StatusSource  = "claim status"
	SourceRemoved = "claims of removed GPUs"
	// StatusCondition is the type of the condition that says whether a device is healthy.
	StatusCondition = "Healthy"
	// statusManager is the field manager, whose name does not change, since claims have it.
	statusManager = "berth-agent-claims"
	// statusPause is the time between two writes, and retry the time after a failure.
	statusPause = 500 * time.Millisecond
	statusRetry = 30 * time.Second
	// callTimeout bounds one call to the API server.
	callTimeout = 10 * time.Second
)

// StatusDevice is a device that a claim holds.
type StatusDevice struct {
	// Pool and Name are those of the published device. The name is empty when it is not known; the status then leaves out the device.
	Pool string
	Name string
	// UUID is that of the GPU or MIG device. Parent and Profile are empty for a GPU.
	UUID    gpu.UUID
	Parent  gpu.UUID
	Profile string
	PCI     string
	// Health is the class of its health, empty while it is not known, and Gone when the GPU is not on the node any more. Reason says why it
	// is not Healthy.
	Health gpu.State
	Reason string
	// Since is when the claim got the device.
	Since time.Time
}

// StatusClaim is a claim with its devices.
type StatusClaim struct {
	UID       string
	Namespace string
	Name      string
	Devices   []StatusDevice
}

// StatusDeps are the dependencies of a StatusWriter.
type StatusDeps struct {
	Client kubernetes.Interface
	// Driver is the name of the DRA driver.
	Driver string
	// Claims returns the claims that hold devices now, from memory, in a fixed order.
	Claims func() []StatusClaim
	// Held and Settled subscribe to changes of the ledger, and of the devices and their health.
	Held    func() *signal.Subscription
	Settled func() *signal.Subscription
	// Report replaces the problems of a source; it must not block.
	Report func(source string, problems ...gpu.Cause)
	Clock  clock.Clock
}

// StatusWriter writes what the devices of the node's claims are, and their health, into status.devices of the ResourceClaims. It is an
// actor: create it with NewStatusWriter, start it with Run.
//
// A claim's status follows the ledger and the health, and a claim whose GPU is not on the node any more is reported. Equal content is not
// written again by one agent. The claims are written one after the other and at most two in a second, so that they do not delay the calls
// of a prepare, and the failure of one claim does not delay the others. The API server removes the entries when a claim is deallocated.
// Writes are server-side apply with the UID of the claim, so that a new claim with the name of an older one never gets its devices.
type StatusWriter struct {
	deps StatusDeps
	// written is the content that each claim has, by UID.
	written map[string]string
	// seen is the health of each device as it was first seen, or changed last.
	seen map[gpu.UUID]seen
}

type seen struct {
	health gpu.State
	since  metav1.Time
}

// NewStatusWriter returns a StatusWriter; it touches nothing.
func NewStatusWriter(deps StatusDeps) *StatusWriter {
	return &StatusWriter{deps: deps, written: map[string]string{}, seen: map[gpu.UUID]seen{}}
}

// Run writes until ctx ends.
func (w *StatusWriter) Run(ctx context.Context) error {
	held, settled := w.deps.Held(), w.deps.Settled()
	defer held.Close()
	defer settled.Close()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-held.C():
		case <-settled.C():
		case <-again:
		}
		err := w.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			w.deps.Report(StatusSource, gpu.Cause{Code: "DRA_STATUS_FAILED", Message: err.Error()})
			again = w.deps.Clock.After(statusRetry)
		default:
			w.deps.Report(StatusSource)
			again = nil
		}
	}
}

// pass writes the claims whose content has changed.
func (w *StatusWriter) pass(ctx context.Context) error {
	claims := w.deps.Claims()
	w.deps.Report(SourceRemoved, removed(claims)...)
	w.forget(claims)
	var failures []error
	for i := range claims {
		claim := &claims[i]
		devices := w.devices(claim)
		text, err := json.Marshal(devices)
		if err != nil {
			return fmt.Errorf("encode the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		if claim.Name == "" || w.written[claim.UID] == string(text) {
			continue
		}
		if err := w.write(ctx, claim, devices); err != nil {
			failures = append(failures, fmt.Errorf("write status.devices of claim %s/%s: %w", claim.Namespace, claim.Name, err))
		} else {
			w.written[claim.UID] = string(text)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.deps.Clock.After(statusPause):
		}
	}
	return firstStatus(failures)
}

// firstStatus returns the first of several errors with their number.
func firstStatus(failures []error) error {
	switch len(failures) {
	case 0:
		return nil
	case 1:
		return failures[0]
	}
	return fmt.Errorf("%w (and %d more)", failures[0], len(failures)-1)
}

// forget drops what is known of claims and devices that are not held any more.
func (w *StatusWriter) forget(claims []StatusClaim) {
	held, devices := map[string]bool{}, map[gpu.UUID]bool{}
	for i := range claims {
		held[claims[i].UID] = true
		for k := range claims[i].Devices {
			devices[claims[i].Devices[k].UUID] = true
		}
	}
	for uid := range w.written {
		if !held[uid] {
			delete(w.written, uid)
		}
	}
	for id := range w.seen {
		if !devices[id] {
			delete(w.seen, id)
		}
	}
}

// write applies the status. A claim that is gone is no error.
func (w *StatusWriter) write(ctx context.Context, claim *StatusClaim, devices []*resourceac.AllocatedDeviceStatusApplyConfiguration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	object := resourceac.ResourceClaim(claim.Name, claim.Namespace).WithUID(types.UID(claim.UID)).
		WithStatus(resourceac.ResourceClaimStatus().WithDevices(devices...))
	_, err := w.deps.Client.ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx, object, metav1.ApplyOptions{FieldManager: statusManager, Force: true})
	switch {
	case apierrors.IsNotFound(err), invalidStatus(err, func(cause metav1.StatusCause) bool { return cause.Field == "metadata.uid" }):
		return nil // The claim with this UID is gone.
	case apierrors.IsForbidden(err), invalidStatus(err, func(cause metav1.StatusCause) bool { return cause.Type == metav1.CauseType(field.ErrorTypeForbidden) }):
		return fmt.Errorf("%w; set rights.dra of the chart, which gives the agent the right", err)
	}
	return err
}

// invalidStatus reports whether the API server has refused an object as invalid for such a cause. Kubernetes 1.37 answers so for another
// UID and for a missing right to resourceclaims/driver.
func invalidStatus(err error, such func(metav1.StatusCause) bool) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && status.ErrStatus.Details != nil && slices.ContainsFunc(status.ErrStatus.Details.Causes, such)
}

// devices returns the entries of a claim, in the order of their names.
func (w *StatusWriter) devices(claim *StatusClaim) []*resourceac.AllocatedDeviceStatusApplyConfiguration {
	sorted := slices.DeleteFunc(slices.Clone(claim.Devices), func(device StatusDevice) bool { return device.Name == "" })
	slices.SortFunc(sorted, func(a, b StatusDevice) int { return strings.Compare(a.Name, b.Name) })
	var entries []*resourceac.AllocatedDeviceStatusApplyConfiguration
	for i := range sorted {
		device := &sorted[i]
		data := map[string]string{"uuid": string(device.UUID)}
		for name, value := range map[string]string{"pciBusID": device.PCI, "parentUUID": string(device.Parent), "profile": device.Profile} {
			if value != "" {
				data[name] = value
			}
		}
		text, _ := json.Marshal(data) // A map of texts has no error.
		entries = append(entries, resourceac.AllocatedDeviceStatus().WithDriver(w.deps.Driver).WithPool(device.Pool).WithDevice(device.Name).
			WithConditions(w.condition(device)).WithData(runtime.RawExtension{Raw: text}))
	}
	return entries
}

// condition returns the condition of a device. Its time is that of the last change that this agent has seen, or when the claim got the
// healthy device, so that the next agent writes the same.
func (w *StatusWriter) condition(device *StatusDevice) *metaac.ConditionApplyConfiguration {
	status, reason := metav1.ConditionFalse, string(device.Health)
	switch device.Health {
	case gpu.Healthy, gpu.Degraded, gpu.Draining:
		status = metav1.ConditionTrue
	case "":
		status, reason = metav1.ConditionUnknown, "NotKnown"
	}
	last, known := w.seen[device.UUID]
	if !known && device.Health == gpu.Healthy {
		last = seen{device.Health, metav1.NewTime(device.Since)}
	} else if !known || last.health != device.Health {
		last = seen{device.Health, metav1.NewTime(w.deps.Clock.Now())}
	}
	w.seen[device.UUID] = last
	return metaac.Condition().WithType(StatusCondition).WithStatus(status).WithReason(reason).WithMessage(device.Reason).WithLastTransitionTime(last.since)
}
