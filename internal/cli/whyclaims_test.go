package cli

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-gpu/berth/internal/core/why"
)

// TestWhyWithoutDRA: an API server that does not serve resource.k8s.io/v1, or does not let the user list it, changes no answer about what
// device plugins serve, and gives no wrong answer about the rest.
func TestWhyWithoutDRA(t *testing.T) {
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}
	missing, forbidden := apierrors.NewNotFound(resource, ""), apierrors.NewForbidden(resource, "", errors.New(`User "ada" cannot list resource`))
	const hidden = "Why the pod waits cannot be seen: this user may not list "
	tests := map[string]struct {
		situation string
		err       error
		// want begins the answer or the error; empty for the answer without the error.
		want string
	}{
		"not served, a device plugin":  {"all-in-use", missing, ""},
		"not served, no device plugin": {"no-gpu-nodes", missing, ""},
		"not served, claims":           {"dra-in-use", missing, "why: the API server does not serve resource.k8s.io/v1, which Kubernetes 1.34 and later have by default\nfix: use a cluster with that API;"},
		"forbidden, a device plugin":   {"all-in-use", forbidden, ""},
		"forbidden, no device plugin":  {"no-gpu-nodes", forbidden, hidden + "DeviceClasses."},
		"forbidden, no nodes":          {"no-nodes", forbidden, ""},
		"forbidden, claims":            {"dra-in-use", forbidden, hidden + "what its ResourceClaims need."},
		"an error, a device plugin":    {"all-in-use", apierrors.NewInternalError(errors.New("etcd is away")), "why: list deviceclasses: Internal error occurred: etcd is away"},
		"an error, claims":             {"dra-in-use", apierrors.NewInternalError(errors.New("etcd is away")), "why: list resourceslices: Internal error occurred: etcd is away"},
		"not known, no device plugin":  {"no-gpu-nodes", apierrors.NewUnauthorized("who are you"), "why: list deviceclasses: who are you\nfix: renew the credentials"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := readSituation(t, "testdata/why/"+tc.situation+".yaml")
			client := s.client()
			client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.GetResource().Group == resource.Group, nil, tc.err
			})
			question := whyQuestion{kind: kindPodOnly, namespace: "ml", name: "train"}
			answer, err := explainWhy(t.Context(), client, question, time.Date(2026, 11, 24, 6, 0, 0, 0, time.UTC))
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			default:
				got = answer.Sentence
			}
			if tc.want != "" {
				if isHidden := err == nil && answer.Code == string(why.Hidden); !strings.HasPrefix(got, tc.want) || isHidden != strings.HasPrefix(tc.want, hidden) {
					t.Errorf("got %s\nwant %s", got, tc.want)
				}
				return
			}
			golden, readError := os.ReadFile("testdata/why/" + tc.situation + ".golden")
			if err != nil || readError != nil {
				t.Fatal(err, readError)
			}
			var text strings.Builder
			if err := whyText(&text, answer); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), answer.Code+"\n\n"+text.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
