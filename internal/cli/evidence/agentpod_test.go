package evidence

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"

	"k8s.io/client-go/kubernetes/scheme"
)

// TestMetricsThatNoProxyReads checks that the error names the value of the chart because of which the API server's proxy reads no metrics.
func TestMetricsThatNoProxyReads(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // part of the error; "" where the API server is asked
	}{
		"the default":          {args: []string{"--metrics-listen=:9835", "--metrics-auth=none"}},
		"an older chart":       {args: []string{"--metrics-listen=:9835"}},
		"all addresses":        {args: []string{"--metrics-listen=0.0.0.0:9835"}},
		"a token":              {args: []string{"--metrics-listen=:9835", "--metrics-auth=kubernetes"}, want: "metrics.auth is kubernetes"},
		"the loopback address": {args: []string{"--metrics-listen=127.0.0.1:9835"}, want: "agent.metricsAddress is 127.0.0.1"},
		"that of IPv6":         {args: []string{"--metrics-listen=[::1]:9835"}, want: "agent.metricsAddress is ::1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked := false
			client := &restfake.RESTClient{NegotiatedSerializer: scheme.Codecs.WithoutConversion(), Client: restfake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
				asked = true
				return nil, &url.Error{}
			})}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-agent-x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Args: tc.args, Ports: []corev1.ContainerPort{{Name: metricsPort, ContainerPort: 9835}},
			}}}}
			_, err := API{REST: rest.Interface(client)}.AgentMetrics(t.Context(), pod)
			if err == nil || tc.want != "" && !strings.Contains(err.Error(), tc.want) || asked != (tc.want == "") {
				t.Errorf("the API server was asked: %v; the error is %v, want %q", asked, err, tc.want)
			}
		})
	}
}
