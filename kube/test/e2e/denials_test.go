package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/kube/internal/sandbox"
)

// mayBeDenied are the tests at whose end the API server may have refused something to a program of the release, with the reason. In all
// others a refusal is a defect: of the chart's rights, of a policy, or of the program.
func mayBeDenied() map[string]string {
	return map[string]string{
		// It looks itself before that.
		"TestInstallChart": "Helm removes the rights of a release before its programs have ended",
		// It looks itself but for that time.
		"TestOperateDocs": "Helm removes the rights of a release before its programs have ended",
	}
}

// What the API server says while the namespace of an object, or the definition of its kind, is being deleted, as some tests do. A program
// that has just read the namespace or the definition may meet it, whatever its rights.
const (
	namespaceEnds  = "because it is being terminated"
	definitionEnds = "create not allowed while custom resource definition is terminating"
)

// denials returns what the API server refused to Berth's programs since a time. What tests try with an agent's token has the tests' own
// User-Agent.
func denials(c *sandbox.Cluster, since time.Time) ([]string, error) {
	all, err := c.Denials(since)
	var of []string
	for _, d := range all {
		if strings.HasPrefix(d.Program, "berth-") && !strings.Contains(d.String(), namespaceEnds) && !strings.Contains(d.String(), definitionEnds) {
			of = append(of, d.String())
		}
	}
	return of, err
}

// checkDenials fails the test when the API server refused something to a program of the release, unless the test is one in which it has to.
func checkDenials(t testing.TB, c *sandbox.Cluster, since time.Time) {
	t.Helper()
	found, err := denials(c, since)
	if err != nil {
		t.Error(err)
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	if why := mayBeDenied()[test]; why == "" && len(found) > 0 {
		t.Errorf("the API server refused %d requests of Berth's programs:\n%s", len(found), strings.Join(found, "\n"))
	}
}

// sharedDenials returns an error when the API server of the shared sandbox refused something since a time.
func sharedDenials(c *sandbox.Cluster, since time.Time) error {
	found, err := denials(c, since)
	if err != nil {
		return err
	}
	requests, err := c.Requests()
	if err != nil {
		return err
	}
	fmt.Printf("the shared API server refused %d of %d requests of Berth's programs\n", len(found), requests)
	if len(found) > 0 {
		return fmt.Errorf("the API server refused requests of Berth's programs:\n%s", strings.Join(found, "\n"))
	}
	return nil
}
