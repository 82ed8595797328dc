package connect

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-gpu/berth/internal/cli/usage"
)

// DefaultTimeout bounds each request, so that an API server that does not answer delays a command on a node by seconds, not minutes.
const DefaultTimeout = 10 * time.Second

// A command can make some requests per node. The defaults of client-go, 5 and 10, would delay it by minutes in a large cluster.
const (
	requestsPerSecond = 50
	requestBurst      = 100
)

const (
	flagKubeconfig = "kubeconfig"
	flagNamespace  = "namespace"
)

// Flags are the flags about the connection to an API server.
type Flags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	set        *pflag.FlagSet
	// allNamespaces is -A.
	allNamespaces bool
}

// info describes a flag by its name in kubectl.
func info(name, text string) clientcmd.FlagInfo {
	return clientcmd.FlagInfo{LongName: name, Description: text}
}

// flagInfos returns the flags and how they are described.
func flagInfos() clientcmd.ConfigOverrideFlags {
	server := info(clientcmd.FlagAPIServer, "the address of the API server, such as https://10.0.0.1:6443")
	server.ShortName = "s"
	return clientcmd.ConfigOverrideFlags{
		CurrentContext: info(clientcmd.FlagContext, "the context of the kubeconfig"),
		ContextOverrideFlags: clientcmd.ContextOverrideFlags{
			ClusterName:  info(clientcmd.FlagClusterName, "the cluster of the kubeconfig"),
			AuthInfoName: info(clientcmd.FlagAuthInfoName, "the user of the kubeconfig"),
		},
		ClusterOverrideFlags: clientcmd.ClusterOverrideFlags{
			APIServer:             server,
			CertificateAuthority:  info(clientcmd.FlagCAFile, "the file with the certificate of the authority that signed the server's"),
			InsecureSkipTLSVerify: info(clientcmd.FlagInsecure, "do not check the server's certificate, which makes the connection insecure"),
			TLSServerName:         info(clientcmd.FlagTLSServerName, "the name that the server's certificate must have (default: that of the address)"),
		},
		AuthOverrideFlags: clientcmd.AuthOverrideFlags{
			ClientCertificate: info(clientcmd.FlagCertFile, "the file with the client certificate"),
			ClientKey:         info(clientcmd.FlagKeyFile, "the file with the key of the client certificate"),
			Token:             info(clientcmd.FlagBearerToken, "the bearer token"),
			Impersonate:       info(clientcmd.FlagImpersonate, "the user to act as, which may be a service account, system:serviceaccount:NAMESPACE:NAME"),
			ImpersonateUID:    info(clientcmd.FlagImpersonateUID, "the UID to act as"),
			ImpersonateGroups: info(clientcmd.FlagImpersonateGroup, "a group to act as; can be repeated"),
		},
	}
}

// AddTo adds the flags to a command, but for those whose names the command uses itself.
func (f *Flags) AddTo(set *pflag.FlagSet, without ...string) {
	f.set = set
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.StringVar(&f.kubeconfig, flagKubeconfig, "", "the kubeconfig file (default: KUBECONFIG, ~/.kube/config, then the pod's service account)")
	clientcmd.BindOverrideFlags(&f.overrides, own, flagInfos())
	own.Var((*timeoutValue)(&f.overrides.Timeout), clientcmd.FlagTimeout,
		fmt.Sprintf("how long one request may take, such as 30s or 2m; 0 is without a limit (default %s)", DefaultTimeout))
	own.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(without, flag.Name) {
			set.AddFlag(flag)
			usage.SetGroup(flag, usage.Connection)
		}
	})
}

// AddNamespace adds -n, with what it means for the command.
func (f *Flags) AddNamespace(set *pflag.FlagSet, text string) {
	clientcmd.FlagInfo{LongName: flagNamespace, ShortName: "n", Description: text}.
		BindTransformingStringFlag(set, &f.overrides.Context.Namespace, clientcmd.RemoveNamespacesPrefix)
}

// AddNamespaces adds -n and -A to a command that is about all namespaces unless -n names one; text says what is of a namespace.
func (f *Flags) AddNamespaces(set *pflag.FlagSet, text string) {
	f.AddNamespace(set, text+" (default: all namespaces)")
	set.BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "all namespaces, which is the default")
}

// CheckNamespaces returns an error for -n together with -A.
func (f *Flags) CheckNamespaces() error {
	if f.allNamespaces && f.Chosen() != "" {
		return fmt.Errorf("-n %s is one namespace and -A is all; leave out the one or the other", f.Chosen())
	}
	return nil
}

// timeoutValue is a timeout as clientcmd reads it: a duration, or a number of seconds.
type timeoutValue string

func (v *timeoutValue) String() string { return string(*v) }
func (v *timeoutValue) Type() string   { return "timeout" }
func (v *timeoutValue) Set(text string) error {
	if limit, err := clientcmd.ParseTimeout(text); err != nil || limit < 0 {
		return errors.New("want a duration, such as 30s or 2m, or 0 for none")
	}
	*v = timeoutValue(text)
	return nil
}

// Named returns the flags that name a server or a user and that were given, such as "--context dev", in the order of their names.
// Of --token it has no value.
func (f *Flags) Named() []string {
	var named []string
	f.set.Visit(func(flag *pflag.Flag) {
		switch {
		case usage.GroupOf(flag) != usage.Connection || flag.Name == clientcmd.FlagTimeout:
		case flag.Name == clientcmd.FlagBearerToken || flag.Value.Type() == "bool":
			named = append(named, "--"+flag.Name)
		default:
			named = append(named, "--"+flag.Name+" "+strings.Trim(flag.Value.String(), "[]"))
		}
	})
	return named
}

// Given reports whether the user named a server or a user. A failure to connect is then an error, not a source that is left out.
func (f *Flags) Given() bool { return len(f.Named()) > 0 }

func (f *Flags) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &f.overrides)
}

// errNone says that nothing names an API server.
var errNone = errors.New("there is no kubeconfig: not given with --kubeconfig, in KUBECONFIG or in ~/.kube/config")

// Config returns the connection that the flags, the kubeconfig or the pod's service account describe, or errNone.
func (f *Flags) Config() (*rest.Config, error) {
	loader := f.loader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, err
	}
	config, err := loader.ClientConfig()
	switch {
	case len(raw.Clusters) == 0 && f.overrides.ClusterInfo.Server == "" && (clientcmd.IsEmptyConfig(err) || errors.Is(err, rest.ErrNotInCluster)):
		return nil, errNone
	case err != nil:
		return nil, err
	}
	config = rest.CopyConfig(config)
	// Of a pod's service account, clientcmd does not take whom to act as.
	if as := f.overrides.AuthInfo; config.Impersonate.UserName == "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: as.Impersonate, UID: as.ImpersonateUID, Groups: as.ImpersonateGroups}
	}
	switch {
	case f.set.Changed(clientcmd.FlagTimeout):
		if config.Timeout, err = clientcmd.ParseTimeout(f.overrides.Timeout); err != nil {
			return nil, err
		}
	case config.Timeout == 0:
		config.Timeout = DefaultTimeout
	}
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// WatchConfig is Config for watches, which end only when the user says so with --request-timeout.
func (f *Flags) WatchConfig() (*rest.Config, error) {
	config, err := f.Config()
	if err == nil && !f.set.Changed(clientcmd.FlagTimeout) {
		config.Timeout = 0
	}
	return config, err
}

// Namespace returns the namespace of -n, of the context, or default.
func (f *Flags) Namespace() string {
	namespace, _, err := f.loader().Namespace()
	if err != nil || namespace == "" {
		return "default"
	}
	return namespace
}

// Chosen returns the namespace of -n, or nothing.
func (f *Flags) Chosen() string { return f.overrides.Context.Namespace }

// Fix says what to do when no API server was found with the flags.
func (f *Flags) Fix() string {
	for _, one := range [...]struct{ name, fix string }{
		{clientcmd.FlagContext, "correct --context (kubectl config get-contexts lists the contexts)"},
		{clientcmd.FlagClusterName, "correct --cluster (kubectl config get-clusters lists the clusters)"},
		{clientcmd.FlagAuthInfoName, "correct --user (kubectl config get-users lists the users)"},
		{clientcmd.FlagAPIServer, "correct --server, such as https://10.0.0.1:6443"},
		{flagKubeconfig, "correct --kubeconfig or its file"},
	} {
		if f.set.Changed(one.name) {
			return one.fix
		}
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return "correct the variable KUBECONFIG or its file"
	}
	return "give --kubeconfig FILE"
}
