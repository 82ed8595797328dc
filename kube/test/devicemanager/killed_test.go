package devicemanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/dra"
)

// envChild makes the test program an agent, which kills itself at a step; its value is a child in JSON.
const envChild = "BERTH_TEST_CHILD"

// child is an agent in a process of its own.
type child struct {
	Dir        string
	Server     string
	CgroupRoot string
	// Step is the one at which it is killed when it comes to it for the Nth time, from 1.
	Step string
	Nth  int32
}

// runChild runs an agent until it is killed.
func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	with, err := connect(c.Server, c.Dir)
	if err != nil {
		return err
	}
	if with.machine, err = sim.Open(filepath.Join(c.Dir, "sim")); err != nil {
		return err
	}
	var times atomic.Int32
	with.fault = func(step string) error {
		if step != c.Step || times.Add(1) != c.Nth {
			return nil
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {} // Nothing after the step happens.
	}
	_, log, err := agentLog(c.Dir)
	if err != nil {
		return err
	}
	made, err := newAgent(c.Dir, c.CgroupRoot, with, log)
	if err != nil {
		return err
	}
	return errors.Join(made.Run(context.Background()), errors.New("the agent was not killed"))
}

// runKilled replaces the agent by one in another process that is killed at a step, while do runs. It returns when that one is dead.
func (m *mixed) runKilled(step dra.Step, nth int32, do func()) {
	m.t.Helper()
	m.stop()
	m.stop = func() {}
	text, err := json.Marshal(child{Dir: m.dir, Server: m.server, CgroupRoot: "/" + m.runtime.root, Step: string(step), Nth: nth})
	if err != nil {
		m.t.Fatal(err)
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), envChild+"="+string(text))
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	m.awaitSettled()
	do()
	select {
	case err := <-ended:
		if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			m.t.Fatalf("the agent ended with %v, and not by SIGKILL", err)
		}
	case <-time.After(settles):
		command.Process.Kill()
		<-ended
		m.t.Fatalf("the agent did not come to the step %q", step)
	}
}

// TestKilled kills the agent with SIGKILL at each step of a prepare and of an unprepare, with the kubelet's DRA manager, which calls
// again. The pod then runs or ends, and nothing is left: no holding, no CDI spec of a claim, no socket, no entry of the kubelet.
func TestKilled(t *testing.T) {
	m := newMixed(t, "a100x8-40g", 8, 0, 1, 2, 3)
	start := func() { m.stop = m.startAgent(m.options) }
	for _, test := range []struct {
		operation dra.Operation
		step      dra.Step
		nth       int32
	}{
		{dra.Prepare, dra.StepLocked, 1},
		{dra.Prepare, dra.StepChecked, 1},
		{dra.Prepare, dra.StepAcquired, 1},
		{dra.Unprepare, dra.StepLocked, 2}, // The first is the prepare's.
		{dra.Unprepare, dra.StepReleased, 1},
	} {
		for name, next := range map[string]func(){
			"the agent starts again":                   start,
			"the kubelet restarts, then the agent":     func() { m.restartKubelet(nil); start() },
			"the agent starts again, then the kubelet": func() { start(); m.restartKubelet(nil) },
		} {
			t.Run(fmt.Sprintf("%s, %s, %s", test.operation, test.step, name), func(t *testing.T) {
				defer m.within(t)()
				var claim *claimed
				var finished chan struct{}
				m.runKilled(test.step, test.nth, func() {
					var ok bool
					if claim, ok = m.claimPods(2, 1); !ok {
						t.Fatal("the claim does not fit")
					}
					if test.operation == dra.Unprepare {
						m.awaitRunning(claim.pods[0])
						finished = claim.pods[0].finished
						claim.pods[0].kill()
					}
				})
				next()
				if test.operation == dra.Prepare {
					m.awaitRunning(claim.pods[0])
					m.doubleHolders()
				} else {
					select {
					case <-finished:
					case <-time.After(settles):
						t.Fatalf("the pod has not ended: %v", m.refusal(claim.pods[0]))
					}
				}
				m.end(claim)
				m.awaitReleased()
				m.awaitSettled()
				m.nothingLeaks()
				m.noConflict()
			})
		}
	}
}
