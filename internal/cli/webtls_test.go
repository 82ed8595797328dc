package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/httpserver"
)

// writeCertificate writes a certificate of a name and its key.
func writeCertificate(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWebTLS: a new certificate is used without a restart, and while its files cannot be used, the first one is. Older TLS is refused.
func TestWebTLS(t *testing.T) {
	dir := t.TempDir()
	flags := &webFlags{address: "127.0.0.1", certFile: filepath.Join(dir, "tls.crt"), keyFile: filepath.Join(dir, "tls.key")}
	plain, err := flags.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := flags.secure(); err == nil || !strings.Contains(err.Error(), "read the certificate") {
		t.Fatalf("without files: %v", err)
	}
	writeCertificate(t, dir, "first")
	secure, err := flags.secure()
	if err != nil {
		t.Fatal(err)
	}
	server := httpserver.New(httpserver.Options{Handler: http.NotFoundHandler(), TLS: secure})
	go func() { _ = server.Serve(plain) }()
	defer server.Close()
	name := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Errorf("got the certificate of %s", got)
	}
	writeCertificate(t, dir, "second")
	if got := name(); got != "second" {
		t.Errorf("after a renewal: got the certificate of %s", got)
	}
	if err := os.Remove(flags.keyFile); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "first" {
		t.Errorf("without a key: got the certificate of %s", got)
	}
	if _, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
}
