package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// procScheduler is the name of the cluster's own scheduler among the processes and logs, whichever program it is.
const procScheduler = "kube-scheduler"

// completeScheduler checks the scheduler's program and configuration, so that a wrong one fails before anything is started. A program
// without a directory is one of --bin, or of this folder.
func (o *Options) completeScheduler() error {
	if o.Scheduler != "" {
		path := o.Scheduler
		if inBin := filepath.Join(o.Bin, path); !strings.ContainsRune(path, '/') && isProgram(inBin) {
			path = inBin
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return fmt.Errorf("resolve --scheduler: %w", err)
		}
		if !isProgram(path) {
			return fmt.Errorf("--scheduler %s: %s is no program that can be run: build it, for example hack/build.sh scheduler, and name its path",
				o.Scheduler, path)
		}
		o.Scheduler = path
	}
	if o.SchedulerConfig == "" {
		return nil
	}
	_, err := o.schedulerConfig("")
	return err
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// schedulerConfig returns the configuration that the options name, with what a sandbox's scheduler needs: kube-scheduler ignores its flags
// for these beside --config. Its Lease is left out, since there is one process; the rate limit of the client only where the file has none.
func (o *Options) schedulerConfig(kubeconfig string) ([]byte, error) {
	text, err := os.ReadFile(o.SchedulerConfig)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w; name a file with a KubeSchedulerConfiguration", err)
	}
	var config map[string]any
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return nil, fmt.Errorf("--scheduler-config %s: this is not YAML of one object: %w", o.SchedulerConfig, err)
	}
	if kind, version := config["kind"], config["apiVersion"]; kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("--scheduler-config %s: it is a %v of %v: want kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1; "+
			"of a ConfigMap of the chart, give what is below config.yaml", o.SchedulerConfig, kind, version)
	}
	client, ok := config["clientConnection"].(map[string]any)
	if !ok {
		client = map[string]any{"qps": 1000, "burst": 1000}
	}
	client["kubeconfig"] = kubeconfig
	config["clientConnection"] = client
	config["leaderElection"] = map[string]any{"leaderElect": false}
	return yaml.Marshal(config)
}

// grantScheduler lets the user of the cluster's scheduler read GPUNodes, as the chart lets berth-scheduler.
func (c *Cluster) grantScheduler(ctx context.Context) error {
	meta := metav1.ObjectMeta{Name: "berth-sandbox-scheduler"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.Group}, Resources: []string{"gpunodes"}, Verbs: []string{"get", "list", "watch"}}}}
	if _, err := c.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("let the scheduler read GPUNodes: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kube-scheduler"}}}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("let the scheduler read GPUNodes: %w", err)
	}
	return nil
}

// schedulerLaunch returns how the scheduler of the cluster is started.
func (c *Cluster) schedulerLaunch(o Options) (launch, error) {
	kubeconfig := c.pkiPath("scheduler.conf")
	args := append(o.gateFlags(), "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--bind-address=127.0.0.1")
	if o.SchedulerConfig == "" {
		// The default client-side rate limit would slow pods down.
		args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=1000")
	} else {
		text, err := o.schedulerConfig(kubeconfig)
		if err != nil {
			return launch{}, err
		}
		file := filepath.Join(c.dir, "scheduler.yaml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return launch{}, fmt.Errorf("write configuration of the scheduler: %w", err)
		}
		args = append(args, "--config="+file)
	}
	if o.Scheduler == "" {
		return c.hyperkube(procScheduler, args...), nil
	}
	return launch{name: procScheduler, argv: append([]string{o.Scheduler}, args...)}, nil
}
