package agent

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// oomScoreAdj is what the kubelet gives to the pods of system-node-critical (pkg/kubelet/qos/policy.go). Without that class, and with a
// memory request of 0, it gives 999: the kernel would end the agent before nearly all other processes when the node is out of memory.
const oomScoreAdj = -997

// setOOMScore makes the kernel end the process whose file this is after nearly all others. A lower score stays.
func setOOMScore(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if now <= oomScoreAdj {
		return nil
	}
	return os.WriteFile(file, []byte(strconv.Itoa(oomScoreAdj)), 0o644)
}

// LowerOOMScore makes the kernel end an agent in a pod after nearly all others when the node is out of memory. One that runs elsewhere
// keeps the score of its service.
func LowerOOMScore(log *slog.Logger) {
	if os.Getenv("POD_NAME") == "" {
		return
	}
	if err := setOOMScore("/proc/self/oom_score_adj"); err != nil {
		log.Info("The kernel may end the agent early when the node is out of memory: its score cannot be lowered, which takes CAP_SYS_RESOURCE", "error", err)
	}
}
