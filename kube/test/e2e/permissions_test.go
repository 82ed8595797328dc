package e2e

import (
	"strings"
	"testing"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testPermissions checks the permissions in the chart: everything that the agent requests, and nothing that an
// intruder would want.
func testPermissions(t *testing.T, r *rig) {
	tests := map[string]struct {
		group, resource, verb, name, namespace string
		want                                   bool
	}{
		"read its GPUNode":                       {"berth.dev", "gpunodes", "get", r.node.Name(), "", true},
		"create its GPUNode":                     {"berth.dev", "gpunodes", "create", "", "", true},
		"change its GPUNode":                     {"berth.dev", "gpunodes", "patch", r.node.Name(), "", true},
		"read its node's UID":                    {"", "nodes", "get", r.node.Name(), "", true},
		"follow its node's labels":               {"", "nodes", "watch", "", "", true},
		"label its node":                         {"", "nodes", "patch", r.node.Name(), "", true},
		"follow configurations":                  {"", "configmaps", "watch", "", agentNamespace, true},
		"list configurations":                    {"", "configmaps", "list", "", agentNamespace, true},
		"record an event about a configuration":  {"events.k8s.io", "events", "create", "", "default", true},
		"read whether an orphan's pod has ended": {"", "pods", "get", "any", "", true},
		"read the definition":                    {"apiextensions.k8s.io", "customresourcedefinitions", "get", "gpunodes.berth.dev", "", true},
		"change the definition":                  {"apiextensions.k8s.io", "customresourcedefinitions", "update", "gpunodes.berth.dev", "", false},
		"read another definition":                {"apiextensions.k8s.io", "customresourcedefinitions", "get", "others.example.com", "", false},
		"follow its node's pods":                 {"", "pods", "watch", "", "", true},
		"record an event about a claim":          {"events.k8s.io", "events", "create", "", "kube-system", true}, // the policy restricts this further
		"change an event":                        {"events.k8s.io", "events", "patch", "", "default", false},
		"start a pod":                            {"", "pods", "create", "", "", false},
		"evict a pod":                            {"", "pods/eviction", "create", "any", "default", false},
		"read secrets":                           {"", "secrets", "get", "any", "", false},
		"read others' ConfigMaps":                {"", "configmaps", "get", "any", "default", false},
		"change a configuration":                 {"", "configmaps", "patch", "any", agentNamespace, false},
		"report the health of its GPUs":          {"", "nodes/status", "patch", r.node.Name(), "", true},
		"write NodeFeatures":                     {"nfd.k8s-sigs.io", "nodefeatures", "create", "", agentNamespace, true},
		"write others' NodeFeatures":             {"nfd.k8s-sigs.io", "nodefeatures", "create", "", "default", false},
		"delete a node":                          {"", "nodes", "delete", r.node.Name(), "", false},
		"remove its GPUNode":                     {"berth.dev", "gpunodes", "delete", r.node.Name(), "", false},
		"create tokens for other accounts":       {"", "serviceaccounts/token", "create", "any", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			resource, sub, _ := strings.Cut(tc.resource, "/")
			review, err := r.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authv1.SubjectAccessReview{
				Spec: authv1.SubjectAccessReviewSpec{
					User:   "system:serviceaccount:" + agentNamespace + ":" + agentName,
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + agentNamespace, "system:authenticated"},
					ResourceAttributes: &authv1.ResourceAttributes{
						Group: tc.group, Resource: resource, Subresource: sub, Verb: tc.verb, Name: tc.name, Namespace: tc.namespace,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != tc.want {
				t.Errorf("allowed: %v, want %v (%s)", review.Status.Allowed, tc.want, review.Status.Reason)
			}
		})
	}
}

// testNothingForbidden checks that the API server granted every request of the agent in the earlier tests: "forbidden"
// is the API server's word for a refusal.
func testNothingForbidden(t *testing.T, r *rig) {
	log := r.agentLog()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") {
			t.Errorf("the API server refused the agent something: %s", line)
		}
	}
	if !strings.Contains(log, "Registered with the kubelet") {
		t.Errorf("this is not the agent's log:\n%s", log)
	}
}
