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

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/berth-gpu/berth/internal/cli/connect"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/usage"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// sources are the flags that say where facts are read.
type sources struct {
	places evidence.Places
	// containerdState is containerd's state directory, if the user has named it.
	containerdState string
	nodeLocal       bool
	sim             string
	driver          string
	hostRoot        string
	// connection has the flags about the API server.
	connection connect.Flags
	// agentNamespace is the namespace of the agent's pods.
	agentNamespace string
	// selector selects the nodes of an API server by their labels.
	selector    string
	flags       *pflag.FlagSet
	openLibrary func(driverRoot string) nvml.Interface
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
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.bindLocal(own, deps)
	own.VisitAll(func(flag *pflag.Flag) {
		flags.AddFlag(flag)
		usage.SetGroup(flag, usage.Source)
	})
}

// bindLocal binds the flags about a node's own sources, and about its agent.
func (s *sources) bindLocal(flags *pflag.FlagSet, deps Deps) {
	if s.openLibrary = deps.OpenLibrary; s.openLibrary == nil {
		s.openLibrary = nvidia.OpenLibrary
	}
	flags.BoolVar(&s.nodeLocal, "node-local", false, "read only this node's files and sockets, without an API server")
	flags.StringVar(&s.hostRoot, "host-root", "/",
		"where the node's root file system is mounted; the defaults of the other paths are below it")
	flags.StringVar(&s.places.KubeletDir, "kubelet-dir", deps.KubeletDir, "the kubelet's root directory (default: that of the running kubelet)")
	flags.StringSliceVar(&s.places.CDIDirs, "cdi-dir", nil, "the directories of CDI specs (default: those that the container runtime reads)")
	flags.StringVar(&s.containerdState, "containerd-state", "", "containerd's state directory (default: that of the running container runtime)")
	flags.StringVar(&s.places.PodLogs, "pod-logs", evidence.DefaultPodLogs,
		"the directory of pod logs, whose names contain the names and UIDs of pods")
	flags.StringVar(&s.places.Proc, "proc", evidence.DefaultProc, "the host's /proc")
	flags.StringVar(&s.places.CgroupRoot, "cgroup-root", "", "the kubelet's cgroupRoot; needed only with several kubelets on one machine")
	flags.StringVar(&s.places.Agent, "agent", evidence.DefaultAgent, "the socket of this node's berth-agent")
	flags.StringVar(&s.agentNamespace, "agent-namespace", evidence.DefaultAgentNamespace,
		"the namespace of the agents' pods, for reading their metrics through the API server")
	flags.StringVar(&s.places.Node, "node-name", "", "the name of this node's Node object (default: the agent's)")
	flags.StringVar(&s.sim, "sim", "", "the directory of a simulated machine (berth sim create), whose driver, device nodes, /proc and /sys are scanned instead of this host's")
	flags.StringVar(&s.driver, "driver-root", "", "the directory on the host below which the driver's files are (default: where its library is found)")
}

// bindKube binds the flags of a command that reads only the API server, but for those whose names the command uses itself.
func (s *sources) bindKube(flags *pflag.FlagSet, without ...string) {
	s.flags = flags
	s.connection.AddTo(flags, without...)
}

// bindSelector binds -l.
func (s *sources) bindSelector(flags *pflag.FlagSet) {
	flags.StringVarP(&s.selector, "selector", "l", "", "only the nodes with these labels, such as pool=a100 or 'zone in (a, b)'")
}

// bindNamespaces binds -n and -A; text says what is of a namespace.
func (s *sources) bindNamespaces(flags *pflag.FlagSet, text string) {
	s.connection.AddNamespaces(flags, text)
}

// checkChoice returns an error for wrong values of -l, -n and -A.
func (s *sources) checkChoice() error {
	if _, err := labels.Parse(s.selector); err != nil {
		return usagef("-l %s: %v; for example: -l pool=a100,zone!=b", s.selector, err)
	}
	if err := s.connection.CheckNamespaces(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// selected returns the nodes that -l selects, or all, by the name that name returns.
func selected[T any](ctx context.Context, s *sources, api *evidence.API, nodes []T, name func(*T) string) ([]T, error) {
	if s.selector == "" {
		return nodes, nil
	}
	names, err := api.NodeNames(ctx, s.selector)
	if err != nil {
		return nil, apiError(fmt.Errorf("list the nodes of -l %s: %w", s.selector, err), "")
	}
	return slices.DeleteFunc(nodes, func(node T) bool { return !slices.Contains(names, name(&node)) }), nil
}

// local reads this node's sources if the flags select them or if this machine is a node; otherwise it returns nil.
func (s *sources) local(ctx context.Context) (*evidence.Local, error) {
	return s.localOf(ctx, trace.Ref{})
}

// localOf is local for a trace of one pod.
func (s *sources) localOf(ctx context.Context, pod trace.Ref) (*evidence.Local, error) {
	asked := slices.ContainsFunc(localFlags(), s.flags.Changed)
	if !asked && !s.onNode() {
		return nil, nil
	}
	places := s.find()
	places.Pod = pod
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
	bare := found{Places: evidence.Places{Node: s.places.Node, Vendors: vendors()}}
	if err := s.hardware(&bare); err != nil {
		return nil, err
	}
	local = bare.Collect(ctx)
	local.Unread = slices.DeleteFunc(local.Unread, func(one trace.Unread) bool { return one.Source.Kind != trace.Hardware })
	return local, nil
}

// found are the paths of a node: those that flags name, and for the others what is found of the container runtime, kubelet and driver.
// Links are resolved within the host's root: /var/run is a link to /run on the host's own root.
type found struct {
	evidence.Places
	// host is what was found.
	host *hostruntime.Host
	// driver and dev are the roots of the driver's files and of its device nodes.
	driver string
	dev    string
	// pluginDir is the directory of the kubelet's socket for device plugins, and runtimeSocket the socket of the container runtime.
	pluginDir     string
	runtimeSocket string
}

// find finds the paths of a node.
func (s *sources) find() found {
	files := nvidia.Traits().Files
	host := hostruntime.Find(hostruntime.Deps{HostRoot: s.hostRoot, Proc: s.places.Proc, Library: files.Libraries[0], LibraryFolders: files.LibraryFolders})
	got := found{Places: s.places, host: host, driver: s.driver, dev: s.driver, runtimeSocket: host.Local(host.Runtime.Socket.Path)}
	got.Vendors, got.Bundles, got.PluginRoot = vendors(), host.Bundles(), got.KubeletDir
	if got.KubeletDir == "" {
		got.KubeletDir, got.PluginRoot = host.Local(host.Kubelet.Root.Path), filepath.Dir(host.Local(host.Kubelet.DevicePlugins.Path))
	}
	got.pluginDir = filepath.Join(got.PluginRoot, filepath.Base(host.Kubelet.DevicePlugins.Path))
	if len(got.CDIDirs) == 0 {
		for _, dir := range host.CDIDirs {
			got.CDIDirs = append(got.CDIDirs, host.Local(dir))
		}
	}
	if s.containerdState != "" {
		got.Bundles = append([]kubelet.Bundle{kubelet.TaskBundle(s.containerdState)}, got.Bundles...)
		got.runtimeSocket = filepath.Join(s.containerdState, filepath.Base(host.Runtime.Socket.Path))
	}
	if s.driver == "" {
		got.driver, got.dev = host.Local(orElse(host.Driver.Path, "/")), host.Local(orElse(host.DevRoot, "/"))
	}
	got.PodLogs, got.Agent = s.onHost("pod-logs", got.PodLogs), s.onHost("agent", got.Agent)
	if s.hostRoot != "/" {
		got.HostRoot = s.hostRoot
	}
	return got
}

// onHost converts a path of the host to one of this process, unless the flag names it.
func (s *sources) onHost(flag, path string) string {
	if s.hostRoot == "/" || s.flags.Changed(flag) {
		return path
	}
	joined, err := securejoin.SecureJoin(s.hostRoot, path)
	if err != nil {
		return filepath.Join(s.hostRoot, path)
	}
	return joined
}

// vendors returns the vendors that this program knows. The sources of a node can have names of more, which its agent knows.
func vendors() trace.Vendors { return hardware.Traits() }

// pluginDir is the kubelet's directory of device plugins on this machine.
func (s *sources) pluginDir() string {
	return filepath.Join(orElse(s.places.KubeletDir, hostruntime.KubeletRoot), "device-plugins")
}

// onNode reports whether a kubelet has its state on this machine.
func (s *sources) onNode() bool {
	_, err := os.Stat(s.pluginDir())
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// hardware sets what to scan: the NVIDIA driver, or that of a simulated machine.
func (s *sources) hardware(places *found) error {
	roots := nvidia.Roots{Driver: places.driver, Dev: places.dev, Proc: places.Proc, Sys: "/sys"}
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
	config, err := s.connection.Config()
	if err != nil {
		return nil, err.Error()
	}
	api, err := s.apiOf(config)
	if err != nil {
		return nil, err.Error()
	}
	return api, ""
}

// apiOf returns the API server that a configuration describes.
func (s *sources) apiOf(config *rest.Config) (*evidence.API, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	plain, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &evidence.API{Client: client, REST: plain, AgentNamespace: orElse(s.agentNamespace, evidence.DefaultAgentNamespace)}, nil
}

// named returns the flags that were given and need an API server.
func (s *sources) named() []string {
	named := s.connection.Named()
	if s.selector != "" {
		named = append(named, "-l "+s.selector)
	}
	return named
}

// required returns an error when the user named an API server that cannot be used: it is then not a source that is left out.
func (s *sources) required(what string, api *evidence.API, noAPI string) error {
	switch {
	case api != nil || len(s.named()) == 0:
		return nil
	case s.nodeLocal:
		return s.onlyHere(what)
	}
	return &hintError{fmt.Errorf("%s: no API server with %s: %s", what, strings.Join(s.named(), " "), noAPI), "fix: " + s.connection.Fix()}
}

// onlyHere returns an error when the user named an API server for a command that reads only this machine.
func (s *sources) onlyHere(what string) error {
	if len(s.named()) == 0 {
		return nil
	}
	return usagef("%s: the flags that read this machine do not go with %s, which needs an API server; leave out the one or the other",
		what, strings.Join(s.named(), " "))
}

// nothingToRead is the error of a command that found neither an API server nor a node.
func (s *sources) nothingToRead(what, noAPI, alternatives string) error {
	return &hintError{
		fmt.Errorf("%s: nothing to read: no API server (%s), and this machine is not a node (there is no %s)",
			what, noAPI, s.pluginDir()),
		"fix: " + s.connection.Fix() + ", or run it as root on the node\nwhat works without an API server:\n" + alternatives,
	}
}

// noAnswer reports whether an API server was not reached, or does not know the user.
func noAnswer(err error) bool {
	_, unreachable := errors.AsType[*url.Error](err)
	return unreachable || apierrors.IsUnauthorized(err)
}

// apiError adds the fix to an error of the API server; instead names what works without one, or is empty.
func apiError(err error, instead string) error {
	var fixes []string
	_, unreachable := errors.AsType[*url.Error](err)
	switch {
	case apierrors.IsUnauthorized(err):
		fixes = append(fixes, "fix: renew the credentials in the kubeconfig")
	case apierrors.IsForbidden(err):
		fixes = append(fixes, "fix: ask for the right that the message names, or select another user with --user, --context or --as")
	case unreachable:
		fixes = append(fixes, "fix: check that this API server runs and can be reached, or select another one with --kubeconfig, --context or --server")
	}
	if instead != "" {
		fixes = append(fixes, instead)
	}
	if len(fixes) == 0 {
		return err
	}
	return &hintError{err, strings.Join(fixes, "\n")}
}
