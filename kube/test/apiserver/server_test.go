package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationapi "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
)

const (
	namespace = "berth-system"
	// accounts begins the name of each user of Berth.
	accounts = "system:serviceaccount:" + namespace + ":"
)

// server is an API server with its etcd.
type server struct {
	t       *testing.T
	bin     string
	dir     string
	config  *rest.Config
	client  kubernetes.Interface
	objects dynamic.Interface
}

// programs returns the folder of the programs.
func programs(t *testing.T) string {
	dir := os.Getenv("BERTH_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "bin")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "hyperkube")); err != nil {
		t.Skipf("skipped: the programs of the sandbox are not built: %v; build them with make sandbox-build", err)
	}
	return dir
}

// start starts etcd and an API server, and waits until it is ready. Both end with the test.
func start(t *testing.T, bin string, argv []string, gates string) *server {
	t.Helper()
	// Not t.TempDir: a socket's path has at most 107 characters.
	dir, err := os.MkdirTemp("", "api-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &server{t: t, bin: bin, dir: dir}
	ports := freePorts(t, 3)
	clients, peers := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	etcd := s.run("etcd", filepath.Join(bin, "hyperkube"), "etcd", "--data-dir="+s.path("etcd"), "--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers, "--unsafe-no-fsync", "--log-level=warn")
	s.write("sa.key", newKey(t))
	token := rand.Text()
	s.write("tokens.csv", []byte(token+",admin,admin,system:masters\n"))
	s.write("audit.yaml", []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"))
	args := []string{"--etcd-servers=" + clients, "--bind-address=127.0.0.1", "--secure-port=" + ports[2], "--cert-dir=" + s.path("certs"),
		"--token-auth-file=" + s.path("tokens.csv"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + s.path("sa.key"), "--service-account-signing-key-file=" + s.path("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/16", "--endpoint-reconciler-type=none", "--allow-privileged=true", "--profiling=false",
		"--audit-policy-file=" + s.path("audit.yaml"), "--audit-log-path=" + s.path("audit.log"), "--audit-log-mode=blocking"}
	if gates != "" {
		args = append(args, "--feature-gates="+gates)
	}
	api := s.run("kube-apiserver", append(argv, args...)...)
	s.config = &rest.Config{Host: "https://127.0.0.1:" + ports[2], BearerToken: token, QPS: 1000, Burst: 1000, TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("certs/apiserver.crt")}}
	for _, p := range []*process.Process{etcd, api} {
		s.wait(time.Minute, "the API server", p, func(ctx context.Context) (err error) {
			if s.client == nil {
				if s.client, err = kubernetes.NewForConfig(s.config); err != nil { // Its certificate is not written yet.
					s.client = nil
					return err
				}
			}
			return s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		})
	}
	if s.objects, err = dynamic.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	s.kubeconfig("admin", token)
	return s
}

func (s *server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *server) write(name string, text []byte) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), text, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// run starts a program, which ends with the test; of a test that failed, its last lines are shown.
func (s *server) run(name string, argv ...string) *process.Process {
	s.t.Helper()
	p, err := process.Start(s.dir, name, nil, argv...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		p.Stop()
		if s.t.Failed() {
			s.t.Logf("the end of the log of %s:\n%s", name, p.Tail())
		}
	})
	return p
}

// wait waits until ready returns nil, while a program runs.
func (s *server) wait(limit time.Duration, what string, p *process.Process, ready func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	if err := p.Wait(ctx, what, ready); err != nil {
		s.t.Fatal(err)
	}
}

// kubeconfig writes a kubeconfig of a user with a token, and returns its path.
func (s *server) kubeconfig(user, token string) string {
	s.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthority: s.path("certs/apiserver.crt")}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: user}
	config.CurrentContext = "c"
	path := s.path(user + ".conf")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// account writes a kubeconfig of a service account of the chart: with its rights and no others. A token of a pod names its Node.
func (s *server) account(name, pod string) string {
	s.t.Helper()
	request := &authenticationapi.TokenRequest{}
	if pod != "" {
		request.Spec.BoundObjectRef = &authenticationapi.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod}
	}
	made, err := s.client.CoreV1().ServiceAccounts(namespace).CreateToken(s.t.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.kubeconfig(name, made.Status.Token)
}

// request is a request of a user of Berth, as the API server's audit log has it.
type request struct {
	User           struct{ Username string }
	Verb           string
	RequestURI     string
	ResponseStatus struct{ Code int }
}

func (r request) String() string {
	return fmt.Sprintf("%s %s %s: %d", strings.TrimPrefix(r.User.Username, accounts), r.Verb, r.RequestURI, r.ResponseStatus.Code)
}

// writes returns what Berth has written: the renewals of the operator's Lease in number, and all other writes since the last but so many.
func (s *server) writes() (renewals int, others []request, err error) {
	text, err := os.ReadFile(s.path("audit.log"))
	if err != nil {
		return 0, nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break // It is being written.
		}
		if !strings.HasPrefix(r.User.Username, accounts) {
			continue
		}
		switch r.Verb {
		case "get", "list", "watch":
		case "update":
			if strings.Contains(r.RequestURI, "/leases/") {
				renewals++
				continue
			}
			fallthrough
		default:
			renewals, others = 0, append(others, r)
		}
	}
	return renewals, others, nil
}

func newKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// freePorts returns ports of the loopback that are free now.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	var errs []error
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // It is closed at once.
		if err != nil {
			t.Fatal(err)
		}
		defer func() { errs = append(errs, listener.Close()) }()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		errs = append(errs, err)
		ports = append(ports, port)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ports
}
