// Command workload is the program that the containers of a sandbox run.
package main

import (
	"os"

	"github.com/berth-gpu/berth/kube/internal/workload"
)

func main() { os.Exit(workload.Run(os.Args[1:], os.Stdout, os.Stderr)) }
