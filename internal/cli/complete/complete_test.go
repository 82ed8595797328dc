package complete_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-gpu/berth/internal/cli/complete"
	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// reader is a cluster with a fixed content.
type reader struct {
	local bool
	err   error
	// wait is closed when the cluster answers; nil answers at once.
	wait chan struct{}
}

func (r *reader) Namespace() string { return "ml" }
func (r *reader) Local() bool       { return r.local }
func (r *reader) Kubeconfig() (*complete.Kubeconfig, error) {
	return &complete.Kubeconfig{Contexts: []string{"prod", "test"}, Clusters: []string{"east"}, Users: []string{"admin"}}, r.err
}

func (r *reader) Names(_ context.Context, kind schema.GroupVersionResource, namespace string) ([]string, error) {
	if r.wait != nil {
		<-r.wait
	}
	return map[string][]string{
		"pods ml": {"train-1", "train-0", "notebook"}, "pods web": {"front"}, "namespaces ": {"ml", "tests", "web"},
		"gpunodes ": {"node-0", "node-1"}, "pods odd": {"a\x1b[2J", "a-0", "a\u202e"}, "resourceclaims ml": {"train"}, "resourceclaims web": {"other"}, "jobs ml": {"train"},
	}[kind.Resource+" "+namespace], r.err
}

func (r *reader) Gangs(_ context.Context, namespace string, withGroup bool) ([]string, error) {
	return map[string][]string{"ml false": {"batch", "train"}, "ml true": {"batch"}}[fmt.Sprint(namespace, " ", withGroup)], r.err
}

func (r *reader) GPUs(context.Context) ([]complete.GPU, error) {
	return []complete.GPU{{UUID: "GPU-a1", Index: "0", Text: "GPU 0 of node-0,\n H100"}, {UUID: "GPU-b2", Index: "1"}, {UUID: "MIG-c3"}}, r.err
}

func (r *reader) AgentGPUs(context.Context) ([]complete.GPU, error) {
	return []complete.GPU{{UUID: "GPU-a1", Index: "10"}, {UUID: "GPU-b2", Index: "9", Text: "Healthy"}, {UUID: "GPU-\x1b[2J", Index: "11", Text: "\x1b[2J ill"}}, r.err
}

func (r *reader) Layouts(_ context.Context, node string) ([]string, error) {
	return map[string][]string{"node-0": {"all-balanced", "all-1g.10gb"}, "": {"here"}}[node], r.err
}

// program has the commands whose arguments are completed.
func program() *cobra.Command {
	run := func(*cobra.Command, []string) error { return nil }
	command := func(use string, flags ...string) *cobra.Command {
		made := &cobra.Command{Use: use, RunE: run}
		for _, name := range flags {
			made.Flags().String(name, "", "")
		}
		return made
	}
	trace := command("trace", "namespace", "output", "context", "cluster", "user", "kubeconfig", "sim", "pid")
	usage.SetValues(trace.Flags().Lookup("output"), "table", "wide", "json", "jsonpath=", "custom-columns=")
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
	mig, simulator := command("mig"), command("sim")
	mig.AddCommand(command("plan"), command("layouts"))
	simulator.AddCommand(command("clear", "gpu"), command("create", "profile", "driver"), command("show", "output"), command("inject", "gpu", "throttle"))
	root.AddCommand(trace, command("why", "if-gone"), command("gpus"), command("topo"),
		command("reset"), command("status"), command("replay", "policy", "pods"), mig, simulator, complete.NewCommand())
	return root
}

// ask returns what cobra answers a shell: the lines, the last of which is the directive, and what it prints to standard error.
func ask(t *testing.T, from *reader, words ...string) ([]string, string) {
	t.Helper()
	// A busy machine needs longer than the default for some suggestions.
	return askWithin(t, time.Minute, from, words...)
}

func askWithin(t *testing.T, limit time.Duration, from *reader, words ...string) ([]string, string) {
	t.Helper()
	root := program()
	complete.Prepare(root, complete.Deps{Limit: limit, Open: func(*cobra.Command) complete.Reader { return from }})
	var out, errOut bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, words...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n"), errOut.String()
}

// The directives: no names of files and the order of Berth, the same without a space after the word, and those of files.
const (
	ordered = ":36"
	noSpace = ":38"
	nothing = ":4"
	file    = ":0"
	byName  = ":8"
	folder  = ":16"
)

func TestSuggestions(t *testing.T) {
	tests := map[string]struct {
		words []string
		from  reader
		want  []string
	}{
		"pods":                          {words: []string{"trace", "tr"}, want: []string{"train-0", "train-1", ordered}},
		"pods, claims: no word":         {words: []string{"trace", ""}, want: []string{"claim/", "notebook", "train-0", "train-1", ordered}},
		"pods: a namespace":             {words: []string{"trace", "we"}, want: []string{"web/", noSpace}},
		"pods: of a namespace":          {words: []string{"trace", "web/"}, want: []string{"web/front", ordered}},
		"pods: pods and a namespace":    {words: []string{"trace", "t"}, want: []string{"tests/", "train-0", "train-1", ordered}},
		"pods: with their kind":         {words: []string{"trace", "pod/n"}, want: []string{"pod/notebook", ordered}},
		"pods: names that would draw":   {words: []string{"trace", "odd/"}, want: []string{"odd/a-0", ordered}},
		"pods: no such namespace":       {words: []string{"trace", "none/"}, want: []string{ordered}},
		"claims":                        {words: []string{"trace", "claim/"}, want: []string{"claim/train", ordered}},
		"claims: the kind":              {words: []string{"trace", "cl"}, want: []string{"claim/", noSpace}},
		"claims: of a namespace":        {words: []string{"trace", "claim/web/"}, want: []string{"claim/web/other", ordered}},
		"GPUs":                          {words: []string{"trace", "GPU-"}, want: []string{"GPU-a1\tGPU 0 of node-0, H100", "GPU-b2", ordered}},
		"MIG devices":                   {words: []string{"trace", "M"}, want: []string{"MIG-c3", ordered}},
		"one argument only":             {words: []string{"trace", "train-0", ""}, want: []string{nothing}},
		"why: pods":                     {words: []string{"why", "n"}, want: []string{"notebook", ordered}},
		"why: kinds":                    {words: []string{"why", "jo"}, want: []string{"job/", "jobset/", noSpace}},
		"why: jobs":                     {words: []string{"why", "job/"}, want: []string{"job/train", ordered}},
		"why: gangs":                    {words: []string{"why", "gang/"}, want: []string{"gang/batch", "gang/train", ordered}},
		"why: pod groups":               {words: []string{"why", "podgroup/"}, want: []string{"podgroup/batch", ordered}},
		"why: gangs that are away":      {words: []string{"why", "gang/"}, from: reader{err: errors.New("forbidden")}, want: []string{ordered}},
		"why --if-gone":                 {words: []string{"why", "--if-gone", "web/"}, want: []string{"web/front", ordered}},
		"nodes":                         {words: []string{"gpus", ""}, want: []string{"node-0", "node-1", ordered}},
		"nodes: those that are left":    {words: []string{"gpus", "node-0", ""}, want: []string{"node-1", ordered}},
		"nodes: one":                    {words: []string{"topo", "node-0", ""}, want: []string{nothing}},
		"nodes: on this machine":        {words: []string{"topo", ""}, from: reader{local: true}, want: []string{ordered}},
		"layouts: the node first":       {words: []string{"mig", "plan", ""}, want: []string{"node-0", "node-1", ordered}},
		"layouts: of the node":          {words: []string{"mig", "plan", "node-0", "all-"}, want: []string{"all-1g.10gb", "all-balanced", ordered}},
		"layouts: of this machine":      {words: []string{"mig", "plan", ""}, from: reader{local: true}, want: []string{"here", ordered}},
		"layouts: of this machine, one": {words: []string{"mig", "plan", "here", ""}, from: reader{local: true}, want: []string{ordered}},
		"GPUs of the agent":             {words: []string{"reset", ""}, want: []string{"9\tHealthy", "10", "11\t\\x1b[2J ill", "GPU-a1", "GPU-b2\tHealthy", ordered}},
		"no arguments":                  {words: []string{"status", ""}, want: []string{nothing}},
		"formats of --output":           {words: []string{"trace", "--output", ""}, want: []string{"custom-columns=", "json", "jsonpath=", "table", "wide", ordered}},
		"formats that go on":            {words: []string{"trace", "--output", "jsonp"}, want: []string{"jsonpath=", noSpace}},
		"formats of one command":        {words: []string{"sim", "show", "--output", ""}, want: []string{"json", "table", ordered}},
		"contexts":                      {words: []string{"trace", "--context", "p"}, want: []string{"prod", ordered}},
		"clusters":                      {words: []string{"trace", "--cluster", ""}, want: []string{"east", ordered}},
		"users":                         {words: []string{"trace", "--user", ""}, want: []string{"admin", ordered}},
		"contexts that are away":        {words: []string{"trace", "--context", ""}, from: reader{err: errors.New("no such file")}, want: []string{ordered}},
		"namespaces":                    {words: []string{"trace", "--namespace", ""}, want: []string{"ml", "tests", "web", ordered}},
		"files":                         {words: []string{"trace", "--kubeconfig", ""}, want: []string{file}},
		"files by extension":            {words: []string{"replay", "--pods", ""}, want: []string{"csv", byName}},
		"folders":                       {words: []string{"trace", "--sim", ""}, want: []string{folder}},
		"a number":                      {words: []string{"trace", "--pid", ""}, want: []string{nothing}},
		"policies":                      {words: []string{"replay", "--policy", "pa"}, want: []string{"pack", ordered}},
		"faults":                        {words: []string{"sim", "inject", "x", "--throttle", "t"}, want: []string{"thermal", ordered}},
		"machines":                      {words: []string{"sim", "clear", ""}, want: []string{folder}},
		"shells":                        {words: []string{"completion", "b"}, want: []string{"bash", nothing}},
		"an API server that is away":    {words: []string{"trace", "tr"}, from: reader{err: errors.New("connection refused")}, want: []string{ordered}},
		"GPUs that are away":            {words: []string{"trace", "GPU-"}, from: reader{err: errors.New("connection refused")}, want: []string{ordered}},
		"layouts that are away":         {words: []string{"mig", "plan", "node-0", ""}, from: reader{err: errors.New("forbidden")}, want: []string{ordered}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, errOut := ask(t, &tc.from, tc.words...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("suggestions (-want +got):\n%s", diff)
			}
			if want := "Completion ended with directive: "; !strings.HasPrefix(errOut, want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("standard error, which scripts discard: %q; want only cobra's line about the directive", errOut)
			}
		})
	}
}

// TestSimulator: the profiles, and the GPUs of the machine that is given.
func TestSimulator(t *testing.T) {
	dir := t.TempDir() + "/node"
	machine, err := sim.CreateWith(dir, "t4x4", sim.Options{NoDeviceNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := machine.Show()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0\tTesla T4", "1\tTesla T4", "2\tTesla T4", "3\tTesla T4", "all\tall GPUs and the driver", "driver\tthe driver"}
	got, _ := ask(t, &reader{}, "sim", "clear", dir, "--gpu", "")
	got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, "GPU-") || line == ordered })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GPUs by number (-want +got):\n%s", diff)
	}
	got, _ = ask(t, &reader{}, "sim", "inject", dir, "--gpu", shown.GPUs[2].UUID[:12])
	if want := shown.GPUs[2].UUID + "\tTesla T4"; !slices.Contains(got, want) {
		t.Errorf("GPUs by UUID: %q; want %q among them", got, want)
	}
	if got, _ = ask(t, &reader{}, "sim", "inject", dir+"x", "--gpu", ""); len(got) != 1 {
		t.Errorf("of a machine that does not exist: %q", got)
	}
	got, _ = ask(t, &reader{}, "sim", "create", dir, "--profile", "")
	if len(got) != len(sim.Profiles())+1 || !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "a100x8-40g\t") }) {
		t.Errorf("profiles: %q; want all of sim.Profiles with their titles", got)
	}
}

// TestLimit: a cluster that does not answer gives no suggestion after the limit.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &reader{wait: make(chan struct{})}
		begun := time.Now()
		got, _ := askWithin(t, 0, from, "trace", "tr")
		if want := []string{ordered}; !slices.Equal(got, want) {
			t.Errorf("suggestions %q, want %q", got, want)
		}
		if took := time.Since(begun); took != complete.Limit {
			t.Errorf("it took %s, want %s", took, complete.Limit)
		}
		close(from.wait)
	})
}

// TestOwnCompletion: a flag that has a completion keeps it.
func TestOwnCompletion(t *testing.T) {
	root := program()
	trace, _, err := root.Find([]string{"trace"})
	if err != nil {
		t.Fatal(err)
	}
	own := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"wide"}, cobra.ShellCompDirectiveNoFileComp
	}
	if err := trace.RegisterFlagCompletionFunc("output", own); err != nil {
		t.Fatal(err)
	}
	complete.Prepare(root, complete.Deps{Open: func(*cobra.Command) complete.Reader { return &reader{} }})
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs([]string{cobra.ShellCompRequestCmd, "trace", "--output", ""})
	if err := root.Execute(); err != nil || out.String() != "wide\n:4\n" {
		t.Errorf("%q, %v; want the flag's own completion", out.String(), err)
	}
}

// TestScripts: each shell has a script that asks this program.
func TestScripts(t *testing.T) {
	tests := map[string]struct{ want string }{
		"bash":       {"__start_berth"},
		"zsh":        {"#compdef berth"},
		"fish":       {"function __berth_perform_completion"},
		"powershell": {"Register-ArgumentCompleter"},
		"kubectl":    {`exec kubectl-berth __complete "$@"`},
	}
	for shell, tc := range tests {
		t.Run(shell, func(t *testing.T) {
			root := program()
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetArgs([]string{"completion", shell})
			if err := root.Execute(); err != nil || !strings.Contains(out.String(), tc.want) {
				t.Errorf("%v; want %q in\n%s", err, tc.want, out.String())
			}
		})
	}
}
