package workload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// accountDir is where the kubelet mounts the credentials of a pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// askAPI queries the API server as every in-cluster client does: at the address in the environment, with the token and
// the CA of the service account.
func askAPI(path string, stdout io.Writer) error {
	token, err := os.ReadFile(filepath.Join(accountDir, "token"))
	if err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(accountDir, "ca.crt"))
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return fmt.Errorf("read CA: no certificate in it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		fmt.Fprintln(stdout, resp.Status)
	}
	_, err = io.Copy(stdout, resp.Body)
	return err
}
