package gpunode

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// request is a request that an API server received.
type request struct {
	Method string
	Path   string
	Query  string
	Type   string
}

// server responds by method and path; everything else is not found.
func server(t *testing.T, answers map[string]any) (dynamic.Interface, *[]request, *[]string) {
	var requests []request
	var bodies []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests = append(requests, request{r.Method, r.URL.Path, r.URL.Query().Encode(), r.Header.Get("Content-Type")})
		bodies = append(bodies, string(body))
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			answer = status(404, "NotFound")
		}
		if code, is := answer.(map[string]any)["code"].(int); is {
			w.WriteHeader(code)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	client, err := dynamic.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client, &requests, &bodies
}

func status(code int, reason string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
}

const (
	nodePath = "/apis/berth.dev/v1alpha1/gpunodes/node-0"
	crdPath  = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.berth.dev"
)

func TestObjectApplies(t *testing.T) {
	node := owned(Build("node-0", input()), "node-0", "uid-1")
	blob, _ := json.Marshal(node)
	var answer map[string]any
	_ = json.Unmarshal(blob, &answer)
	api, requests, bodies := server(t, map[string]any{
		"PATCH " + nodePath: answer,
		"GET " + nodePath:   answer,
		"GET /api/v1/nodes/node-0": map[string]any{"kind": "Node", "apiVersion": "v1",
			"metadata": map[string]any{"name": "node-0", "uid": "uid-1"}},
	})
	object := NewObject(api, "node-0")
	if err := object.Write(t.Context(), Build("node-0", input())); err != nil {
		t.Fatal(err)
	}
	want := []request{
		{Method: "GET", Path: "/api/v1/nodes/node-0"},
		{"PATCH", nodePath, "fieldManager=berth-agent&force=true", "application/apply-patch+yaml"},
	}
	if diff := cmp.Diff(want, *requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	var sent map[string]any
	if err := json.Unmarshal([]byte((*bodies)[1]), &sent); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(answer, sent); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if _, dated := sent["metadata"].(map[string]any)["creationTimestamp"]; dated {
		t.Error("the body sets creationTimestamp, which is the server's")
	}
	got, found, err := object.Read(t.Context())
	if err != nil || !found {
		t.Fatalf("Read: found %v, %v", found, err)
	}
	if diff := cmp.Diff(node, got); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
}

// TestCheckDefinition checks what the agent says of the definition, and that it only reads it.
func TestCheckDefinition(t *testing.T) {
	versioned := func(version string) map[string]any {
		return map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{
			"name": "gpunodes.berth.dev", "resourceVersion": "5", "annotations": map[string]any{"berth.dev/schema-version": version},
		}}
	}
	tests := map[string]struct {
		answers map[string]any
		// want is a part of the error; empty for none.
		want string
		err  error
	}{
		"absent":    {answers: map[string]any{}, want: "there is no definition of gpunodes.berth.dev: the operator applies it"},
		"same":      {answers: map[string]any{"GET " + crdPath: versioned("7")}},
		"newer":     {answers: map[string]any{"GET " + crdPath: versioned("8")}},
		"older":     {answers: map[string]any{"GET " + crdPath: versioned("3")}, want: "has schema version 3, and this agent writes version 7"},
		"unmarked":  {answers: map[string]any{"GET " + crdPath: versioned("")}, want: "has schema version 0"},
		"forbidden": {answers: map[string]any{"GET " + crdPath: status(403, "Forbidden")}, want: "allow get on customresourcedefinitions", err: ErrNotPermitted},
		"away":      {answers: map[string]any{"GET " + crdPath: status(503, "ServiceUnavailable")}, want: "read definition of gpunodes.berth.dev"},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			api, requests, _ := server(t, test.answers)
			_, err := CheckDefinition(t.Context(), api)
			if test.err != nil && !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			for _, r := range *requests {
				if r.Method != http.MethodGet {
					t.Errorf("the agent sent %s %s", r.Method, r.Path)
				}
			}
		})
	}
}
