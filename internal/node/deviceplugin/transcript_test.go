package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/node/deviceplugin/fakekubelet"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestTranscripts runs the scripts in testdata/transcripts: agents and a kubelet start and end, and after each step the test waits for
// the kubelet's state, and prints it.
//
//	kubelet start [legacy] | stop | kill
//	agent start NAME [gpus=N] | agent stop NAME
//	gpu N healthy|unhealthy      for all agents
//	offer RESOURCE…              what all agents offer
//	block N quiet|unhealthy      the ledger blocks a GPU, which is advertised as healthy or unhealthy
//	unblock N
//	remove                       another process removes our sockets
//	await [RESOURCE]             the kubelet's state, once it is as written, or after a timeout
//	sockets                      the files of the directory, likewise
//	allocate ID… | prefer SIZE ID…
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		script := &script{t: t, dir: kubeletDir(t), hardware: machine(8), ledger: &blocks{}, agents: make(map[string]*agent)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			script.t = t
			return script.play(d)
		})
		script.end()
	})
}

type script struct {
	t        *testing.T
	dir      string
	hardware *hardware
	ledger   *blocks
	kubelet  *fakekubelet.Kubelet
	agents   map[string]*agent
}

func (s *script) end() {
	for _, a := range s.agents {
		a.stop(s.t)
	}
	if s.kubelet != nil {
		s.kubelet.Stop()
	}
}

// play runs one directive; its words are in the first line.
func (s *script) play(d *datadriven.TestData) string {
	words := make([]string, 0, len(d.CmdArgs))
	for _, arg := range d.CmdArgs {
		words = append(words, arg.Key)
	}
	switch d.Cmd {
	case "kubelet":
		return s.playKubelet(words)
	case "agent":
		return s.playAgent(words)
	case "gpu":
		s.hardware.setHealthy(number(words[0]), words[1] == "healthy")
	case "offer":
		s.offer(words)
	case "block", "unblock":
		s.block(words)
	case "remove":
		if err := Remove(s.dir); err != nil {
			return err.Error()
		}
	case "await":
		return s.await(append(words, resource)[0], d.Expected)
	case "sockets":
		return s.awaitText(d.Expected, s.sockets)
	case "allocate", "prefer":
		return s.request(d.Cmd, words)
	default:
		s.t.Fatalf("unknown directive %q", d.Cmd)
	}
	return "ok"
}

func (s *script) playKubelet(words []string) string {
	switch words[0] {
	case "start":
		k, err := fakekubelet.Start(s.dir, fakekubelet.Options{Legacy: slices.Contains(words, "legacy")})
		if err != nil {
			return err.Error()
		}
		s.kubelet = k
	case "stop":
		s.kubelet.Stop()
		s.kubelet = nil
	case "kill":
		s.kubelet.Kill()
		s.kubelet = nil
	}
	return "ok"
}

func (s *script) playAgent(words []string) string {
	name := words[1]
	if words[0] == "stop" {
		s.agents[name].stop(s.t)
		delete(s.agents, name)
		return "ok"
	}
	s.agents[name] = startAgent(s.t, s.dir, s.hardware, func(m *Manager) {
		m.deps.Instance, m.deps.Ledger = name, s.ledger
	})
	return "ok"
}

func (s *script) offer(resources []string) {
	s.hardware.change(func(h *hardware) {
		h.settings = nil
		for _, name := range resources {
			h.settings = append(h.settings, offer.Settings{ResourceName: name})
		}
	})
}

func (s *script) block(words []string) {
	var block *ledger.Block
	if len(words) > 1 {
		block = &ledger.Block{Unseen: words[1] == "unhealthy"}
	}
	s.ledger.set(number(words[0]), block)
	s.hardware.change(func(*hardware) {})
}

func number(text string) int {
	var n int
	fmt.Sscan(text, &n)
	return n
}

func (s *script) await(name, expected string) string {
	if s.kubelet == nil {
		return "no kubelet\n"
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout/2)
	defer cancel()
	_ = s.kubelet.Await(ctx, name, func(state fakekubelet.State) bool { return render(state) == expected })
	return render(s.kubelet.State(name))
}

func render(state fakekubelet.State) string {
	var text strings.Builder
	primary, from := "none", "none"
	if state.Primary != "" {
		primary = short(state.Primary)
	}
	if len(state.From) > 0 {
		from = short(state.From[len(state.From)-1])
	}
	endpoints := make([]string, 0, len(state.Endpoints))
	for _, endpoint := range state.Endpoints {
		endpoints = append(endpoints, short(endpoint))
	}
	fmt.Fprintf(&text, "asks %s of %v, last list from %s\n", primary, endpoints, from)
	fmt.Fprintf(&text, "healthy %s; unhealthy %s\n", shortIDs(state.Healthy), shortIDs(state.Unhealthy))
	return text.String()
}

// awaitText polls until the text is as expected.
func (s *script) awaitText(expected string, read func() string) string {
	ticker, deadline := time.NewTicker(5*time.Millisecond), time.After(testTimeout/2)
	defer ticker.Stop()
	for {
		text := read()
		if text == expected {
			return text
		}
		select {
		case <-ticker.C:
		case <-deadline:
			return text
		}
	}
}

func (s *script) sockets() string {
	entries, err := os.ReadDir(pluginDir(s.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "no directory\n"
	}
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil {
			fmt.Fprintf(&text, "%s %s\n", entry.Name(), strings.TrimPrefix(info.Mode().String(), "S"))
		}
	}
	if text.Len() == 0 {
		return "none\n"
	}
	return text.String()
}

func (s *script) request(what string, words []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if what == "prefer" {
		ids, err := s.kubelet.Preferred(ctx, resource, words[1:], nil, number(words[0]))
		if err != nil {
			return err.Error()
		}
		return shortIDs(ids)
	}
	answer, err := s.kubelet.Allocate(ctx, resource, words)
	if err != nil {
		return err.Error()
	}
	return describe(answer)
}
