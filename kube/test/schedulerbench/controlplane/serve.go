// Package controlplane runs etcd and kube-apiserver in one process, for one run of a benchmark. It guarantees that they listen on the
// loopback interface only and that everything they write is below one directory. The API server reads flags and registries that a
// process has once, so that each control plane is a process of its own: Start starts it from the program whose command Serve is.
package controlplane

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	// token is the one client's. The API server listens on the loopback interface, and lives as long as a run.
	token = "scheduler-bench"
	// databaseBytes is the size that etcd's database may have: 50,000 pods need some 0.5 GB.
	databaseBytes = 8 << 30
	// mostRequests is how many requests the API server handles at the same time. The scheduler binds in a goroutine per pod: with the
	// default of 200 the API server would refuse some of them for a second.
	mostRequests = "5000"
)

// Lists is how the API server answers a client that starts to watch.
type Lists bool

const (
	// Ordered are plain lists: a scheduler that starts queues the pods in the order of their names.
	Ordered Lists = false
	// Streamed are Kubernetes' default: an object at a time, so that a client needs less memory. A scheduler queues the pods in no order.
	Streamed Lists = true
)

// Options are what runs differ in.
type Options struct {
	Lists Lists
	// Gates are feature gates that the API server switches on. With some it serves Kubernetes' PodGroups too, which need the gate
	// GenericWorkload.
	Gates []string
}

// flags returns those of the API server.
func (o Options) flags() []string {
	gates := fmt.Sprintf("--feature-gates=WatchList=%t", o.Lists == Streamed)
	if len(o.Gates) == 0 {
		return []string{gates}
	}
	for _, gate := range o.Gates {
		gates += "," + gate + "=true"
	}
	return []string{gates, "--runtime-config=scheduling.k8s.io/v1beta1=true"}
}

// Serve runs etcd and kube-apiserver until the process is signalled. The API server listens on the given port.
func Serve(dir string, port int, options Options) error {
	// The port is held until etcd has chosen its own.
	held, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("hold the port of the API server: %w", err)
	}
	etcd, err := startEtcd(dir)
	if err := cmp.Or(err, held.Close()); err != nil {
		return err
	}
	defer etcd.Close()
	key := filepath.Join(dir, "sa.key")
	if err := writeKey(key); err != nil {
		return err
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",scheduler-bench,scheduler-bench,system:masters\n"), 0o600); err != nil {
		return fmt.Errorf("write the token: %w", err)
	}
	server := apiserver.NewAPIServerCommand()
	server.SetArgs(append([]string{
		"--etcd-servers=http://" + etcd.Clients[0].Addr().String(),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + filepath.Join(dir, "certs"),
		"--token-auth-file=" + tokens, "--authorization-mode=AlwaysAllow", "--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.0.0.0/16", "--endpoint-reconciler-type=none",
		// No controller manager makes service accounts or removes the taints of new Nodes.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection",
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=" + mostRequests, "--max-mutating-requests-inflight=" + mostRequests,
		"--profiling=false",
	}, options.flags()...))
	return server.Execute()
}

// startEtcd starts etcd on ports that the kernel chooses. Nothing of it has to survive the machine, so that it does not wait for the
// disk.
func startEtcd(dir string) (*embed.Etcd, error) {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config := embed.NewConfig()
	config.Dir = filepath.Join(dir, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = loopback, loopback
	config.ListenPeerUrls, config.AdvertisePeerUrls = loopback, loopback
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync, config.QuotaBackendBytes, config.LogLevel = true, databaseBytes, "error"
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, fmt.Errorf("start etcd: %w", err)
	}
}

// writeKey writes a new key for the tokens of service accounts, without which the API server does not start.
func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	bytes, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes}), 0o600); err != nil {
		return fmt.Errorf("write the key of service accounts: %w", err)
	}
	return nil
}
