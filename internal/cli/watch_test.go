package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-gpu/berth/api/v1alpha1"
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
			if diff := cmp.Diff(tc.want, firstLines(t, config, tc.args, len(tc.want))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// firstLines returns the first lines that a command prints which ends only then.
func firstLines(t *testing.T, config, args string, count int) (got []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	code := make(chan int, 1)
	var problems strings.Builder
	go func() {
		code <- Run(ctx, Deps{Out: in, Err: &problems, Name: "berth", KubeletDir: "none"}, append(strings.Fields(args), "--kubeconfig", config))
		in.Close()
	}()
	for lines := bufio.NewScanner(out); len(got) < count && lines.Scan(); {
		got = append(got, strings.Join(strings.Fields(lines.Text()), " "))
	}
	stop()
	if ended := <-code; ended != ExitOK {
		t.Errorf("the exit code is %d: %s", ended, problems.String())
	}
	return got
}

// TestWatchBeforeTheStack: a node without a gate waits for the operator until this has made the GPUStack.
func TestWatchBeforeTheStack(t *testing.T) {
	node := watchedNode("a", "", "Healthy", "")
	node["status"] = map[string]any{"driver": map[string]any{"version": "570.1"}}
	tests := map[string]struct {
		stacks []any
		want   string
	}{
		"none":     {[]any{}, "a - 570.1 - has no gate yet: the operator has not made the GPUStack"},
		"another":  {[]any{map[string]any{"metadata": map[string]any{"name": "other"}}}, "a - 570.1 - has no gate yet: the operator has not made the GPUStack"},
		"made":     {[]any{map[string]any{"metadata": map[string]any{"name": "default"}}}, "a - 570.1 - the gate is off"},
		"no kinds": {nil, "a - 570.1 - the gate is off"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config := serveFleet(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				items := []any{node}
				switch {
				case r.URL.Query().Get("watch") != "":
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					return
				case strings.HasSuffix(r.URL.Path, "/gpustacks"):
					items = tc.stacks
				}
				if items == nil {
					http.NotFound(w, r)
					return
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}, "items": items})
			}))
			if diff := cmp.Diff([]string{tc.want}, firstLines(t, config, "status -w --no-headers", 1)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestStackWait: the GPUStacks are read once per interval at most, and not again once there is one.
func TestStackWait(t *testing.T) {
	made := v1alpha1.GPUStack{}
	made.Name = v1alpha1.GPUStackName
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	reads, found := 0, []v1alpha1.GPUStack(nil)
	var err error
	wait := stackWait{clock: clock, list: func(context.Context) ([]v1alpha1.GPUStack, error) { reads++; return found, err }}
	steps := []struct {
		after time.Duration
		err   error
		found []v1alpha1.GPUStack
		reads int
		want  bool
	}{
		{0, nil, nil, 1, true},
		{stackInterval - 1, nil, nil, 1, true},
		{1, errors.New("away"), nil, 2, false},
		{stackInterval, nil, nil, 3, true},
		{stackInterval, nil, []v1alpha1.GPUStack{made}, 4, false},
		{stackInterval, nil, nil, 4, false},
	}
	for i, step := range steps {
		clock.SetTime(clock.Now().Add(step.after))
		err, found = step.err, step.found
		if got := wait.missing(t.Context()); got != step.want || reads != step.reads {
			t.Errorf("step %d: %v after %d reads, want %v after %d", i, got, reads, step.want, step.reads)
		}
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
