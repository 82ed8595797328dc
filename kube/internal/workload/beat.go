package workload

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// beatEvery is the time between two beats.
const beatEvery = 50 * time.Millisecond

// beat prints a line every 50 ms until SIGTERM: its number, and the result of opening each NVIDIA device node below
// dir. Consecutive lines with equal results show that a container ran all the time and kept its devices.
func beat(dir string, stdout io.Writer) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		devices, err := Devices(dir)
		if err != nil {
			return err
		}
		var answers []string
		for _, d := range devices {
			answers = append(answers, d.Path+"="+open(d.Path))
		}
		if _, err := fmt.Fprintln(stdout, n, strings.Join(answers, " ")); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-signals:
			return nil
		}
	}
}
