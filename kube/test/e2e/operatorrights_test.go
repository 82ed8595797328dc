package e2e

import (
	"fmt"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testOperatorWritesOnlyItsOwn tries with the operator's token what it must not do. All are dry runs.
func testOperatorWritesOnlyItsOwn(t *testing.T, i *installed) {
	token, err := i.Client().CoreV1().ServiceAccounts(agentNamespace).CreateToken(t.Context(), "berth-operator", &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	foreign := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "of-the-team", Namespace: quotaNamespace}}
	if _, err := i.Client().CoreV1().ResourceQuotas(quotaNamespace).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, api: withToken(t, i.Cluster, token.Status.Token)}
	quota := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":%q},"spec":{"hard":{"pods":"0"}}}`, name)
	}
	pod := func(name, account string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"serviceAccountName":%q,"containers":[{"name":"a","image":"b"}]}}`, name, account)
	}
	podOf := func(component string) string {
		pods, err := i.Client().CoreV1().Pods(agentNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + component})
		if err != nil || len(pods.Items) == 0 {
			t.Fatalf("%s has %d pods, %v", component, len(pods.Items), err)
		}
		return pods.Items[0].Name
	}
	agent, operator := podOf(agentName), podOf("berth-operator")
	const ofPolicy = "ValidatingAdmissionPolicy"
	for _, attempt := range []struct {
		name string
		// want is a part of the refusal; empty for what is allowed.
		want string
		do   func() error
	}{
		{"make a quota of its own", "", func() error { return a.create(core("resourcequotas"), quotaNamespace, quota("gpu-quota-x")) }},
		{"make another quota", ofPolicy, func() error { return a.create(core("resourcequotas"), quotaNamespace, quota("x")) }},
		{"make another quota in kube-system", ofPolicy, func() error { return a.create(core("resourcequotas"), "kube-system", quota("x")) }},
		{"delete the team's quota", ofPolicy, func() error { return a.delete(core("resourcequotas"), quotaNamespace, "of-the-team") }},
		{"make a validation pod", "", func() error { return a.create(core("pods"), agentNamespace, pod("berth-validate-x", "default")) }},
		{"make another pod", ofPolicy, func() error { return a.create(core("pods"), agentNamespace, pod("x", "default")) }},
		{"make a pod with its own account", ofPolicy, func() error { return a.create(core("pods"), agentNamespace, pod("berth-validate-x", "berth-operator")) }},
		{"make a pod with the agent's account", ofPolicy, func() error { return a.create(core("pods"), agentNamespace, pod("berth-validate-x", "berth-agent")) }},
		{"make a pod elsewhere", "cannot create resource", func() error { return a.create(core("pods"), quotaNamespace, pod("berth-validate-x", "default")) }},
		{"end an agent", "", func() error { return a.delete(core("pods"), agentNamespace, agent) }},
		{"end a pod of another component", ofPolicy, func() error { return a.delete(core("pods"), agentNamespace, operator) }},
		{"read a Secret", "cannot get resource", func() error {
			_, err := a.api.Resource(core("secrets")).Namespace(agentNamespace).Get(t.Context(), "any", metav1.GetOptions{})
			return err
		}},
		{"delete a Node", "cannot delete resource", func() error { return a.delete(core("nodes"), "", i.Nodes()[0].Name()) }},
	} {
		err := attempt.do()
		switch {
		case attempt.want == "" && err != nil:
			t.Errorf("%s: %v, want it allowed", attempt.name, err)
		case attempt.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), attempt.want)):
			t.Errorf("%s: %v, want a refusal with %q", attempt.name, err, attempt.want)
		}
	}
}
