package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiTimeout bounds each request to an API server, so that an unresponsive one delays a trace on the node by seconds,
// not minutes.
const apiTimeout = 10 * time.Second

// A removal makes some requests per node. The defaults of client-go, 5 and 10, would delay it by minutes in a large cluster.
const (
	apiQPS   = 50
	apiBurst = 100
)

// sources are the flags that say where facts are read.
type sources struct {
	places    evidence.Places
	nodeLocal bool
	sim       string
	driver    string
	hostRoot  string
	kube      kubeconfig
	// agentNamespace is the namespace of the agent's pods.
	agentNamespace string
	flags          *pflag.FlagSet
	openLibrary    func(driverRoot string) nvml.Interface
}

// localFlags lists the flags that select this node's own sources.
func localFlags() []string {
	return []string{"node-local", "host-root", "kubelet-dir", "cdi-dir", "containerd-state", "pod-logs", "proc",
		"cgroup-root", "agent", "sim", "driver-root"}
}

// hardwareAlone reports whether the flags select simulated hardware and no other source of a node.
func (s *sources) hardwareAlone() bool {
	return s.flags.Changed("sim") && !slices.ContainsFunc(localFlags(),
		func(name string) bool { return name != "sim" && s.flags.Changed(name) })
}

func (s *sources) bind(flags *pflag.FlagSet, deps Deps) {
	s.bindKube(flags)
	if s.openLibrary = deps.OpenLibrary; s.openLibrary == nil {
		s.openLibrary = nvidia.OpenLibrary
	}
	flags.BoolVar(&s.nodeLocal, "node-local", false, "read only this node's files and sockets, without an API server")
	flags.StringVar(&s.hostRoot, "host-root", "/",
		"where the node's root file system is mounted; the defaults of the other paths are below it")
	flags.StringVar(&s.places.KubeletDir, "kubelet-dir", orElse(deps.KubeletDir, evidence.DefaultKubeletDir),
		"the kubelet's root directory")
	flags.StringSliceVar(&s.places.CDIDirs, "cdi-dir", evidence.DefaultCDIDirs(), "the directories of CDI specs")
	flags.StringVar(&s.places.ContainerdState, "containerd-state", evidence.DefaultContainerdState, "containerd's state directory")
	flags.StringVar(&s.places.PodLogs, "pod-logs", evidence.DefaultPodLogs,
		"the directory of pod logs, whose names contain the names and UIDs of pods")
	flags.StringVar(&s.places.Proc, "proc", evidence.DefaultProc, "the host's /proc")
	flags.StringVar(&s.places.CgroupRoot, "cgroup-root", "", "the kubelet's cgroupRoot; needed only with several kubelets on one machine")
	flags.StringVar(&s.places.Agent, "agent", evidence.DefaultAgent, "the socket of this node's berth-agent")
	flags.StringVar(&s.agentNamespace, "agent-namespace", evidence.DefaultAgentNamespace,
		"the namespace of the agents' pods, for reading their metrics through the API server")
	flags.StringVar(&s.places.Node, "node-name", "", "the name of this node's Node object (default: the agent's)")
	flags.StringVar(&s.sim, "sim", "", "the directory of a simulated machine (berth sim create), whose driver, device nodes, /proc and /sys are scanned instead of this host's")
	flags.StringVar(&s.driver, "driver-root", "/", "the directory on the host below which the driver's files are")
	flags.StringVarP(&s.kube.namespace, "namespace", "n", "", "the pod's namespace (default: the context's)")
}

// bindKube binds the flags of a command that reads only the API server.
func (s *sources) bindKube(flags *pflag.FlagSet) {
	s.flags = flags
	flags.StringVar(&s.kube.file, "kubeconfig", "",
		"the kubeconfig file (default: KUBECONFIG, ~/.kube/config, then the pod's service account)")
	flags.StringVar(&s.kube.context, "context", "", "the context of the kubeconfig")
}

// kubeconfig has kubectl's flags. clientcmd reads them directly: cli-runtime would import kustomize, which imports
// plugin, and the linker then binds all symbols at program start, including those of an NVML that is not installed.
type kubeconfig struct{ file, context, namespace string }

func (k kubeconfig) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.file
	overrides := &clientcmd.ConfigOverrides{CurrentContext: k.context}
	overrides.Context.Namespace = k.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// local reads this node's sources if the flags select them or if this machine is a node; otherwise it returns nil.
func (s *sources) local(ctx context.Context) (*evidence.Local, error) {
	asked := slices.ContainsFunc(localFlags(), s.flags.Changed)
	if !asked && !s.onNode() {
		return nil, nil
	}
	places, err := s.rooted()
	if err != nil {
		return nil, err
	}
	if err := s.hardware(&places); err != nil {
		return nil, err
	}
	return places.Collect(ctx), nil
}

// localGPUs is local for a command about GPUs. If only simulated hardware is selected and it is not the agent's,
// nothing on this machine can hold it, so only the hardware is read.
func (s *sources) localGPUs(ctx context.Context) (*evidence.Local, error) {
	local, err := s.local(ctx)
	if err != nil || local == nil || local.OfAgent || !s.hardwareAlone() {
		return local, err
	}
	bare := evidence.Places{Node: s.places.Node, Vendors: vendors()}
	if err := s.hardware(&bare); err != nil {
		return nil, err
	}
	local = bare.Collect(ctx)
	local.Unread = slices.DeleteFunc(local.Unread, func(one trace.Unread) bool { return one.Source.Kind != trace.Hardware })
	return local, nil
}

// rooted returns the paths with the defaults below the host's root. Links are resolved within it: /var/run is a link to
// /run on the host's own root.
func (s *sources) rooted() (evidence.Places, error) {
	places := s.places
	places.Vendors = vendors()
	if s.hostRoot == "/" {
		return places, nil
	}
	beneath := func(flag string, paths ...*string) error {
		for _, path := range paths {
			if s.flags.Changed(flag) {
				continue
			}
			joined, err := securejoin.SecureJoin(s.hostRoot, *path)
			if err != nil {
				return fmt.Errorf("find %s beneath --host-root %s: %w", *path, s.hostRoot, err)
			}
			*path = joined
		}
		return nil
	}
	places.HostRoot = s.hostRoot
	places.CDIDirs = slices.Clone(places.CDIDirs)
	var dirs []*string
	for i := range places.CDIDirs {
		dirs = append(dirs, &places.CDIDirs[i])
	}
	return places, errors.Join(
		beneath("kubelet-dir", &places.KubeletDir), beneath("cdi-dir", dirs...),
		beneath("containerd-state", &places.ContainerdState), beneath("pod-logs", &places.PodLogs), beneath("agent", &places.Agent))
}

// vendors returns the vendors that this program knows. The sources of a node can have names of more, which its agent knows.
func vendors() trace.Vendors { return hardware.Traits() }

// onNode reports whether a kubelet has its state on this machine.
func (s *sources) onNode() bool {
	_, err := os.Stat(filepath.Join(s.places.KubeletDir, "device-plugins"))
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// hardware sets what to scan: the NVIDIA driver, or that of a simulated machine.
func (s *sources) hardware(places *evidence.Places) error {
	roots := nvidia.Roots{Driver: s.driver, Dev: s.driver, Proc: places.Proc, Sys: "/sys"}
	places.HardwareName = nvidia.Traits().Library
	if s.sim != "" {
		dir, err := filepath.Abs(s.sim)
		if err != nil {
			return fmt.Errorf("open simulated hardware: %w", err)
		}
		if roots, err = nvidia.RootsBelow(dir); err != nil {
			return fmt.Errorf("open simulated hardware: %w", err)
		}
		places.HardwareName, places.Simulated = "simulator "+s.sim, dir
	}
	places.Hardware = nvidia.New(nvidia.Deps{Library: s.openLibrary(roots.Driver), Roots: roots, Log: slog.New(slog.DiscardHandler)})
	return nil
}

// api returns the API server, or the reason why there is none.
func (s *sources) api() (*evidence.API, string) {
	if s.nodeLocal {
		return nil, "--node-local was given"
	}
	raw, err := s.kube.loader().RawConfig()
	if err != nil {
		return nil, err.Error()
	}
	var config *rest.Config
	if len(raw.Clusters) > 0 {
		config, err = s.kube.loader().ClientConfig()
	} else {
		config, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, "there is no kubeconfig: not given with --kubeconfig, in KUBECONFIG or in ~/.kube/config"
		}
	}
	if err != nil {
		return nil, err.Error()
	}
	config = rest.CopyConfig(config)
	if config.Timeout == 0 {
		config.Timeout = apiTimeout
	}
	config.QPS, config.Burst = apiQPS, apiBurst
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err.Error()
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	plain, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err.Error()
	}
	return &evidence.API{Client: client, REST: plain, AgentNamespace: orElse(s.agentNamespace, evidence.DefaultAgentNamespace)}, ""
}

// namespace returns the namespace of -n, of the kubeconfig's context, or default.
func (s *sources) namespace() string {
	namespace, _, err := s.kube.loader().Namespace()
	if err != nil || namespace == "" {
		return "default"
	}
	return namespace
}

// nothingToRead is the error of a command that found neither an API server nor a node.
func (s *sources) nothingToRead(what, noAPI, alternatives string) error {
	return &hintError{
		fmt.Errorf("%s: nothing to read: no API server (%s), and this machine is not a node (there is no %s)",
			what, noAPI, filepath.Join(s.places.KubeletDir, "device-plugins")),
		"fix: " + s.kubeconfigFix() + ", or run it as root on the node\nwhat works without an API server:\n" + alternatives,
	}
}

// kubeconfigFix says what to do when no API server was found with the flags.
func (s *sources) kubeconfigFix() string {
	switch {
	case s.kube.context != "":
		return "correct --context (kubectl config get-contexts lists the contexts)"
	case s.kube.file != "":
		return "correct --kubeconfig or its file"
	case os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "":
		return "correct the variable KUBECONFIG or its file"
	}
	return "give --kubeconfig FILE"
}

// apiError adds the fix to an error of the API server; instead names what works without one, or is empty.
func apiError(err error, instead string) error {
	var fixes []string
	_, unreachable := errors.AsType[*url.Error](err)
	switch {
	case apierrors.IsUnauthorized(err):
		fixes = append(fixes, "fix: renew the credentials in the kubeconfig")
	case apierrors.IsForbidden(err):
		fixes = append(fixes, "fix: ask for the right that the message names, or select another user with --kubeconfig or --context")
	case unreachable:
		fixes = append(fixes, "fix: check that this API server runs and can be reached, or select another one with --kubeconfig or --context")
	}
	if instead != "" {
		fixes = append(fixes, instead)
	}
	if len(fixes) == 0 {
		return err
	}
	return &hintError{err, strings.Join(fixes, "\n")}
}
