package sandbox

import (
	"context"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// makeCertificates creates every certificate and kubeconfig of the sandbox.
func (c *Cluster) makeCertificates() error {
	p, err := newPKI(filepath.Join(c.dir, "pki"))
	if err != nil {
		return err
	}
	steps := []error{
		p.server("etcd", "etcd", "127.0.0.1", "localhost"),
		p.server("apiserver", "kube-apiserver", serviceIP, "127.0.0.1", "localhost", "kubernetes",
			"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
		p.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
		p.client("front-proxy", "front-proxy-client"),
		p.client("admin", "berth-sandbox-admin", "system:masters"),
		p.client("controller-manager", "system:kube-controller-manager"),
		p.client("scheduler", "system:kube-scheduler"),
	}
	for _, n := range c.state.Nodes {
		steps = append(steps,
			p.client("kubelet-"+n.Name, "system:node:"+n.Name, "system:nodes"),
			p.server("kubelet-"+n.Name+"-serving", "system:node:"+n.Name, n.IP, n.Name))
	}
	for _, err := range steps {
		if err != nil {
			return err
		}
	}
	configs := map[string]string{
		c.KubeconfigPath():                   "admin",
		c.pkiPath("admin.conf"):              "admin",
		c.pkiPath("controller-manager.conf"): "controller-manager",
		c.pkiPath("scheduler.conf"):          "scheduler",
	}
	for _, n := range c.state.Nodes {
		configs[c.pkiPath("kubelet-"+n.Name+".conf")] = "kubelet-" + n.Name
	}
	for path, user := range configs {
		server := apiServerInside
		if path == c.KubeconfigPath() {
			server = c.state.APIServer
		}
		if err := p.kubeconfig(path, server, user); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) pkiPath(name string) string { return filepath.Join(c.dir, "pki", name) }

func (c *Cluster) hyperkube(name string, args ...string) launch {
	return launch{name: name, argv: append([]string{filepath.Join(c.state.Bin, "hyperkube"), name}, args...)}
}

// startControlPlane starts etcd, the API server, the controller manager and the scheduler, and waits until pods can be
// created.
func (c *Cluster) startControlPlane(ctx context.Context, o Options, p *progress) error {
	const etcdClients, etcdPeers = "https://127.0.0.1:2379", "https://127.0.0.1:2380"
	etcd, err := c.start(c.hyperkube("etcd",
		"--data-dir="+filepath.Join(c.dir, "etcd"),
		"--listen-client-urls="+etcdClients, "--advertise-client-urls="+etcdClients,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers, "--initial-cluster=default="+etcdPeers,
		"--client-cert-auth", "--trusted-ca-file="+c.pkiPath("ca.crt"), "--cert-file="+c.pkiPath("etcd.crt"),
		"--key-file="+c.pkiPath("etcd.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+c.pkiPath("ca.crt"),
		"--peer-cert-file="+c.pkiPath("etcd.crt"), "--peer-key-file="+c.pkiPath("etcd.key"),
		// No data has to survive a crash of the machine.
		"--unsafe-no-fsync", "--log-level=warn",
	))
	if err != nil {
		return err
	}
	audit, err := c.auditFlags()
	if err != nil {
		return err
	}
	api, err := c.start(c.hyperkube("kube-apiserver", append(slices.Concat(o.gateFlags(), o.runtimeFlags(), audit),
		"--etcd-servers="+etcdClients, "--etcd-cafile="+c.pkiPath("ca.crt"), "--etcd-certfile="+c.pkiPath("etcd.crt"),
		"--etcd-keyfile="+c.pkiPath("etcd.key"),
		"--bind-address="+serviceIP, "--secure-port=443",
		"--tls-cert-file="+c.pkiPath("apiserver.crt"), "--tls-private-key-file="+c.pkiPath("apiserver.key"),
		"--client-ca-file="+c.pkiPath("ca.crt"),
		"--kubelet-certificate-authority="+c.pkiPath("ca.crt"),
		"--kubelet-client-certificate="+c.pkiPath("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+c.pkiPath("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.pkiPath("sa.pub"), "--service-account-signing-key-file="+c.pkiPath("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false",
		"--service-cluster-ip-range="+serviceCIDR, "--endpoint-reconciler-type=none",
		"--allow-privileged=true", "--profiling=false",
		// Aggregated APIs need these flags, and without them the controller manager and the scheduler log errors
		// continuously.
		"--requestheader-client-ca-file="+c.pkiPath("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.pkiPath("front-proxy.crt"), "--proxy-client-key-file="+c.pkiPath("front-proxy.key"),
	)...))
	if err != nil {
		return err
	}
	if err := waitFor(ctx, "the API server", []Process{etcd, api}, func(ctx context.Context) error {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	p.step("etcd and kube-apiserver are ready at %s", c.state.APIServer)

	manager, err := c.start(c.hyperkube("kube-controller-manager", append(o.gateFlags(),
		"--kubeconfig="+c.pkiPath("controller-manager.conf"),
		"--authentication-kubeconfig="+c.pkiPath("controller-manager.conf"),
		"--authorization-kubeconfig="+c.pkiPath("controller-manager.conf"),
		"--bind-address=127.0.0.1",
		"--root-ca-file="+c.pkiPath("ca.crt"), "--service-account-private-key-file="+c.pkiPath("sa.key"),
		"--use-service-account-credentials",
		"--leader-elect=false", "--allocate-node-cidrs=false",
		// The default client-side rate limit would slow its start.
		"--kube-api-qps=1000", "--kube-api-burst=1000",
	)...))
	if err != nil {
		return err
	}
	launch, err := c.schedulerLaunch(o)
	if err != nil {
		return err
	}
	if o.Scheduler != "" {
		if err := c.grantScheduler(ctx); err != nil {
			return err
		}
	}
	scheduler, err := c.start(launch)
	if err != nil {
		return err
	}
	c.controllers = []Process{etcd, api, manager, scheduler}
	return nil
}

// waitForServiceAccount waits until pods can be created: admission refuses them until the controller manager has
// created the default service account.
func (c *Cluster) waitForServiceAccount(ctx context.Context) error {
	return waitFor(ctx, "the default service account", c.controllers, func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}
