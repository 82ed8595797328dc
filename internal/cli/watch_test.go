package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// watchedNode is a GPUNode with one GPU.
func watchedNode(name, gate, health, pod string) map[string]any {
	device := map[string]any{"uuid": "GPU-" + name, "index": 0, "product": "A100", "numaNode": 0, "health": map[string]any{"state": health}}
	if pod != "" {
		device["holders"] = []any{map[string]any{"kind": "Pod", "namespace": "ml", "pod": pod, "podUID": "u", "container": "c"}}
	}
	return map[string]any{"apiVersion": "berth.dev/v1alpha1", "kind": "GPUNode", "metadata": map[string]any{"name": name, "resourceVersion": "7"},
		"status": map[string]any{"gate": map[string]any{"state": gate}, "devices": []any{device}}}
}

// serveWatch serves two GPUNodes and, for a watch, changes of them. It returns a kubeconfig.
func serveWatch(t *testing.T) string {
	t.Helper()
	nodes := []any{watchedNode("b", "Held", "Healthy", ""), watchedNode("a", "Validated", "Healthy", "train")}
	changes := []any{watchedNode("a", "Validated", "Healthy", "train"), watchedNode("b", "Validated", "Healthy", "train"), watchedNode("b", "Held", "Unhealthy", "")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		switch {
		case r.URL.Path == "/api/v1/nodes":
			_ = encoder.Encode(map[string]any{"kind": "List", "apiVersion": "v1", "items": []any{map[string]any{"metadata": map[string]any{"name": "b"}}}})
		case r.URL.Query().Get("watch") == "":
			_ = encoder.Encode(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}, "items": nodes})
		default:
			for _, object := range changes {
				_ = encoder.Encode(map[string]any{"type": "MODIFIED", "object": object})
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c}}]}", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWatch: the table, and then the rows that change.
func TestWatch(t *testing.T) {
	config := serveWatch(t)
	tests := map[string]struct {
		args string
		want []string
	}{
		"gpus": {"gpus -w", []string{
			"NODE INDEX UUID MODEL MEMORY NUMA HEALTH OFFERED AS SHARING HELD BY",
			"a 0 GPU-a A100 - 0 Healthy - - ml/train",
			"b 0 GPU-b A100 - 0 Healthy - - -",
			"b 0 GPU-b A100 - 0 Healthy - - ml/train",
			"b 0 GPU-b A100 - 0 Unhealthy - - -",
		}},
		"gpus of a namespace on nodes": {"gpus -w -n ml -l pool=b --no-headers", []string{
			"b 0 GPU-b A100 - 0 Healthy - - ml/train",
			"b 0 GPU-b A100 - 0 Unhealthy - - -",
		}},
		"gpus of a node": {"gpus a -w -o wide", []string{
			"NODE INDEX UUID MODEL MEMORY NUMA HEALTH PCI BUS ID COMPUTE CLIQUE OFFERED AS SHARING HELD BY",
			"a 0 GPU-a A100 - 0 Healthy - - - - - ml/train",
		}},
		"status": {"status -w", []string{
			"NODE STATE DRIVER SINCE WAITS FOR",
			"a Validated - - validated",
			"b Held - - -",
			"b Validated - - validated",
			"b Held - - -",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			out, in := io.Pipe()
			code := make(chan int, 1)
			var problems strings.Builder
			go func() {
				code <- Run(ctx, Deps{Out: in, Err: &problems, Name: "berth", KubeletDir: "none"}, append(strings.Fields(tc.args), "--kubeconfig", config))
				in.Close()
			}()
			var got []string
			for lines := bufio.NewScanner(out); len(got) < len(tc.want) && lines.Scan(); {
				got = append(got, strings.Join(strings.Fields(lines.Text()), " "))
			}
			stop()
			if ended := <-code; ended != ExitOK {
				t.Errorf("the exit code is %d: %s", ended, problems.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestWatchRefused: what does not go with -w.
func TestWatchRefused(t *testing.T) {
	config := serveWatch(t)
	for args, want := range map[string]string{
		"gpus -w -o json":             "error: -w prints rows of a table: want -o table or -o wide, got -o json; see berth gpus --help\n",
		"gpus -w --sort-by=.uuid":     "error: -w prints rows as they change: leave out --sort-by; see berth gpus --help\n",
		"gpus -w --node-local":        "error: -w follows the objects of an API server: leave it out, or the flags that read this machine; berth top shows this node live; see berth gpus --help\n",
		"gpus a -w -l pool=b":         "error: -w: want the names of nodes or -l, not both; see berth gpus --help\n",
		"gpus c -w":                   "error: find GPUNode c: no such object\ndid you mean: a, b\n",
		"status -w --wait 1s":         "error: want --wait, which ends when each node is validated, or -w, not both; see berth status --help\n",
		"status -w -s http://[::1]:1": "connection refused\nfix: check that this API server runs and can be reached, or select another one with --kubeconfig, --context or --server\nwithout -w: berth status\n",
	} {
		var out, problems strings.Builder
		code := Run(t.Context(), Deps{Out: &out, Err: &problems, Name: "berth", KubeletDir: "none"}, append(strings.Fields(args), "--kubeconfig", config))
		if code == ExitOK || out.Len() > 0 || !strings.HasSuffix(problems.String(), want) {
			t.Errorf("berth %s: exit code %d, printed %q and the error\n%swant\n%s", args, code, out.String(), problems.String(), want)
		}
	}
}
