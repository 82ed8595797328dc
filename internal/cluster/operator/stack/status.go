package stack

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/operator/attempts"
)

// The reasons of the condition Ready that are about the ConfigMap. They come before those about nodes.
const (
	reasonConfigInvalid = "ConfigInvalid"
	reasonConfigMissing = "ConfigMissing"
)

// The codes of problems that have a reason of their own.
const (
	codeDriverMissing  = "DRIVER_MISSING"
	codeRuntimeCDIOff  = "RUNTIME_CDI_OFF"
	prefixOfValidation = "VALIDATE_"
)

// reasons are the reasons about nodes, the most urgent first.
var reasons = []string{v1alpha1.StackDriverMissing, v1alpha1.StackRuntimeCDIOff, v1alpha1.StackValidationFailed, v1alpha1.StackNodesNotValidated,
	v1alpha1.StackReconciled}

// facts are what the status says of one node.
type facts struct {
	name   string
	model  string
	driver string
	// gpus is false for a node without GPUs.
	gpus bool
	// reason is one of reasons.
	reason string
	// waits says what the node waits for; empty for one that is validated.
	waits string
}

// factsOf returns those of a GPUNode. A node without a gate accepts pods.
func factsOf(node *v1alpha1.GPUNode) facts {
	s := &node.Status
	f := facts{name: node.Name, model: s.Summary.Model, driver: s.Driver.Version, gpus: len(s.Devices) > 0 || s.Summary.GPUs > 0 || s.Gate != nil,
		reason: v1alpha1.StackReconciled}
	if s.Gate == nil || s.Gate.State == v1alpha1.GateValidated {
		return f
	}
	switch code := s.Gate.Code; {
	case code == codeDriverMissing, s.Gate.State == v1alpha1.GateFound && f.driver == "":
		f.reason = v1alpha1.StackDriverMissing
	case code == codeRuntimeCDIOff:
		f.reason = v1alpha1.StackRuntimeCDIOff
	case strings.HasPrefix(code, prefixOfValidation):
		f.reason = v1alpha1.StackValidationFailed
	default:
		f.reason = v1alpha1.StackNodesNotValidated
	}
	f.waits = cmp.Or(s.Gate.Message, "it is "+string(s.Gate.State))
	if s.Gate.Code != "" {
		f.waits = s.Gate.Code + ": " + f.waits
	}
	return f
}

// mostPools is how many pools the API allows in a status.
const mostPools = 64

// counts fills in the counts and pools of a status. It returns the reason of the condition Ready, and its message.
func counts(status *v1alpha1.GPUStackStatus, nodes []v1alpha1.GPUNode) (reason, message string) {
	pools := map[[2]string][]facts{}
	var all []facts
	for i := range nodes {
		if f := factsOf(&nodes[i]); f.gpus {
			all = append(all, f)
			key := [2]string{f.model, f.driver}
			pools[key] = append(pools[key], f)
		}
	}
	status.Nodes, status.Validated, status.Pools = len(all), validated(all), nil
	for key, members := range pools {
		pool := v1alpha1.StackPool{Model: key[0], Driver: key[1], Nodes: len(members), Validated: validated(members)}
		pool.Reason, pool.Message = summary(members)
		status.Pools = append(status.Pools, pool)
	}
	slices.SortFunc(status.Pools, func(a, b v1alpha1.StackPool) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Driver, b.Driver))
	})
	status.Pools = status.Pools[:min(len(status.Pools), mostPools)]
	reason, message = summary(all)
	if message == "" {
		message = fmt.Sprintf("%d of %d nodes with GPUs accept pods", status.Validated, status.Nodes)
	}
	return reason, message
}

func validated(all []facts) int {
	n := 0
	for _, f := range all {
		if f.reason == v1alpha1.StackReconciled {
			n++
		}
	}
	return n
}

// summary returns the most urgent reason of some nodes, and what the first of those by name waits for.
func summary(all []facts) (reason, message string) {
	for _, reason := range reasons {
		var of []facts
		for _, f := range all {
			if f.reason == reason {
				of = append(of, f)
			}
		}
		if len(of) == 0 || reason == v1alpha1.StackReconciled {
			continue
		}
		first := slices.MinFunc(of, func(a, b facts) int { return strings.Compare(a.name, b.name) })
		message := first.name + ": " + first.waits
		if len(of) > 1 {
			message += fmt.Sprintf(" (and %d more)", len(of)-1)
		}
		return reason, message
	}
	return v1alpha1.StackReconciled, ""
}

// problem is what is wrong with the ConfigMap.
type problem struct {
	reason  string
	message string
}

// condition returns the condition Ready: what is wrong with the ConfigMap comes first, then the objects that are not as wanted, then the
// nodes.
func condition(p *problem, objects *attempts.Objects, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message}
	notKept := slices.DeleteFunc(objects.NotKept(), func(p attempts.Problem) bool { return p.Object == statusOf() && !p.Edited }) // It is written now.
	switch {
	case p != nil:
		c.Reason, c.Message = p.reason, p.message
	case len(notKept) > 0:
		c.Reason, c.Message = v1alpha1.StackObjectsNotKept, notKept[0].Object.String()+": "+notKept[0].Reason
		if more := len(notKept) - 1; more > 0 {
			c.Message += fmt.Sprintf(" (and %d more: kubectl logs deployment/berth-operator)", more)
		}
	case reason == v1alpha1.StackReconciled:
		c.Status = metav1.ConditionTrue
	}
	absent := objects.Absent()
	for _, what := range slices.Sorted(maps.Keys(absent)) {
		c.Message += fmt.Sprintf("; %s (%d objects, such as %s)", what, len(absent[what]), absent[what][0])
	}
	// The API server refuses longer ones.
	const most = 32768
	c.Message = c.Message[:min(len(c.Message), most)]
	return c
}

// sameStatus reports whether two statuses differ in nothing but the times of conditions.
func sameStatus(a, b *v1alpha1.GPUStackStatus) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, s := range []*v1alpha1.GPUStackStatus{a, b} {
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	return apiequality.Semantic.DeepEqual(a, b)
}
