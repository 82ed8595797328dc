package hostruntime_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/node/hostruntime"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
)

// TestTrust checks which processes and sockets count, and what is used without any.
func TestTrust(t *testing.T) {
	const (
		plain  = "/run/containerd/containerd.sock"
		root   = "process 1 host /sbin/init\n"
		k3s    = "/run/k3s/containerd/containerd.sock"
		serves = "socket " + plain + " containerd v2\n"
		both   = root + serves + "socket " + k3s + " containerd v2\nprocess 9 host containerd\nprocess 10 host containerd -a " + k3s + "\n"
		kind   = " --\nkind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
		ends   = "containerRuntimeEndpoint: unix://"
		evil   = "socket /run/containerd/evil.sock containerd v2\n"
	)
	second := hostruntime.Runtime{Kind: hostruntime.Containerd, PID: 10, Socket: hostruntime.Place{Path: k3s, From: "the command line of containerd (process 10)"}}
	tests := map[string]struct {
		host  string
		state string
		// change is what happens to the host before it is looked at.
		change func(t *testing.T, root string)
		want   hostruntime.Runtime
		// note is part of one note; empty for no notes.
		note string
	}{
		"nothing": {host: root},
		"a process in a pod": {host: root + evil + "process 9 pod containerd -a /run/containerd/evil.sock\n",
			note: "process 9 is named containerd and is not used: it belongs to pod"},
		"a process in a container apart from its pod": {host: root + evil + "process 9 apart containerd -a /run/containerd/evil.sock\n",
			note: "process 9 is named containerd and is not used: it belongs to pod"},
		"a process in another mount namespace": {host: root + evil + "process 9 mount containerd -a /run/containerd/evil.sock\n",
			note: "it is in another mount namespace"},
		"a process of another user": {host: root + evil + "process 9 host containerd -a /run/containerd/evil.sock\n",
			change: func(t *testing.T, root string) { write(t, root, "proc/9/status", "Uid:\t1000\t1000\t1000\t1000\n") },
			note:   "it belongs to the user 1000"},
		"a process in another PID namespace": {host: root + evil + "process 9 host containerd -a /run/containerd/evil.sock\n",
			change: func(t *testing.T, root string) {
				remove(t, root, "proc/9/ns/pid")
				must(t, os.Symlink("pid:[9]", filepath.Join(root, "proc/9/ns/pid")))
			}, note: "it is in another PID namespace"},
		"process 1 cannot be read": {host: root + serves + "process 9 host containerd\n",
			change: func(t *testing.T, root string) { remove(t, root, "proc/1/ns/pid") },
			want:   hostruntime.Runtime{Kind: hostruntime.Containerd, Socket: hostruntime.Place{Path: plain, From: "its socket"}}, note: "no such file"},
		"a command of containerd's": {host: root + evil + "process 9 host containerd config dump -a /run/containerd/evil.sock\n"},
		"no socket":                 {host: root + "process 9 host containerd\n", note: "its socket /run/containerd/containerd.sock was not found"},
		"a file in place of the socket": {host: root + "process 9 host containerd\n-- run/containerd/containerd.sock --\n",
			note: "containerd.sock is not a socket"},
		"a link out of the root": {host: root + "link /run/containerd ../../../../../../../run\nprocess 9 host containerd\n",
			note: "its socket /run/containerd/containerd.sock was not found"},
		"the kubelet decides": {host: root + serves + "socket " + k3s + " containerd v2\nprocess 9 host containerd\nprocess 10 host containerd -a " + k3s +
			"\nprocess 11 host kubelet --container-runtime-endpoint unix://" + k3s + "\n",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, PID: 10, Socket: hostruntime.Place{Path: k3s, From: "the command line of containerd (process 10)"}}},
		"k3s decides": {host: both + "titled 11 host /usr/local/bin/k3s server\n", want: second},
		"a drop-in decides": {host: both + "process 11 host kubelet --config-dir=/d --config /c\n-- c" + kind + ends + plain + "\n-- d/1.conf" + kind + ends + k3s + "\n-- d/2.conf" + kind,
			want: second},
		"a drop-in decides, of a directory with a slash at its end": {host: both + "process 11 host kubelet --config-dir=/d/ --config=/c\n-- c" + kind + ends + plain + "\n-- d/1.conf" + kind + ends + k3s + "\n",
			want: second},
		"a drop-in in a directory decides": {host: both + "process 11 host kubelet --config-dir /d\n-- d/1.conf" + kind + ends + plain + "\n-- d/2/a.conf" + kind + ends + k3s + "\n-- d/3 --\n[\n",
			want: second},
		"a file decides, and a drop-in cannot be read": {host: both + "process 11 host kubelet --config=/c --config-dir=/d\n-- c" + kind + ends + k3s + "\n-- d/1.conf --\n[\n",
			want: second, note: "the kubelet's configuration was not read: read the kubelet's configuration /d/1.conf"},
		"drop-ins out of the root": {host: both + "link /d ../../../../../../../etc\nprocess 11 host kubelet --config=/c --config-dir=/d\n-- c" + kind + ends + k3s + "\n",
			want: second, note: "/d is a link"},
		"no directory of drop-ins": {host: both + "process 11 host kubelet --config=/c --config-dir=/d\n-- c" + kind + ends + k3s + "\n", want: second, note: "no such file"},
		"a relative directory":     {host: both + "process 11 host kubelet --config=/c --config-dir=d\n-- c" + kind + ends + k3s + "\n-- d/1.conf" + kind + ends + plain + "\n", want: second},
		"two, and no kubelet": {host: root + serves + "socket " + k3s + " containerd v2\nprocess 9 host containerd\nprocess 10 host containerd -a " + k3s + "\n",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, PID: 9, Socket: hostruntime.Place{Path: plain, From: "the default"}}, note: "the kubelet's endpoint is not known"},
		"a kubelet whose runtime is hidden": {host: root + serves + "process 11 host kubelet --container-runtime-endpoint unix://" + plain + "\n",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, Socket: hostruntime.Place{Path: plain, From: "the command line of kubelet (process 11)"}}},
		"a distribution's socket before the plain one": {host: serves + "socket " + k3s + " containerd v2\n",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, Socket: hostruntime.Place{Path: k3s, From: "its socket"}}},
		"a configuration alone": {host: "-- etc/crio/crio.conf.d/10.conf --\n",
			want: hostruntime.Runtime{Kind: hostruntime.CRIO, Socket: hostruntime.Place{Path: "/var/run/crio/crio.sock", From: "its configuration"}}},
		"an option": {host: root + serves + "process 9 host containerd\n", state: "/opt/c",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, Socket: hostruntime.Place{Path: "/opt/c/containerd.sock", From: "the state directory"}}},
		"an option with the running one": {host: root + serves + "process 9 host containerd\n", state: "/run/containerd",
			want: hostruntime.Runtime{Kind: hostruntime.Containerd, PID: 9, Socket: hostruntime.Place{Path: plain, From: "the default"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			host, err := hosttest.Parse([]byte(tc.host))
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			if tc.change != nil {
				tc.change(t, host.Root)
			}
			got := find(t, host, tc.state)
			short := hostruntime.Runtime{Kind: got.Runtime.Kind, PID: got.Runtime.PID, Socket: got.Runtime.Socket}
			if short.Kind != tc.want.Kind || short.PID != tc.want.PID || short.Socket != tc.want.Socket {
				t.Errorf("got %+v, want %+v", short, tc.want)
			}
			if tc.note == "" && len(got.Notes) > 0 || tc.note != "" && !slices.ContainsFunc(got.Notes, func(n string) bool { return strings.Contains(n, tc.note) }) {
				t.Errorf("notes %q, want one with %q", got.Notes, tc.note)
			}
		})
	}
}

// TestKubelet checks where the kubelet's directory and endpoint are found.
func TestKubelet(t *testing.T) {
	tests := map[string]struct {
		host string
		want hostruntime.Place
	}{
		"none":              {"process 1 host /sbin/init\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"in a pod":          {"process 1 host /sbin/init\nprocess 9 pod kubelet --root-dir=/evil\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"apart from a pod":  {"process 1 host /sbin/init\nprocess 9 apart kubelet --root-dir=/evil\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"in two arguments":  {"process 1 host /sbin/init\nprocess 9 host kubelet --root-dir /x/\n", hostruntime.Place{Path: "/x", From: "the command line of kubelet (process 9)"}},
		"in a container":    {"process 1 host /sbin/init\nprocess 9 mount kubelet --root-dir=/x\n", hostruntime.Place{Path: "/x", From: "the command line of kubelet (process 9)"}},
		"the last counts":   {"process 1 host /sbin/init\nprocess 9 host kubelet --root_dir=/x --root-dir=/y\n", hostruntime.Place{Path: "/y", From: "the command line of kubelet (process 9)"}},
		"k3s configuration": {"process 1 host /sbin/init\nprocess 9 host k3s agent\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/x", From: "/etc/rancher/k3s/config.yaml"}},
		"k3s drop-in": {"process 1 host /sbin/init\nprocess 9 host k3s agent\n-- etc/rancher/k3s/config.yaml.d/1.yaml --\nkubelet-arg+: root-dir=/x\n",
			hostruntime.Place{Path: "/x", From: "/etc/rancher/k3s/config.yaml.d/1.yaml"}},
		"k3s with a title":        {"process 1 host /sbin/init\ntitled 9 host /usr/local/bin/k3s server\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/x", From: "/etc/rancher/k3s/config.yaml"}},
		"k3s agent with a title":  {"process 1 host /sbin/init\ntitled 9 host k3s agent\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/x", From: "/etc/rancher/k3s/config.yaml"}},
		"a title in a pod":        {"process 1 host /sbin/init\ntitled 9 pod /usr/local/bin/k3s server\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"another command's title": {"process 1 host /sbin/init\ntitled 9 host /usr/local/bin/k3s kubectl\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"a title of another kind": {"process 1 host /sbin/init\ntitled 9 host /usr/bin/kubelet --root-dir=/x\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"another program's title": {"process 1 host /sbin/init\ntitled 9 host /usr/bin/k3sx server\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
		"a command of k3s":        {"process 1 host /sbin/init\nprocess 9 host k3s kubectl\n-- etc/rancher/k3s/config.yaml --\nkubelet-arg: [root-dir=/x]\n", hostruntime.Place{Path: "/var/lib/kubelet", From: "the default"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			host, err := hosttest.Parse([]byte(tc.host))
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			if diff := cmp.Diff(tc.want, find(t, host, "").Kubelet.Root); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
}

func remove(t *testing.T, root, name string) {
	t.Helper()
	must(t, os.Remove(filepath.Join(root, name)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
