package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/pflag"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/hardware/hostpath"
)

const (
	// removalSocket is where an uninstall with --hold listens. It is no file: an image has no folder that can be written. It belongs to the
	// pod's network.
	removalSocket = "@berth-agent-uninstall"
	// ownFolders is the name of folders that nothing but Berth uses, such as /opt/berth.
	ownFolders = "berth"
	// dialLimit bounds a probe.
	dialLimit = time.Second
)

// hostOptions are flags of the command.
type hostOptions struct {
	onHost    bool
	hold      bool
	draDriver string
}

// Bind adds the flags.
func (o *hostOptions) Bind(flags *pflag.FlagSet) {
	flags.BoolVar(&o.onHost, "on-host", false, "find all directories below --host-root, which is the only mount of the node, and remove those that are empty afterwards")
	flags.BoolVar(&o.hold, "hold", false, "keep running after everything was removed, until a signal; berth-agent probe clean succeeds from then on")
	flags.StringVar(&o.draDriver, "dra-driver", "", "remove the sockets of the DRA driver `NAME` (default: draDriverName of the configuration)")
}

// Apply returns the configuration with the directories in which this process finds those of the host.
func (o *hostOptions) Apply(config *v1alpha1.AgentConfig) *v1alpha1.AgentConfig {
	config = config.DeepCopy()
	if o.draDriver != "" {
		config.DRADriverName = o.draDriver
	}
	if !o.onHost {
		return config
	}
	host := hostpath.New(config.HostRoot)
	for _, dir := range []*string{&config.KubeletDir, &config.CDIDir, &config.HookDir, &config.StateDir, &config.PersistentDir, &config.MPSRoot, &config.Labels.Dir} {
		if *dir != "" {
			*dir = host.Resolve(*dir)
		}
	}
	return config
}

// kubeletHome has the kubelet's folder device-plugins, whatever the kubelet's root directory is (kubelet 1.37).
const kubeletHome = "/var/lib/kubelet"

// PluginRoot returns the directory with the folder device-plugins: on the host it is the same everywhere; the container of an agent has it
// in the kubelet's root directory. The configuration is that of Apply.
func (o *hostOptions) PluginRoot(config *v1alpha1.AgentConfig) string {
	if o.onHost {
		return hostpath.New(config.HostRoot).Resolve(kubeletHome)
	}
	return config.KubeletDir
}

// Finish removes what is left of the folders, and waits for a signal if that is asked for. The configuration is that of Apply.
func (o *hostOptions) Finish(ctx context.Context, config *v1alpha1.AgentConfig, out io.Writer) error {
	if o.onHost {
		if err := removeFolders(config, out); err != nil {
			return err
		}
	}
	if !o.hold {
		return nil
	}
	return holdUntilStopped(ctx, out)
}

// removeFolders removes the state of MPS daemons, and then the folders that were made for Berth and are empty.
func removeFolders(config *v1alpha1.AgentConfig, out io.Writer) error {
	if err := removeMPS(config, out); err != nil {
		return fmt.Errorf("remove state of MPS daemons: %w", err)
	}
	for _, dir := range []string{config.HookDir, config.StateDir, config.PersistentDir} {
		for _, empty := range []string{dir, filepath.Dir(dir)} {
			if empty == dir && filepath.Base(filepath.Dir(dir)) != ownFolders && filepath.Base(dir) != ownFolders {
				continue // A folder of the administrator.
			}
			if empty != dir && filepath.Base(empty) != ownFolders {
				continue
			}
			if err := os.Remove(empty); err == nil {
				fmt.Fprintln(out, "removed", empty)
			} else if !keepsFolder(err) {
				return fmt.Errorf("remove empty folder: %w", err)
			}
		}
	}
	return nil
}

// removeMPS removes the state of MPS daemons, which have ended, if it is in a folder of Berth. It never removes through a mount, whose
// files belong to the clients.
func removeMPS(config *v1alpha1.AgentConfig, out io.Writer) error {
	inside, err := filepath.Rel(config.StateDir, config.MPSRoot)
	if err != nil || inside == "." || !filepath.IsLocal(inside) {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(config.MPSRoot))
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		fmt.Fprintf(out, "left %s until the next boot, since %s is mounted\n", config.MPSRoot, mounts[0].Mountpoint)
		return nil
	}
	return os.RemoveAll(config.MPSRoot)
}

// keepsFolder reports whether a folder is gone already, or has to stay: it has files of others, is a mount point of the host, or is on a
// file system that cannot be written, as Berth's files then are not either.
func keepsFolder(err error) bool {
	for _, reason := range []error{fs.ErrNotExist, syscall.ENOTEMPTY, syscall.EBUSY, syscall.EROFS} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// holdUntilStopped answers probes until ctx ends or the process gets a signal.
func holdUntilStopped(ctx context.Context, out io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", removalSocket)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	fmt.Fprintln(out, "the node is clean")
	defer func() { _ = listener.Close() }() // Also when ctx ends while a probe is answered: the function that ends Accept can run later.
	closed := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer closed()
	for {
		conn, err := listener.Accept()
		if err == nil {
			_ = conn.Close()
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("answer a probe: %w", err)
		}
	}
}

// probeRemoval returns nil while a command with --hold of this pod has removed everything.
func probeRemoval(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", removalSocket)
	if err != nil {
		return fmt.Errorf("the node is not clean yet: %w", err)
	}
	return conn.Close()
}
