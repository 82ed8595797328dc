package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// TestGoldens compares what commands print with testdata/golden: to a pipe, and to terminals of 80 and of 200 columns with NO_COLOR. Each
// script has the cluster of cluster.yaml there. Besides what [TestScripts] has there is
//
//	exec terminal COLUMNS PROGRAM...   runs a program on a pseudo-terminal and prints what it wrote
func TestGoldens(t *testing.T) {
	params := scriptParams()
	params.Dir = "testdata/golden"
	inner := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("NO_COLOR", "1")
		text, err := os.ReadFile("testdata/golden/cluster.yaml")
		if err != nil {
			return err
		}
		return errors.Join(inner(env), os.WriteFile(filepath.Join(env.WorkDir, "cluster.yaml"), text, 0o600))
	}
	testscript.Run(t, params)
}

// runOnTerminal is the program terminal of the scripts.
func runOnTerminal() {
	code, err := onTerminal(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "terminal:", err)
		os.Exit(100)
	}
	os.Exit(code)
}

// onTerminal runs a program whose output and error output are a terminal, and returns its exit code. The carriage returns that a terminal
// adds are removed.
func onTerminal(out io.Writer, args []string) (int, error) {
	if len(args) < 2 {
		return 0, errors.New("want COLUMNS PROGRAM [ARGUMENT...]")
	}
	columns, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil {
		return 0, err
	}
	master, slave, err := openTerminalPair()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}); err != nil {
		return 0, err
	}
	command := exec.Command(args[1], args[2:]...)
	command.Stdout, command.Stderr = slave, slave
	if err := errors.Join(command.Start(), slave.Close()); err != nil {
		return 0, err
	}
	text, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, syscall.EIO) { // EIO says that the program has closed the terminal.
		return 0, err
	}
	if _, err := out.Write(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))); err != nil {
		return 0, err
	}
	err = command.Wait()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return 0, err
	}
	return command.ProcessState.ExitCode(), nil
}

// openTerminalPair returns both sides of a new pseudo-terminal.
func openTerminalPair() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}
