package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berth-gpu/berth/hack/images/image"
)

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// sysctls lists the settings that the kubelet changes on the machine; Down restores them.
func sysctls() []string {
	return []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}
}

// Up starts a sandbox. It returns a sandbox that already runs in the directory unchanged, and removes one there that no
// longer runs. When Up fails, what it created stays until Down, so that its logs can be read.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := CheckMachine(); err != nil {
		return nil, err
	}
	p := newProgress(o.Progress)
	running, err := existing(ctx, o.Dir, p)
	if running != nil || err != nil {
		return running, err
	}
	if err := checkBinaries(o); err != nil {
		return nil, err
	}
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	p.step("starting %d node(s) in %s", o.Nodes+o.Hollow, o.Dir)
	if err := c.bringUp(ctx, o, p); err != nil {
		return nil, fmt.Errorf("start sandbox: %w\nlogs are in %s; berth-sandbox down --dir %s removes everything",
			err, filepath.Join(c.dir, "logs"), c.dir)
	}
	if err := c.update(func(s *State) { s.Phase = phaseReady }); err != nil {
		return nil, err
	}
	p.step("ready: export KUBECONFIG=%s", c.KubeconfigPath())
	return c, nil
}

// existing returns a sandbox that runs in dir, and removes one that does not run.
func existing(ctx context.Context, dir string, p *progress) (*Cluster, error) {
	if _, err := os.Stat(statePath(dir)); err != nil {
		left, err := FindLeftovers(dir)
		if err != nil {
			return nil, err
		}
		if len(left.Processes)+len(left.Mounts)+len(left.Cgroups) > 0 {
			p.step("cleaning up what an earlier sandbox left: %s", left)
			left.Files = ""
			if err := left.clear(ctx); err != nil {
				return nil, err
			}
		}
		entries, _ := os.ReadDir(dir)
		if len(entries) > 0 {
			return nil, fmt.Errorf("%s is not empty and is not a sandbox: berth-sandbox down would delete it; choose another --dir", dir)
		}
		return nil, nil
	}
	c, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if c.state.Phase == phaseReady && c.state.anyAlive() {
		if err := c.Health(ctx); err != nil {
			return nil, fmt.Errorf("the sandbox in %s is running, but incomplete:\n%w\n"+
				"berth-sandbox down --dir %s removes it", dir, err, dir)
		}
		p.step("already running in %s", dir)
		return c, nil
	}
	p.step("cleaning up a sandbox that was not shut down")
	return nil, Down(ctx, dir, nil)
}

// prepare writes the state file and creates everything that needs no process.
func prepare(ctx context.Context, o Options) (*Cluster, error) {
	cgroups, err := detectCgroups("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: o.Dir, cgroups: cgroups}
	s := &State{Version: stateVersion, BootID: bootID(), Phase: phaseStarting, Bin: o.Bin, Profile: o.Profile, APINodes: o.APINodes,
		Sysctls: map[string]string{}}
	s.ID, s.Cgroup = identity(o.Dir)
	if s.APINodeProfiles, err = o.checkAPIProfiles(); err != nil {
		return nil, err
	}
	for _, name := range sysctls() {
		if data, err := os.ReadFile("/proc/sys/" + name); err == nil {
			s.Sysctls[name] = strings.TrimSpace(string(data))
		}
	}
	for i, name := range o.nodeNames() {
		s.Nodes = append(s.Nodes, NodeState{Index: i, Name: name, IP: nodeIP(i), HealthzPort: healthzPorts + i, Hollow: i >= o.Nodes})
	}
	for i := range s.Nodes {
		n := Node{c: c, name: s.Nodes[i].Name}
		s.Nodes[i].KubeletDir, s.Nodes[i].EtcCDI, s.Nodes[i].RunCDI = n.KubeletDir(), n.EtcCDIDir(), n.CDIDir()
		if profile := o.profileOf(n.name); profile != "" {
			s.Nodes[i].Profile, s.Nodes[i].Clique, s.Nodes[i].SimDir, s.Nodes[i].Agent = profile, o.NodeCliques[n.name], n.SimDir(), o.Agent
		}
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make sandbox directory: %w", err)
	}
	c.state = s
	if err := writeState(o.Dir, s); err != nil {
		return nil, err
	}
	if err := makeDirs(o.Dir); err != nil {
		return nil, err
	}
	if err := cgroups.create(filepath.Join(s.Cgroup, "system")); err != nil {
		return nil, err
	}
	if err := c.makeNetwork(ctx); err != nil {
		return nil, err
	}
	return c, c.openForwarder()
}

// makeDirs makes the folders of a sandbox.
func makeDirs(dir string) error {
	for _, d := range []string{"logs", "run", "pki", "etcd", "images", "nodes", "tmp", "hardware"} {
		mode := os.FileMode(0o755)
		if d == "pki" || d == "etcd" {
			mode = 0o700
		}
		if err := os.Mkdir(filepath.Join(dir, d), mode); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
	}
	return nil
}

func (c *Cluster) bringUp(ctx context.Context, o Options, p *progress) error {
	if err := c.makeHardware(ctx, p); err != nil {
		return err
	}
	if err := c.makeCertificates(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.makeImages(o); err != nil {
		return err
	}
	var runtimes errgroup.Group
	runtimes.Go(func() error { return c.startRuntimes(ctx, o, p) })
	err := c.startControlPlane(ctx, o, p)
	if err := errors.Join(err, runtimes.Wait()); err != nil {
		return err
	}
	if err := c.startKubelets(ctx, p); err != nil {
		return err
	}
	if err := c.startAPINodes(ctx, p); err != nil {
		return err
	}
	if o.wantsAgent() && !o.Helm {
		if err := c.giveAgentsRights(ctx); err != nil {
			return err
		}
	}
	if len(o.Manifests) > 0 {
		if err := c.Apply(ctx, o.Manifests...); err != nil {
			return err
		}
		p.step("applied %s", strings.Join(o.Manifests, ", "))
	}
	if err := c.installBerth(ctx, o, p); err != nil || !o.wantsAgent() {
		return err // Without Berth there is no definition of GPUNodes.
	}
	return c.WriteAPIGPUNodes(ctx)
}

// startKubelets starts the kubelets, and waits until pods can be created.
func (c *Cluster) startKubelets(ctx context.Context, p *progress) error {
	kubelets, inner := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		kubelets.Go(func() error {
			if err := n.StartKubelet(inner); err != nil {
				return err
			}
			return n.WaitReady(inner)
		})
	}
	if err := errors.Join(kubelets.Wait(), c.waitForServiceAccount(ctx)); err != nil {
		return err
	}
	p.step("%d node(s) Ready", len(c.Nodes()))
	return nil
}

// installBerth installs what the options want of Berth.
func (c *Cluster) installBerth(ctx context.Context, o Options, p *progress) error {
	if o.Helm {
		return c.install(ctx, o, p)
	}
	return c.startAgents(ctx, o, p)
}

// startRuntimes creates the nodes and starts their container runtimes.
func (c *Cluster) startRuntimes(ctx context.Context, o Options, p *progress) error {
	if err := c.makeNodes(); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		if err := n.writeKubeletConfig(o); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		group.Go(func() error {
			if n.Hollow() {
				return n.startFakeCRI(ctx)
			}
			return n.startContainerd(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.step("container runtimes are ready, images imported")
	return nil
}

func (c *Cluster) makeNodes() error {
	release, err := borrowDirs(borrowed())
	if err != nil {
		return err
	}
	defer release()
	for _, n := range c.Nodes() {
		if err := n.makeNode(); err != nil {
			return err
		}
	}
	return nil
}

// startContainerd starts the node's containerd and imports the images.
func (n Node) startContainerd(ctx context.Context) error {
	if err := n.writeContainerdConfig(); err != nil {
		return err
	}
	proc, err := n.start(procContainerd, nil, filepath.Join(n.c.state.Bin, "containerd"), "--config", n.config("containerd.toml"))
	if err != nil {
		return err
	}
	if err := waitFor(ctx, "containerd of "+n.name, []Process{proc}, n.runtimeReady); err != nil {
		return err
	}
	layouts, err := filepath.Glob(filepath.Join(n.c.dir, "images", "*"))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, layout := range layouts {
		img, err := image.Open(layout)
		if err != nil {
			return err
		}
		if err := n.ImportImage(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

// makeImages keeps the images that every node gets below the sandbox's directory.
func (c *Cluster) makeImages(o Options) error {
	files := map[string]string{"/workload": filepath.Join(c.state.Bin, "workload")}
	images := map[string]func() (image.Named, error){
		"pause": func() (image.Named, error) {
			return image.Make(PauseImage, image.Spec{Files: files, Entrypoint: []string{"/workload", "pause"}})
		},
		"workload": func() (image.Named, error) {
			return image.Make(WorkloadImage, image.Spec{Files: files, Entrypoint: []string{"/workload"}, Cmd: []string{"sleep"}})
		},
	}
	for program, name := range map[string]string{"berth-agent": AgentImage, "berth-operator": OperatorImage, "berth-scheduler": SchedulerImage, "berth": WebImage} {
		layout := shippedImage(c.state.Bin, program)
		// Those that are needed were checked; the others are there for a test that installs Berth itself.
		if !o.hasHardware() || !isDir(layout) {
			continue
		}
		images[program] = func() (image.Named, error) {
			img, err := image.Open(layout)
			return image.Named{Name: name, Image: img.Image}, err
		}
	}
	for file, get := range images {
		img, err := get()
		if err != nil {
			return err
		}
		if err := image.Save(filepath.Join(c.dir, "images", file), img); err != nil {
			return err
		}
	}
	return nil
}

// shippedImage returns the layout of a program's image, as `make images` writes it below the directory of the programs.
func shippedImage(bin, program string) string { return filepath.Join(bin, "images", program) }
