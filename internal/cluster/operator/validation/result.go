package validation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// finished reports whether a pod has ended.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// result returns whether a pod that has ended has validated its devices, and the evidence: what passed, or the first failure.
func result(pod *corev1.Pod) (passed bool, evidence string) {
	var resources, failures []string
	code := ""
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		ended := terminated(pod, name)
		if ended == nil {
			failures = append(failures, fmt.Sprintf("container %s has not run", name))
			continue
		}
		r := &v1alpha1.ValidationResult{}
		if err := json.Unmarshal([]byte(ended.Message), r); err != nil || r.Kind != v1alpha1.KindValidationResult {
			r = &v1alpha1.ValidationResult{}
		}
		switch {
		case r.Passed && ended.ExitCode == 0:
			resources = append(resources, r.Resource)
		case r.Code != "" && code == "":
			code = r.Code + ": " + r.Evidence
		default:
			failures = append(failures, strings.TrimSpace(fmt.Sprintf("container %s ended with exit code %d (%s) %s", name, ended.ExitCode,
				cmp.Or(ended.Reason, "no reason"), ended.Message)))
		}
	}
	switch {
	case code != "":
		return false, short(code)
	case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "": // DeadlineExceeded, or what the kubelet does not admit.
		return false, short(pod.Status.Reason + ": " + pod.Status.Message)
	case len(failures) > 0:
		return false, short(failures[0])
	case pod.Status.Phase != corev1.PodSucceeded || len(resources) == 0:
		return false, "the pod has failed without a reason"
	}
	return true, short("passed: " + strings.Join(resources, ", "))
}

func terminated(pod *corev1.Pod, container string) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == container {
			return s.State.Terminated
		}
	}
	return nil
}

// waitsFor says what a pod that has not ended waits for.
func waitsFor(pod *corev1.Pod) string {
	name := "pod " + pod.Namespace + "/" + pod.Name
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && pod.Spec.NodeName == "" {
			return short(fmt.Sprintf("%s is not scheduled: %s: %s", name, c.Reason, c.Message))
		}
	}
	if pod.Spec.NodeName == "" {
		return name + " waits for the scheduler"
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" && w.Reason != "" {
			return short(fmt.Sprintf("container %s of %s does not start: %s: %s", s.Name, name, w.Reason, w.Message))
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return name + " runs"
	}
	return name + " starts"
}

// How long the evidence of a step can be, and the note of an Event beside what else is in it.
const (
	mostText = 1024
	mostNote = 700
)

func short(text string) string { return cut(text, mostText) }

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}
