package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPolicy makes the API server record the requests of the release's accounts, and no others.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + agentNamespace + `"]
- level: None
`

func (c *Cluster) auditLog() string { return filepath.Join(c.dir, "logs", "audit.jsonl") }

// auditFlags writes the policy and returns the flags of the API server.
func (c *Cluster) auditFlags() ([]string, error) {
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		return nil, fmt.Errorf("write audit policy: %w", err)
	}
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + c.auditLog(), "--audit-log-format=json", "--audit-log-mode=blocking"}, nil
}

// Denial is a request that the API server refused to an account of the release, by RBAC or by a policy.
type Denial struct {
	Time time.Time
	// Account is the user's name, and Program what its User-Agent says.
	Account string
	Program string
	// What is the verb with the path of the request.
	What string
	// Why is the API server's message.
	Why string
}

// String returns the denial on one line.
func (d Denial) String() string {
	return fmt.Sprintf("%s %s (%s): %s: %s", d.Time.Format(time.TimeOnly), d.Account, d.Program, d.What, d.Why)
}

// auditEvents calls each for the requests of the release's accounts since a time, in their order.
func (c *Cluster) auditEvents(since time.Time, each func(*auditv1.Event)) error {
	f, err := os.Open(c.auditLog())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no account made a request
	}
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
		if !event.StageTimestamp.Time.Before(since) {
			each(&event)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	return nil
}

// Denials returns what the API server refused since a time to the accounts of the release.
func (c *Cluster) Denials(since time.Time) ([]Denial, error) {
	var denials []Denial
	err := c.auditEvents(since, func(event *auditv1.Event) {
		if event.ResponseStatus == nil || event.ResponseStatus.Code != http.StatusForbidden {
			return
		}
		denials = append(denials, Denial{Time: event.StageTimestamp.Time, Account: event.User.Username, Program: event.UserAgent,
			What: event.Verb + " " + event.RequestURI, Why: event.ResponseStatus.Message})
	})
	return denials, err
}

// Writes returns the requests to write of an account of the release since a time, as verb and path, but for those of Leases.
func (c *Cluster) Writes(account string, since time.Time) ([]string, error) {
	var writes []string
	err := c.auditEvents(since, func(event *auditv1.Event) {
		if isWrite(event) && event.User.Username == "system:serviceaccount:"+agentNamespace+":"+account {
			writes = append(writes, event.Verb+" "+event.RequestURI)
		}
	})
	return writes, err
}

// isWrite reports whether an event is of a request to write something other than a Lease.
func isWrite(event *auditv1.Event) bool {
	switch event.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return event.ObjectRef == nil || event.ObjectRef.Resource != "leases"
	}
	return false
}

// Requests returns how many requests the accounts of the release have made.
func (c *Cluster) Requests() (int, error) {
	data, err := os.ReadFile(c.auditLog())
	if err != nil {
		return 0, fmt.Errorf("read audit log: %w", err)
	}
	count := 0
	for _, b := range data {
		if b == '\n' {
			count++
		}
	}
	return count, nil
}
