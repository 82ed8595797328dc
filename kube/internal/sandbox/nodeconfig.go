package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HollowLabel is the label and the taint of hollow nodes.
const HollowLabel = "berth.dev/hollow"

const containerdSocket = "/run/containerd/containerd.sock"

func (n Node) config(name string) string { return filepath.Join(n.dir(), "config", name) }

func (n Node) kubeletArgv() []string {
	st := n.state()
	labels := "berth.dev/sandbox=true"
	if st.Hollow {
		labels += "," + HollowLabel + "=true"
	}
	return n.c.hyperkube("kubelet",
		"--config="+n.config("kubelet.json"),
		"--kubeconfig="+n.c.pkiPath("kubelet-"+n.name+".conf"),
		"--hostname-override="+n.name, "--node-ip="+st.IP, "--node-labels="+labels,
		// At this level the kubelet logs how it made each allocation.
		"--v=4",
	).argv
}

// writeKubeletConfig writes the node's KubeletConfiguration, merged with the caller's settings.
func (n Node) writeKubeletConfig(o Options) error {
	st := n.state()
	cfg := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"address": st.IP, "port": kubeletPort,
		"healthzBindAddress": "127.0.0.1", "healthzPort": st.HealthzPort,
		"tlsCertFile":       n.c.pkiPath("kubelet-" + n.name + "-serving.crt"),
		"tlsPrivateKeyFile": n.c.pkiPath("kubelet-" + n.name + "-serving.key"),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": n.c.pkiPath("ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},

		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"failCgroupV1":             false,
		"cgroupDriver":             "cgroupfs",
		"cgroupsPerQOS":            true,
		"cgroupRoot":               n.Cgroup(),
		"failSwapOn":               false,
		"oomScoreAdj":              0,
		"resolvConf":               n.config("resolv.conf"),
		// The default is below /usr of the host.
		"volumePluginDir":     "/var/lib/kubelet/volume-plugins",
		"serializeImagePulls": false,
		"maxPods":             250,
		// Images are imported once and cannot be pulled again, and the usage of the host's disk is not relevant to a
		// sandbox.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]any{"memory.available": "0%", "nodefs.available": "0%",
			"nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
		// A change of the devices appears in the node's status within this time.
		"nodeStatusUpdateFrequency": "2s",
	}
	if st.Hollow {
		// The taint keeps pods without a toleration on nodes that run containers.
		cfg["registerWithTaints"] = []any{map[string]any{"key": HollowLabel, "value": "true", "effect": "NoSchedule"}}
	}
	if len(o.FeatureGates) > 0 {
		cfg["featureGates"] = o.FeatureGates
	}
	maps.Copy(cfg, o.KubeletConfig)
	data, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return fmt.Errorf("write kubelet config: %w", err)
	}
	if err := os.WriteFile(n.config("kubelet.json"), data, 0o644); err != nil {
		return fmt.Errorf("write kubelet config: %w", err)
	}
	return nil
}

// writeContainerdConfig writes the configuration of the node's containerd and of its pod network.
func (n Node) writeContainerdConfig() error {
	runc, err := lookPath("runc")
	if err != nil {
		return err
	}
	cni, err := findCNI()
	if err != nil {
		return err
	}
	q := strconv.Quote
	lines := []string{
		`version = 3`,
		`root = ` + q(filepath.Join(n.dir(), "containerd")),
		`state = "/run/containerd"`,
		// Plugins that a sandbox does not need; opt would create /opt/containerd.
		`disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart", "io.containerd.nri.v1.nri", "io.containerd.image-verifier.v1.bindir", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.internal.v1.tracing"]`,
		`[plugins."io.containerd.server.v1.grpc"]`,
		`  address = ` + q(containerdSocket),
		`[plugins."io.containerd.server.v1.ttrpc"]`,
		`  address = ` + q(containerdSocket+".ttrpc"),
		`[plugins."io.containerd.cri.v1.images"]`,
		`  snapshotter = ` + q(snapshotter(n.dir())),
		`[plugins."io.containerd.cri.v1.images".pinned_images]`,
		`  sandbox = ` + q(PauseImage),
		`[plugins."io.containerd.grpc.v1.cri"]`,
		`  disable_tcp_service = true`,
		`  stream_server_address = "127.0.0.1"`,
		`  stream_server_port = "0"`,
		`[plugins."io.containerd.cri.v1.runtime"]`,
		`  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`,
		// Root may lack CAP_SYS_RESOURCE, without which a score cannot be lowered.
		`  restrict_oom_score_adj = true`,
		// A profile loaded into the kernel would outlive the sandbox.
		`  disable_apparmor = true`,
		`[plugins."io.containerd.cri.v1.runtime".containerd]`,
		`  default_runtime_name = "runc"`,
		`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]`,
		`  runtime_type = "io.containerd.runc.v2"`,
		`  runtime_path = ` + q(filepath.Join(n.c.state.Bin, "containerd-shim-runc-v2")),
		`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]`,
		`  BinaryName = ` + q(runc),
		`  SystemdCgroup = false`,
		`[plugins."io.containerd.cri.v1.runtime".cni]`,
		`  bin_dirs = [` + q(cni) + `]`,
		`  conf_dir = ` + q(filepath.Join(n.dir(), "cni", "conf")),
	}
	if err := os.WriteFile(n.config("containerd.toml"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return fmt.Errorf("write containerd config: %w", err)
	}
	return n.writeCNIConfig()
}

func (n Node) writeCNIConfig() error {
	st := n.state()
	part := fmt.Sprintf("%s.%d.", network, st.Index)
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "berth-sandbox",
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": bridge,
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": filepath.Join(n.dir(), "cni", "state", "networks"),
				"ranges": []any{[]any{map[string]any{"subnet": network + ".0.0/16", "rangeStart": part + "2",
					"rangeEnd": part + "254", "gateway": st.IP}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}
	data, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return fmt.Errorf("write CNI config: %w", err)
	}
	if err := os.WriteFile(filepath.Join(n.dir(), "cni", "conf", "10-berth.conflist"), data, 0o644); err != nil {
		return fmt.Errorf("write CNI config: %w", err)
	}
	return nil
}

// snapshotter returns overlayfs if the file system below the sandbox supports it (a container's own overlay often does
// not), and native otherwise.
func snapshotter(nodeDir string) string {
	probe, err := os.MkdirTemp(nodeDir, "probe-")
	if err != nil {
		return "native"
	}
	defer os.RemoveAll(probe)
	at := func(name string) string { return filepath.Join(probe, name) }
	for _, d := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			return "native"
		}
	}
	// The paths are relative to the probe: a colon or comma in a path would end the option.
	opts := "lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, opts); err != nil {
		return "native"
	}
	if err := unix.Unmount(at("merged"), 0); err != nil {
		return "native"
	}
	return "overlayfs"
}
