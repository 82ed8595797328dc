package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// RequirementsError lists what the machine lacks to run a sandbox.
type RequirementsError struct{ Missing []Missing }

// Missing is one missing requirement, with its fix.
type Missing struct {
	What string
	Fix  string
}

func (e *RequirementsError) Error() string {
	var b strings.Builder
	b.WriteString("this machine cannot run a sandbox:")
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  - %s\n    fix: %s", m.What, m.Fix)
	}
	return b.String()
}

// cniDirs are where distributions keep the CNI plugins.
func cniDirs() []string { return []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} }

// CheckMachine returns a *RequirementsError if root, runc or the network tools are missing, or nil.
func CheckMachine() error {
	var e RequirementsError
	if os.Geteuid() != 0 {
		e.Missing = append(e.Missing, Missing{"you are not root: a sandbox makes mounts, cgroups and a network bridge", "run it with sudo"})
	}
	for _, tool := range []struct{ name, pkg string }{{"runc", "runc"}, {"ip", "iproute2"}} {
		if _, err := lookPath(tool.name); err != nil {
			e.Missing = append(e.Missing, Missing{tool.name + " is not installed", "apt-get install -y " + tool.pkg})
		}
	}
	if _, err := findCNI(); err != nil {
		e.Missing = append(e.Missing, Missing{err.Error(), "apt-get install -y containernetworking-plugins"})
	}
	if _, err := detectCgroups("/proc/self/mountinfo"); err != nil {
		e.Missing = append(e.Missing, Missing{err.Error(),
			"mount the cgroup filesystem, or run on a machine (or in a privileged container) that has it"})
	}
	if len(e.Missing) > 0 {
		return &e
	}
	return nil
}

func checkBinaries(o Options) error {
	agentImage := shippedImage("", "berth-agent")
	want := []string{"hyperkube", "workload"}
	if o.Nodes > 0 {
		want = append(want, "containerd", "containerd-shim-runc-v2")
	}
	if o.hasHardware() {
		want = append(want, "berth")
	}
	if o.wantsAgent() {
		want = append(want, agentImage)
	}
	if o.Helm {
		want = append(want, shippedImage("", "berth-operator"))
	}
	if o.wantsAgent() {
		want = append(want, helmProgram(""), chartArchive(""))
	}
	if o.Hollow > 0 {
		want = append(want, "berth-sandbox")
	}
	if o.APINodes > 0 {
		want = append(want, procKwok)
	}
	var e RequirementsError
	for _, name := range want {
		path := filepath.Join(o.Bin, name)
		if _, err := os.Stat(path); err != nil {
			fix := "build it with make, or name the directory that has it with --bin"
			switch name {
			case agentImage:
				fix = "make it with make images, or name the directory that has it with --bin; --no-agent does without it"
			case "berth":
				fix += "; without --profile it is not needed"
			}
			e.Missing = append(e.Missing, Missing{path + " is missing", fix})
		}
	}
	if len(e.Missing) > 0 {
		return &e
	}
	return nil
}

// lookPath also searches the sbin directories, which a user's PATH often lacks.
func lookPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("find %s: not in PATH", name)
}

func findCNI() (string, error) {
	for _, dir := range cniDirs() {
		whole := true
		for _, plugin := range []string{"bridge", "host-local", "loopback"} {
			if _, err := os.Stat(filepath.Join(dir, plugin)); err != nil {
				whole = false
			}
		}
		if whole {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the CNI plugins bridge, host-local and loopback are in none of %s", strings.Join(cniDirs(), ", "))
}
