package complete

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cli/usage"
)

// Limit is how long a shell waits for suggestions.
const Limit = 2 * time.Second

// Reader reads what can be suggested: an API server, or this machine.
type Reader interface {
	// Namespace is the namespace of -n, or of the kubeconfig's context.
	Namespace() string
	// Local reports whether the flags select this machine, whose GPUs are then meant without a name of a node.
	Local() bool
	// Kubeconfig reads the names that the kubeconfig has.
	Kubeconfig() (*Kubeconfig, error)
	// Names lists the names of the objects of a kind, of one namespace or, if it is empty, of the cluster.
	Names(ctx context.Context, kind schema.GroupVersionResource, namespace string) ([]string, error)
	// Gangs lists the names of the gangs of a namespace that its pods name: all, or those with a PodGroup.
	Gangs(ctx context.Context, namespace string, withGroup bool) ([]string, error)
	// GPUs lists the GPUs and MIG devices of the cluster, or of this machine.
	GPUs(ctx context.Context) ([]GPU, error)
	// AgentGPUs lists the GPUs of this node's agent.
	AgentGPUs(ctx context.Context) ([]GPU, error)
	// Layouts lists the MIG layouts of a node, or of this machine.
	Layouts(ctx context.Context, node string) ([]string, error)
}

// Kubeconfig has the names that a kubeconfig has.
type Kubeconfig struct {
	Contexts []string
	Clusters []string
	Users    []string
}

// GPU is a GPU or a MIG device.
type GPU struct {
	UUID string
	// Index is the vendor's number, such as 3; empty for a MIG device.
	Index string
	// Text describes it: its node, model and holder.
	Text string
}

// Deps are the dependencies of [Prepare].
type Deps struct {
	// Open returns a reader for a command with the flags that were given to it. It must not block.
	Open func(cmd *cobra.Command) Reader
	// Limit is how long a suggestion may take; 0 means [Limit].
	Limit time.Duration
}

// request is what a shell asks: the words before, and the beginning of the word to complete.
type request struct {
	args  []string
	begin string
}

// lister lists candidates; those that do not begin as the word does are left out later.
type lister func(ctx context.Context, from Reader, r request) []string

// Prepare adds completion to a program and to all its commands. A flag that has a completion already keeps it.
func Prepare(root *cobra.Command, deps Deps) {
	if deps.Limit == 0 {
		deps.Limit = Limit
	}
	p := preparation{deps: deps, arguments: arguments(), flags: flags()}
	p.prepare(root, "")
}

// preparation adds completion to commands from the two tables.
type preparation struct {
	deps      Deps
	arguments map[string]completion
	flags     map[string]completion
}

func (p preparation) prepare(cmd *cobra.Command, path string) {
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 {
		cmd.ValidArgsFunction = p.arguments[path].function(p.deps)
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if _, known := cmd.GetFlagCompletionFunc(flag.Name); known {
			return
		}
		found, ok := p.flags[path+" --"+flag.Name]
		if words := usage.Values(flag); !ok && len(words) > 0 {
			found, ok = values(words...), true
		}
		if !ok {
			found = p.flags["--"+flag.Name]
		}
		// The only error is that there is a completion already.
		_ = cmd.RegisterFlagCompletionFunc(flag.Name, found.function(p.deps))
	})
	for _, child := range cmd.Commands() {
		p.prepare(child, strings.TrimSpace(path+" "+child.Name()))
	}
}

// completion says how a word is completed. The zero value suggests nothing, not even the names of files.
type completion struct {
	// list lists candidates.
	list lister
	// files completes with the names of files, with these extensions if there are any; folders with the names of folders.
	files      bool
	extensions []string
	folders    bool
	// most is the number of arguments that are completed; 0 is any number.
	most int
}

func (c completion) function(deps Deps) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case c.most > 0 && len(args) >= c.most:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case c.folders:
			return nil, cobra.ShellCompDirectiveFilterDirs
		case c.files && len(c.extensions) > 0:
			return c.extensions, cobra.ShellCompDirectiveFilterFileExt
		case c.files:
			return nil, cobra.ShellCompDirectiveDefault
		case c.list == nil:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return finished(bounded(cmd, deps, c.list, request{args, begin}), begin)
	}
}

// bounded lists candidates for as long as the limit allows. What reads on after that ends with the program.
func bounded(cmd *cobra.Command, deps Deps, list lister, r request) []string {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, deps.Limit)
	defer cancel()
	listed := make(chan []string, 1)
	go func() { listed <- list(ctx, deps.Open(cmd), r) }()
	select {
	case names := <-listed:
		return names
	case <-ctx.Done():
		return nil
	}
}

// finished keeps the candidates that begin as the word does, in order. After one that ends with a slash or an equals sign the word goes
// on, so the shell adds no space.
func finished(names []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	names = slices.DeleteFunc(printable(names), func(name string) bool { return !strings.HasPrefix(name, begin) })
	slices.SortStableFunc(names, compareNumbers)
	names = slices.Compact(names)
	if len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !strings.HasSuffix(name, "/") && !strings.HasSuffix(name, "=") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return names, directive | cobra.ShellCompDirectiveKeepOrder
}

// printable returns the candidates with clean descriptions. A word with control characters is left out: a shell would print it as it is.
func printable(names []string) []string {
	var kept []string
	for _, name := range names {
		word, text, _ := strings.Cut(name, "\t")
		if term.Clean(word) == word {
			kept = append(kept, line(word, term.Clean(text)))
		}
	}
	return kept
}

// compareNumbers orders words, and numbers by their value before them.
func compareNumbers(a, b string) int {
	a, _, _ = strings.Cut(a, "\t")
	b, _, _ = strings.Cut(b, "\t")
	number := func(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
	switch {
	case number(a) && number(b) && len(a) != len(b):
		return len(a) - len(b)
	case number(a) != number(b):
		return map[bool]int{true: -1, false: 1}[number(a)]
	}
	return strings.Compare(a, b)
}

// values completes with words that are known.
func values(words ...string) completion {
	return completion{list: func(context.Context, Reader, request) []string { return words }}
}
