package hostruntime

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

const (
	// KubeletRoot is the kubelet's default root directory. The kubelet has its socket for device plugins there, whatever its root
	// directory is (kubelet 1.37).
	KubeletRoot = "/var/lib/kubelet"
	pluginDir   = KubeletRoot + "/device-plugins"
	k3sSocket   = "/run/k3s/containerd/containerd.sock"
	k3sConfig   = "/etc/rancher/k3s/config.yaml"
	rootFlag    = "--root-dir"
	socketFlag  = "--container-runtime-endpoint"
)

// kubelet finds the kubelet's directories, and returns the endpoint of its runtime; empty if that is not known.
func (f *finder) kubelet(processes []process) (endpoint Place) {
	k := &f.host.Kubelet
	*k = Kubelet{Root: Place{KubeletRoot, byDefault}, DevicePlugins: Place{pluginDir, "the kubelet's source"}}
	for i := range processes {
		p := &processes[i]
		args, ok := f.kubeletArgs(p)
		if !ok {
			continue
		}
		if k.PID != 0 {
			f.note("process %d is a kubelet too and is not used: process %d comes first", p.pid, k.PID)
			continue
		}
		k.PID = p.pid
		if root, given := flag(args.list, rootFlag); given && root != "" {
			k.Root = Place{path.Clean(root), args.from}
		}
		endpoint = f.endpoint(args)
	}
	return endpoint
}

// arguments are the flags of a kubelet.
type arguments struct {
	list []string
	from string
	// usual is the endpoint of the program that the kubelet is part of.
	usual string
}

// endpoint returns the endpoint of the runtime that a kubelet has: the flag counts before its configuration, and a drop-in before the file.
func (f *finder) endpoint(args arguments) Place {
	if value, given := flag(args.list, socketFlag); given && value != "" {
		return Place{clean(value), args.from}
	}
	value, from, err := readText(f.host.root, absolute(args, "--config"), absolute(args, "--config-dir"), "containerRuntimeEndpoint")
	if err != nil {
		f.note("the kubelet's configuration was not read: %v", err)
	}
	if value != "" {
		return Place{clean(value), from}
	}
	if args.usual != "" {
		return Place{args.usual, args.from}
	}
	return Place{}
}

// absolute returns the path that a flag has, cleaned; empty for a relative one, since the directory of the kubelet is not known.
func absolute(args arguments, name string) string {
	if value, _ := flag(args.list, name); filepath.IsAbs(value) {
		return filepath.Clean(value)
	}
	return ""
}

// kubeletArgs returns the flags of a process that is a kubelet or has one in it.
func (f *finder) kubeletArgs(p *process) (arguments, bool) {
	args := p.argv[1:]
	switch {
	case p.program() == "kubelet":
		return arguments{list: args, from: p.place()}, true
	case p.program() == "hyperkube" && len(args) > 0 && args[0] == "kubelet":
		return arguments{list: args[1:], from: p.place()}, true
	case p.program() == "kubelite":
		return f.kubelite(p), true
	case p.program() == "k3s" && len(args) > 0 && (args[0] == "server" || args[0] == "agent"):
		return f.k3s(p), true
	}
	return arguments{}, false
}

// kubelite returns the flags of MicroK8s' kubelet, which are in a file, one a line, with the snap's variables.
func (f *finder) kubelite(p *process) arguments {
	file, given := flag(p.argv[1:], "--kubelet-args-file")
	if !given || !filepath.IsAbs(file) {
		return arguments{from: p.place()}
	}
	blob, err := hostconfig.ReadBeneath(f.host.root, file)
	if err != nil {
		f.note("the kubelet's arguments %s were not read: %v", file, err)
	}
	return arguments{list: snapArguments(string(blob), path.Dir(path.Dir(file))), from: file}
}

// snapArguments returns the flags of a file with one a line. Data is the snap's directory of a revision, such as /var/snap/microk8s/9072.
func snapArguments(text, data string) []string {
	common := path.Join(path.Dir(data), "common")
	variables := strings.NewReplacer("${SNAP_COMMON}", common, "${SNAP_DATA}", data, "$SNAP_COMMON", common, "$SNAP_DATA", data)
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, strings.Trim(variables.Replace(line), `"`))
		}
	}
	return list
}

// k3s returns the flags that k3s is given for its kubelet. The program overwrites its command line, so that only its configuration has
// them.
func (f *finder) k3s(p *process) arguments {
	found := arguments{from: fmt.Sprintf("k3s (process %d)", p.pid), usual: k3sSocket}
	for _, file := range append([]string{k3sConfig}, hostconfig.Glob(f.host.root, k3sConfig+".d/*.yaml")...) {
		blob, err := hostconfig.ReadBeneath(f.host.root, file)
		if err != nil {
			continue // Most nodes have none.
		}
		var content map[string]any
		if err := yaml.Unmarshal(blob, &content); err != nil {
			f.note("the configuration %s of k3s was not read: %v", file, err)
			continue
		}
		if value, ok := content["container-runtime-endpoint"].(string); ok {
			found.list, found.from = append(found.list, socketFlag+"="+value), file
		}
		for _, key := range []string{"kubelet-arg", "kubelet-arg+"} {
			for _, arg := range texts(content[key]) {
				found.list, found.from = append(found.list, "--"+strings.TrimLeft(arg, "-")), file
			}
		}
	}
	return found
}

// texts returns a text of YAML, or the texts of a list.
func texts(value any) []string {
	if text, ok := value.(string); ok {
		return []string{text}
	}
	return hostconfig.Texts(value)
}
