// Package command has the command line of berth-operator.
//
// It guarantees that the log of the operator and of the libraries that it is made of is one: log/slog, in text form. It must not import
// packages of Berth but the operator.
package command

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-gpu/berth/internal/cluster/operator"
)

// Deps are what the command line is made with.
type Deps struct {
	Out io.Writer
	Err io.Writer
}

// flags are the flags of berth-operator.
type flags struct {
	kubeconfig string
	namespace  string
	elect      bool
	probes     string
	metrics    string
	auth       string
	verbose    bool
}

// The values of --metrics-auth.
const (
	authNone       = "none"
	authKubernetes = "kubernetes"
)

// New returns the command line of berth-operator.
func New(deps Deps) *cobra.Command {
	f := &flags{}
	root := &cobra.Command{
		Use:   "berth-operator",
		Short: "Keep what Berth needs in a cluster: definitions, quotas, and the validation of nodes",
		Long: `berth-operator runs once per cluster, as a Deployment. It keeps the
CustomResourceDefinitions of Berth and the DeviceClasses that berth classes prints
equal to those of its own version: it creates, upgrades and restores them. Edits of
others are undone, logged, and reported as Events of the object. While nothing
differs it writes nothing.

A DeviceClass that somebody else made under the same name is left alone and reported.
A cluster without resource.k8s.io/v1 gets no DeviceClass until it serves that API.

It keeps the GPUStack default equal to the ConfigMap berth-stack of the release, and
counts there how many nodes with GPUs are validated. A node whose gate waits for its
validation gets a NodeOperation and a pod that uses each of its GPUs; both go when the
agent of the node has read the result. A validation that failed stays visible
(kubectl get nodeoperations) and is attempted again.

It ends with an error, before it writes anything, when a definition in the cluster is
of a newer version than its own: an older definition would drop fields of the stored
objects.

Of several replicas one acts: the one that holds the Lease berth-operator. It serves
/healthz and /readyz for probes, and /metrics for Prometheus.`,
		Example: `  # In a pod, with its service account and namespace
  berth-operator

  # On a laptop, against the cluster of a kubeconfig, without a Lease
  berth-operator --kubeconfig ~/.kube/config --namespace berth-system --leader-elect=false

  # The same, beside another program that listens on 8080 and 8081
  berth-operator --kubeconfig ~/.kube/config --namespace berth-system \
    --probe-listen 127.0.0.1:9081 --metrics-listen 127.0.0.1:9080`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, deps)
		},
	}
	root.SetOut(deps.Out)
	root.SetErr(deps.Err)
	set := root.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "connect to the API server with the kubeconfig `FILE` (default: the pod's service account)")
	set.StringVar(&f.namespace, "namespace", "", "keep the Lease and the validation pods in the namespace `NAME` of the release (default: $POD_NAMESPACE, then the namespace of the pod's service account)")
	set.BoolVar(&f.elect, "leader-elect", true, "act only while holding the Lease berth-operator; without it run only one replica")
	set.StringVar(&f.probes, "probe-listen", ":8081", "serve /healthz and /readyz on `ADDRESS`; empty for no address")
	set.StringVar(&f.metrics, "metrics-listen", ":8080", "serve /metrics on `ADDRESS`; empty for no address")
	set.StringVar(&f.auth, "metrics-auth", authNone, "who may read /metrics: none asks for nothing; kubernetes serves it with TLS to clients whose token may get the nonResourceURL /metrics")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "log at level debug")
	return root
}

func (f *flags) run(cmd *cobra.Command, deps Deps) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if f.auth != authNone && f.auth != authKubernetes {
		return fmt.Errorf("--metrics-auth %s: want %s or %s", f.auth, authNone, authKubernetes)
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	handler := slog.NewTextHandler(deps.Err, &slog.HandlerOptions{Level: level})
	bridge := logr.FromSlogHandler(handler)
	log.SetLogger(bridge)
	klog.SetLogger(bridge)
	namespace, err := namespaceOf(f.namespace, os.Getenv("POD_NAMESPACE"), os.ReadFile)
	if err != nil {
		return err
	}
	api, err := access(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	identity, err := identityOf(f.kubeconfig)
	if err != nil {
		return err
	}
	return operator.Run(ctx, operator.Deps{API: api, Namespace: namespace, Identity: identity, LeaderElect: f.elect, ProbeListen: f.probes, MetricsListen: f.metrics,
		MetricsTokens: f.auth == authKubernetes, Clock: clock.RealClock{}, Log: slog.New(handler)})
}

// identityOf returns the name of this process as the holder of the Lease. In a pod it is the pod's: the container that a restart makes
// takes the Lease over at once, since the one before has ended by then. Elsewhere it has a random part, since several may run on one host.
func identityOf(kubeconfig string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the name of the host, under which the operator holds the Lease: %w", err)
	}
	if kubeconfig != "" {
		host += "_" + rand.Text()
	}
	return host, nil
}

// namespaceFile has the namespace of a pod's service account.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespaceOf returns the first namespace that is known: that of the flag, of the environment, or of the service account.
func namespaceOf(flag, environment string, read func(string) ([]byte, error)) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if environment != "" {
		return environment, nil
	}
	text, err := read(namespaceFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) == "" {
		return "", fmt.Errorf("find the operator's namespace: --namespace is not given, POD_NAMESPACE is not set, and %s has none "+
			"(use --namespace NAME, such as berth-system)", namespaceFile)
	}
	if err != nil {
		return "", fmt.Errorf("find the operator's namespace: %w (use --namespace NAME, such as berth-system)", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// A new cluster gets some 80 objects at once, each with a read and a write. client-go's own limits, 5 and 10, would take half a minute.
const (
	clientQPS   = 50
	clientBurst = 100
)

// access returns the API server and the operator's credentials.
func access(kubeconfig string) (*rest.Config, error) {
	to, err := config(kubeconfig)
	if err != nil {
		return nil, err
	}
	to.UserAgent, to.QPS, to.Burst = operator.Name, clientQPS, clientBurst
	return to, nil
}

func config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		to, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig: %w (correct the path or the file)", err)
		}
		return to, nil
	}
	to, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this process is not in a pod, and --kubeconfig is not given (use --kubeconfig FILE)")
	}
	if err != nil {
		return nil, fmt.Errorf("%w (check the pod's service account, or use --kubeconfig FILE)", err)
	}
	return to, nil
}
