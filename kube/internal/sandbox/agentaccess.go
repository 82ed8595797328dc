package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-gpu/berth/api/crds"
)

// The namespace that the documents name, and the account in the chart.
const (
	agentNamespace = "berth-system"
	agentAccount   = "berth-agent"
)

// agentTokenLife exceeds the lifetime of any sandbox.
const agentTokenLife = 365 * 24 * time.Hour

// giveAgentsRights applies the chart without its pods: [Node.StartAgent] applies the agent's DaemonSet for each node, and the definitions
// are applied here in place of the operator. Agents that run as processes of the host have the account, the permissions and the policies
// of those in pods.
func (c *Cluster) giveAgentsRights(ctx context.Context) error {
	if err := c.renderChart(ctx); err != nil {
		return fmt.Errorf("give agents their rights: %w", err)
	}
	definitions, err := decodeObjects(bytes.NewReader(crds.GPUNodes()))
	if err != nil {
		return fmt.Errorf("give agents their rights: %w", err)
	}
	objects, err := c.Rendered()
	if err != nil {
		return fmt.Errorf("give agents their rights: %w", err)
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": agentNamespace, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}}
	objects = slices.Concat(definitions, []*unstructured.Unstructured{namespace}, objects)
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "DaemonSet" || o.GetKind() == "Deployment"
	})
	if err := c.ApplyObjects(ctx, objects...); err != nil {
		return fmt.Errorf("give agents their rights: %w", err)
	}
	for _, n := range c.Nodes() {
		if err := n.writeAgentKubeconfig(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) agentKubeconfigPath() string { return n.c.pkiPath("agent-" + n.name + ".conf") }

// writeAgentKubeconfig gives the node's agent a token that is bound to the Node, like the token of a pod: the API
// server passes the name of the Node to the policies.
func (n Node) writeAgentKubeconfig(ctx context.Context) error {
	node, err := n.c.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("make token of the agent of %s: %w", n.name, err)
	}
	seconds := int64(agentTokenLife.Seconds())
	token, err := n.c.client.CoreV1().ServiceAccounts(agentNamespace).CreateToken(ctx, agentAccount,
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make token of the agent of %s: %w", n.name, err)
	}
	ca, err := os.ReadFile(n.c.pkiPath("ca.crt"))
	if err != nil {
		return fmt.Errorf("make token of the agent of %s: %w", n.name, err)
	}
	const at = "berth-sandbox"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{at: {Server: apiServerInside, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{agentAccount: {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{at: {Cluster: at, AuthInfo: agentAccount}},
		CurrentContext: at,
	}
	if err := clientcmd.WriteToFile(config, n.agentKubeconfigPath()); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// AdminKubeconfigInside returns an administrator's kubeconfig for programs that run on a node.
func (c *Cluster) AdminKubeconfigInside() string { return c.pkiPath("admin.conf") }
