package sandbox

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki creates the certificates of a sandbox. The CA's key stays in the directory, so that certificates for nodes can be
// issued later.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

func newPKI(dir string) (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	p := &pki{dir: dir, key: key}
	p.cert = template(pkix.Name{CommonName: "berth-sandbox"})
	p.cert.IsCA, p.cert.BasicConstraintsValid = true, true
	p.cert.KeyUsage |= x509.KeyUsageCertSign
	if err := p.issue("ca", p.cert, key); err != nil {
		return nil, err
	}
	// Service account tokens are signed with a separate key.
	sa, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make service-account key: %w", err)
	}
	if err := writeKey(p.path("sa.key"), sa); err != nil {
		return nil, err
	}
	pub, err := x509.MarshalPKIXPublicKey(sa.Public())
	if err != nil {
		return nil, fmt.Errorf("encode service-account key: %w", err)
	}
	return p, writePEM(p.path("sa.pub"), "PUBLIC KEY", pub, 0o644)
}

func template(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// client creates NAME.crt and NAME.key for a user in the given groups.
func (p *pki) client(name, user string, groups ...string) error {
	return p.pair(name, template(pkix.Name{CommonName: user, Organization: groups}))
}

// server creates NAME.crt and NAME.key for the given DNS names and addresses.
func (p *pki) server(name, subject string, hosts ...string) error {
	t := template(pkix.Name{CommonName: subject})
	for _, h := range hosts {
		if addr := net.ParseIP(h); addr != nil {
			t.IPAddresses = append(t.IPAddresses, addr)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return p.pair(name, t)
}

func (p *pki) pair(name string, t *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key %s: %w", name, err)
	}
	return p.issue(name, t, key)
}

func (p *pki) issue(name string, t *x509.Certificate, key crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, t, p.cert, key.Public(), p.key)
	if err != nil {
		return fmt.Errorf("sign certificate %s: %w", name, err)
	}
	if err := writePEM(p.path(name+".crt"), "CERTIFICATE", der, 0o644); err != nil {
		return err
	}
	return writeKey(p.path(name+".key"), key)
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return writePEM(path, "PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}

// kubeconfig writes a kubeconfig at path for the client certificate NAME.
func (p *pki) kubeconfig(path, server, name string) error {
	var data [3][]byte
	for i, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		var err error
		if data[i], err = os.ReadFile(p.path(file)); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	const at = "berth-sandbox"
	cfg := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{at: {Server: server, CertificateAuthorityData: data[0]}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: data[1], ClientKeyData: data[2]}},
		Contexts:       map[string]*clientcmdapi.Context{at: {Cluster: at, AuthInfo: name}},
		CurrentContext: at,
	}
	if err := clientcmd.WriteToFile(cfg, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
