package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
)

// addWhy adds to pods without a node why they wait. A pod for which that cannot be read keeps what the scheduler says.
func addWhy(ctx context.Context, client dynamic.Interface, t *v1alpha1.Trace, now time.Time) {
	for i := range t.Pods {
		p := &t.Pods[i]
		if p.Phase != string(corev1.PodPending) || p.Node != nil || p.Name == "" {
			continue
		}
		answer, err := explainWhy(ctx, client, whyQuestion{kind: kindPodOnly, namespace: p.Namespace, name: p.Name}, now)
		if err == nil {
			p.Why = answer.Sentence
		}
	}
}

// whyLines ends a trace with why its pods wait.
func whyLines(w io.Writer, t *v1alpha1.Trace) error {
	for i := range t.Pods {
		p := &t.Pods[i]
		if p.Why == "" {
			continue
		}
		text := p.Why
		if len(t.Pods) > 1 {
			text = p.Namespace + "/" + p.Name + ": " + text
		}
		if _, err := fmt.Fprintf(w, "\n%s\n", term.Clean(text)); err != nil {
			return err
		}
	}
	return nil
}
