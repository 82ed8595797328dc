package hosttest

import (
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// hosts are the descriptions. The comment of an archive has a directive a line, and its files are those of the host:
//
//	title TEXT                      what the host is
//	process PID WHERE ARGUMENT...   a process; WHERE is host, mount (a mount namespace of its own), pod (in a pod's cgroup) or apart (in a
//	                                pod's container whose cgroup is apart from the pod's)
//	titled PID WHERE TITLE...       a process that has written a title over its arguments
//	socket PATH [NAME VERSION]      a socket that answers; with a name it is a runtime's
//	link PATH TARGET                a symbolic link
//	dir PATH                        an empty directory
//	container PID DIR               a pod's container whose process and cgroup exist; DIR has its bundle
//
//go:embed hosts/*.txtar
var hosts embed.FS

// The pod of the container, and its ID.
const (
	PodUID      = "11111111-2222-3333-4444-555555555555"
	ContainerID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// slice is the container's cgroup with the systemd driver of cgroups.
const slice = "kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-" + ContainerID + ".scope"

// apart is that cgroup with the systemd driver in the kubelet only.
const apart = "system.slice/containerd.service/kubepods-pod11111111_2222_3333_4444_555555555555.slice:cri-containerd:" + ContainerID

// Names lists the hosts.
func Names() []string {
	entries, err := hosts.ReadDir("hosts")
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".txtar"))
	}
	return names
}

// Host is a host in a directory. Close it.
type Host struct {
	// Root is its root directory, Proc its /proc.
	Root string
	Proc string
	// Title is what the host is.
	Title string
	stops []func()
}

// New makes the host with a name of Names in a new directory below /tmp, whose name is short: the path of a socket has at most 107 bytes.
func New(name string) (*Host, error) {
	text, err := hosts.ReadFile("hosts/" + name + ".txtar")
	if err != nil {
		return nil, fmt.Errorf("make host: %w", err)
	}
	return Parse(text)
}

// Parse makes the host of a description.
func Parse(text []byte) (*Host, error) {
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		return nil, fmt.Errorf("make host: %w", err)
	}
	h := &Host{Root: dir, Proc: filepath.Join(dir, "proc")}
	h.stops = append(h.stops, func() { _ = os.RemoveAll(dir) })
	if err := h.fill(txtar.Parse(text)); err != nil {
		h.Close()
		return nil, fmt.Errorf("make host: %w", err)
	}
	return h, nil
}

// Close stops the sockets and removes the directory.
func (h *Host) Close() {
	for _, stop := range slices.Backward(h.stops) {
		stop()
	}
}

func (h *Host) fill(archive *txtar.Archive) error {
	if err := h.write("proc/self/mountinfo", fmt.Sprintf("31 23 0:26 / %s rw - cgroup2 cgroup2 rw\n", filepath.Join(h.Root, "sys/fs/cgroup"))); err != nil {
		return err
	}
	errs := []error{h.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n"), h.write("sys/fs/cgroup/cgroup.procs", "")}
	var sockets [][]string
	for line := range strings.Lines(string(archive.Comment)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case fields[0] == "socket":
			sockets = append(sockets, fields) // After the links on the way to them.
		default:
			errs = append(errs, h.directive(fields))
		}
	}
	for _, fields := range sockets {
		errs = append(errs, h.directive(fields))
	}
	for _, file := range archive.Files {
		errs = append(errs, h.write(file.Name, string(file.Data)))
	}
	return errors.Join(errs...)
}

func (h *Host) directive(fields []string) error {
	switch args := fields[1:]; {
	case fields[0] == "title":
		h.Title = strings.Join(args, " ")
		return nil
	case len(args) > 2 && argumentsOf(fields) != nil:
		return h.process(args[0], args[1], argumentsOf(fields))
	case fields[0] == "socket" && len(args) == 1:
		return h.serve(args[0], "", "")
	case fields[0] == "socket" && len(args) == 3:
		return h.serve(args[0], args[1], args[2])
	case fields[0] == "link" && len(args) == 2:
		if err := os.MkdirAll(filepath.Dir(h.path(args[0])), 0o755); err != nil {
			return err
		}
		return os.Symlink(args[1], h.path(args[0]))
	case fields[0] == "dir" && len(args) == 1:
		return os.MkdirAll(h.path(args[0]), 0o755)
	case fields[0] == "container" && len(args) == 2:
		return h.container(args[0], args[1])
	}
	return fmt.Errorf("%q is not a directive", strings.Join(fields, " "))
}

// argumentsOf returns the arguments of a process by its directive, as the kernel shows them; nil for another directive.
func argumentsOf(fields []string) []string {
	const first = 3
	switch fields[0] {
	case "process":
		return fields[first:]
	case "titled":
		return []string{strings.Join(fields[first:], " "), "", "", ""}
	}
	return nil
}

// process makes the files of a process in /proc.
func (h *Host) process(pid, where string, argv []string) error {
	namespaces, cgroup := map[string]string{"pid": "pid:[1]", "mnt": "mnt:[1]"}, "/system.slice/"+filepath.Base(argv[0])+".service"
	switch where {
	case "host":
	case "mount":
		namespaces["mnt"] = "mnt:[" + pid + "]"
	case "pod":
		cgroup = "/" + slice
	case "apart":
		cgroup = "/" + apart
	default:
		return fmt.Errorf("process %s is %q, want host, mount, pod or apart", pid, where)
	}
	dir := filepath.Join("proc", pid)
	errs := []error{
		h.write(filepath.Join(dir, "cmdline"), strings.Join(argv, "\x00")+"\x00"),
		h.write(filepath.Join(dir, "status"), fmt.Sprintf("Name:\t%s\nUid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\n", filepath.Base(argv[0]), os.Getuid())),
		h.write(filepath.Join(dir, "stat"), pid+" (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n"),
		h.write(filepath.Join(dir, "cgroup"), "0::"+cgroup+"\n"),
		os.MkdirAll(h.path(filepath.Join(dir, "ns")), 0o755),
	}
	for kind, name := range namespaces {
		errs = append(errs, os.Symlink(name, h.path(filepath.Join(dir, "ns", kind))))
	}
	return errors.Join(errs...)
}

// container makes a container of a pod: its process, its cgroup and its bundle.
func (h *Host) container(pid, dir string) error {
	name, annotations := specIn(dir)
	spec := fmt.Sprintf(`{"ociVersion": "1.2.0", "process": {"env": ["BERTH_DEVICES_NVIDIA_COM_GPU=GPU-1"]}, "annotations": {%s}}`, annotations)
	errs := []error{h.process(pid, "pod", []string{"/bin/train"}), h.write(filepath.Join(dir, name), spec)}
	cgroup := "sys/fs/cgroup"
	for part := range strings.SplitSeq(slice, "/") {
		cgroup = filepath.Join(cgroup, part)
		errs = append(errs, h.write(filepath.Join(cgroup, "cgroup.events"), "populated 1\nfrozen 0\n"), h.write(filepath.Join(cgroup, "cgroup.procs"), ""))
	}
	return errors.Join(append(errs, h.write(filepath.Join(cgroup, "cgroup.procs"), pid+"\n"))...)
}

// specIn is the path of the container's OCI spec in a directory of bundles, and its annotations. CRI-O's are those of a pod that
// has tried to name its container by containerd's.
func specIn(dir string) (name, annotations string) {
	if strings.HasSuffix(dir, "-containers") {
		return filepath.Join(ContainerID, "userdata", "config.json"), `"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.container-name": "other",
 "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.pod.name": "train", "io.kubernetes.pod.namespace": "default", "io.kubernetes.container.name": "cuda"`
	}
	return filepath.Join(ContainerID, "config.json"), fmt.Sprintf(`"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-name": "train",
 "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.container-name": "cuda", "io.kubernetes.cri.sandbox-uid": %q`, PodUID)
}

// serve listens on a socket. A runtime's answers with its name and version.
func (h *Host) serve(path, name, version string) error {
	full := h.path(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", full)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/runtime.v1.RuntimeService/Version" || name == "" {
			return errors.New("unknown method " + method)
		}
		answer := &emptypb.Empty{}
		var fields []byte
		for i, text := range []string{"0.1.0", name, version, "v1"} {
			fields = protowire.AppendString(protowire.AppendTag(fields, protowire.Number(i+1), protowire.BytesType), text)
		}
		answer.ProtoReflect().SetUnknown(fields)
		return stream.SendMsg(answer)
	}))
	go func() { _ = server.Serve(listener) }()
	h.stops = append(h.stops, server.Stop)
	return nil
}

// path is the path of a file of the host. Links to directories, which are absolute, are followed for it.
func (h *Host) path(name string) string {
	at := h.Root
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean(name), "/"), "/") {
		next := filepath.Join(at, part)
		if target, err := os.Readlink(next); err == nil && filepath.IsAbs(target) {
			next = filepath.Join(h.Root, target)
		}
		at = next
	}
	return at
}

func (h *Host) write(name, text string) error {
	full := h.path(name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return os.WriteFile(full, []byte(text), 0o600)
}
