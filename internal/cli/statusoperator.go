package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// deploymentPods selects the pods of the operator and the scheduler, in whichever namespace the release is.
const deploymentPods = "app.kubernetes.io/name in (berth-operator, berth-scheduler)"

func podResource() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("pods")
}

// addDeployments adds to the report why a pod of the operator or the scheduler does not run: what the operator reports itself is as old as
// its end. A cluster without such a pod adds nothing, since the operator may run elsewhere, and the scheduler need not run.
func addDeployments(ctx context.Context, client dynamic.Interface, report *v1alpha1.StatusReport) error {
	pods, err := listSelected[corev1.Pod](ctx, client, podResource(), deploymentPods)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return addNote(report, "berth-operator and berth-scheduler", err)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range pods {
		if why := stopped(&pods[i]); why != "" {
			report.Notes = append(report.Notes, fmt.Sprintf("%s: pod %s/%s does not work: %s",
				pods[i].Labels["app.kubernetes.io/name"], pods[i].Namespace, pods[i].Name, why))
		}
	}
	return nil
}

// stopped says why a container of a pod does not work; empty for a pod that works, starts for the first time, or is being deleted.
func stopped(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return ""
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		ended := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
		switch waiting := s.State.Waiting; {
		case s.Ready:
		case ended != nil:
			return fmt.Sprintf("after %d restarts it ended with exit code %d: %s", s.RestartCount, ended.ExitCode,
				cmp.Or(lastLine(ended.Message), ended.Reason, "no reason is known"))
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing":
			return strings.TrimSuffix(waiting.Reason+": "+lastLine(waiting.Message), ": ")
		}
	}
	return ""
}

// lastLine returns the last line of a text that is not empty: of a log, the error that ended the program.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
