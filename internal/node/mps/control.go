package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/core/safetext"
)

const (
	// commandTimeout bounds a command; maxAnswer bounds the output that is kept, in bytes.
	commandTimeout = 10 * time.Second
	maxAnswer      = 64 << 10
)

// control sends commands to one daemon.
type control struct {
	program []string
	pipe    string
	log     string
}

// errUnanswered means that no daemon accepted the command.
var errUnanswered = errors.New("the control daemon does not answer")

// ask runs one command and returns its output. The error is errUnanswered when no daemon runs.
func (c control) ask(ctx context.Context, timeout time.Duration, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program[0], c.program[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Env = environment("CUDA_MPS_PIPE_DIRECTORY="+c.pipe, "CUDA_MPS_LOG_DIRECTORY="+c.log)
	cmd.Stdin = strings.NewReader(command + "\n")
	var out, errOut limited
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		output := shorten(strings.TrimSpace(out.String() + " " + errOut.String()))
		if ctx.Err() != nil {
			output = fmt.Sprintf("no answer within %s", timeout)
		}
		return "", fmt.Errorf("ask %q: %w: %w: %s", command, errUnanswered, err, output)
	}
	return strings.TrimSpace(out.String()), nil
}

// environment returns this process's environment without CUDA variables and the mark, plus entries.
func environment(entries ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CUDA_") && !strings.HasPrefix(entry, markName+"=") {
			env = append(env, entry)
		}
	}
	return append(env, entries...)
}

// limited is a writer that keeps the first maxAnswer bytes.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.kept.Write(p[:min(len(p), maxAnswer-l.kept.Len())])
	return len(p), nil
}

func (l *limited) String() string { return l.kept.String() }

// setLimits sets the limits of the next client, in the daemon and in its running servers.
func (c control) setLimits(ctx context.Context, limits Limits) error {
	commands := []string{fmt.Sprintf("set_default_active_thread_percentage %d", limits.ActiveThreadPercentage)}
	if limits.PinnedMemoryMiB != NoLimit {
		commands = append(commands, fmt.Sprintf("set_default_device_pinned_mem_limit 0 %dM", limits.PinnedMemoryMiB))
	}
	servers, err := c.servers(ctx)
	if err != nil {
		return err
	}
	for _, pid := range servers {
		commands = append(commands, fmt.Sprintf("set_active_thread_percentage %d %d", pid, limits.ActiveThreadPercentage))
		if limits.PinnedMemoryMiB != NoLimit {
			commands = append(commands, fmt.Sprintf("set_device_pinned_mem_limit %d 0 %dM", pid, limits.PinnedMemoryMiB))
		}
	}
	for _, command := range commands {
		if _, err := c.ask(ctx, commandTimeout, command); err != nil {
			return err
		}
	}
	return nil
}

func (c control) servers(ctx context.Context) ([]int, error) {
	text, err := c.ask(ctx, commandTimeout, "get_server_list")
	return numbers(text), err
}

// clients counts the client processes of all servers.
func (c control) clients(ctx context.Context) (int, error) {
	servers, err := c.servers(ctx)
	count := 0
	for _, pid := range servers {
		text, err := c.ask(ctx, commandTimeout, fmt.Sprintf("get_client_list %d", pid))
		if err != nil {
			return 0, err
		}
		count += len(numbers(text))
	}
	return count, err
}

// numbers returns the lines that are numbers; the other lines of the output are headings.
func numbers(text string) []int {
	var found []int
	for line := range strings.Lines(text) {
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && n > 0 {
			found = append(found, n)
		}
	}
	return found
}

// maxQuoted bounds the program output that is quoted in an error, in bytes.
const maxQuoted = 400

// shorten turns program output into one printable line. It keeps the end of a long text.
func shorten(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	text = safetext.Line(strings.Join(lines, " | "))
	if len(text) > maxQuoted {
		text = "..." + safetext.Last(text, maxQuoted)
	}
	return text
}
