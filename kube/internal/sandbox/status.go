package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WriteStatus prints the status of the sandbox, and returns the result of Health.
func (c *Cluster) WriteStatus(ctx context.Context, w io.Writer) error {
	s := c.snapshot()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "directory\t%s\nkubeconfig\t%s\nAPI server\t%s\n", c.dir, c.KubeconfigPath(), s.APIServer)
	health := c.Health(ctx)
	word := "well"
	if health != nil {
		word = "not healthy"
	}
	fmt.Fprintf(t, "state\t%s, %s\n", s.Phase, word)
	if s.APINodes > 0 {
		fmt.Fprintf(t, "API nodes\t%d, without a machine\n", s.APINodes)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "NODE\tREADY\tIP\tHARDWARE\tGPUS\tNAMESPACE PID")
	for _, n := range c.Nodes() {
		ready, gpus := "unknown", "-"
		if c.client != nil && health == nil {
			ready, gpus = c.nodeFacts(ctx, n)
		}
		st := n.state()
		hardware := st.Profile
		if st.Hollow {
			hardware = strings.TrimSpace(hardware + " (hollow)")
		}
		if hardware == "" {
			hardware = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", n.name, ready, st.IP, hardware, gpus, n.PID())
	}
	fmt.Fprintln(t, "\nPROCESS\tPID\tRUNNING\tLOG")
	for _, p := range s.Processes {
		running := "yes"
		if !p.Alive() {
			running = "no"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", displayName(p), p.PID, running, p.Log)
	}
	if health == nil {
		if err := c.writeAgents(ctx, t); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return health
}

// writeAgents adds the agents that run in pods to the list of processes.
func (c *Cluster) writeAgents(ctx context.Context, w io.Writer) error {
	for _, n := range c.Nodes() {
		if st := n.state(); st.Profile == "" || st.Hollow {
			continue
		}
		agents, err := n.Agents(ctx)
		if err != nil {
			return err
		}
		for _, p := range agents {
			fmt.Fprintf(w, "%s\t%d\tyes\tkubectl logs -n %s %s\n", displayName(p), p.PID, agentNamespace, p.Name)
		}
	}
	return nil
}

func (c *Cluster) nodeFacts(ctx context.Context, n Node) (ready, gpus string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	node, err := c.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return "unknown", "-"
	}
	ready = "no"
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
			ready = "yes"
		}
	}
	var found []string
	for name, q := range node.Status.Allocatable {
		if strings.Contains(string(name), "gpu") || strings.Contains(string(name), "mig-") {
			found = append(found, fmt.Sprintf("%s=%s", name, q.String()))
		}
	}
	if len(found) == 0 {
		return ready, "-"
	}
	slices.Sort(found)
	return ready, strings.Join(found, " ")
}

// WriteLogs lists the logs, or prints one log or its last lines.
func (c *Cluster) WriteLogs(w io.Writer, process string, lines int) error {
	paths, err := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	var names []string
	for _, path := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(path), ".log"))
	}
	if process == "" {
		for i, name := range names {
			fmt.Fprintf(w, "%-28s %s\n", name, paths[i])
		}
		return nil
	}
	i := slices.Index(names, process)
	if i < 0 {
		return fmt.Errorf("no log of %q: the processes are %s", process, strings.Join(names, ", "))
	}
	if lines > 0 {
		_, err := fmt.Fprintln(w, tail(paths[i], lines))
		return err
	}
	f, err := os.Open(paths[i])
	if err != nil {
		return fmt.Errorf("print log: %w", err)
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// RunFile creates the objects of a file and waits until its pods run or have succeeded; while a pod waits it prints
// why. It returns a *WaitError when ctx ends.
func (c *Cluster) RunFile(ctx context.Context, w io.Writer, path string) error {
	objects, err := readObjects(path)
	if err != nil {
		return err
	}
	if err := c.ApplyObjects(ctx, objects...); err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "Pod" {
			fmt.Fprintf(w, "%s %s created\n", o.GetKind(), o.GetName())
			continue
		}
		pod, err := c.waitPhase(ctx, w, o.GetNamespace(), o.GetName(), corev1.PodRunning)
		if err != nil && (pod == nil || pod.Status.Phase != corev1.PodSucceeded) {
			return err
		}
		fmt.Fprintf(w, "pod %s/%s is %s on %s\n", pod.Namespace, pod.Name, pod.Status.Phase, pod.Spec.NodeName)
	}
	return nil
}
