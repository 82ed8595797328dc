package doctor

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

const checkQuotas = "quotas"

// quotas looks for ResourceQuotas that name a resource of the node in a form that the API server accepts and never counts: without
// "requests.", or with "limits." before it (k8s.io/kubernetes/pkg/quota/v1/evaluator/core). What a tenant writes into a quota is no
// fault of the node, so it is reported as information.
func (r *report) quotas(ctx context.Context, api API, node *corev1.Node) {
	all, err := api.ResourceQuotas(ctx)
	if err != nil {
		r.notChecked(checkQuotas, "%v", err)
		return
	}
	var found []string
	for i := range all {
		for name := range all[i].Spec.Hard {
			resource := corev1.ResourceName(strings.TrimPrefix(string(name), "limits."))
			if _, has := node.Status.Capacity[resource]; has && strings.Contains(string(resource), "/") {
				found = append(found, all[i].Namespace+"/"+all[i].Name+" limits "+string(name))
			}
		}
	}
	if len(found) == 0 {
		r.ok(checkQuotas, "%s, none with a name of the node's resources that is never counted", phrase.Count(len(all), "ResourceQuota"))
		return
	}
	slices.Sort(found)
	r.problem(checkQuotas, "QUOTA_NOT_COUNTED", "ResourceQuota %s", phrase.Some(found, mostNames))
}
