package complete

import (
	"github.com/berth-gpu/berth/internal/cluster/replay"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// arguments says how the arguments of each command are completed, by its path without the name of the program.
func arguments() map[string]completion {
	machine := completion{folders: true, most: 1}
	return map[string]completion{
		"trace":        {list: traced, most: 1},
		"why":          {list: waiting, most: 1},
		"gpus":         {list: nodes},
		"topo":         {list: nodes, most: 1},
		"top":          {list: nodes},
		"doctor":       {list: nodes, most: 1},
		"mig layouts":  {list: nodes, most: 1},
		"mig plan":     {list: nodeAndLayout, most: 2},
		"mig apply":    {list: nodeAndLayout, most: 2},
		"reset":        {list: agentGPUs, most: 1},
		"values check": {files: true, extensions: []string{"yaml", "yml"}},
		"sim create":   machine,
		"sim inject":   machine,
		"sim clear":    machine,
		"sim reboot":   machine,
		"sim upgrade":  machine,
		"sim work":     machine,
		"sim show":     machine,
	}
}

// flags says how the values of flags are completed: of a flag of one command, or of all flags with a name.
func flags() map[string]completion {
	folder, file := completion{folders: true}, completion{files: true}
	objects := completion{files: true, extensions: []string{"yaml", "yml", "json"}}
	lists := completion{files: true, extensions: []string{"csv"}}
	return map[string]completion{
		"--kubeconfig":            file,
		"--context":               {list: ofKubeconfig(func(k *Kubeconfig) []string { return k.Contexts })},
		"--cluster":               {list: ofKubeconfig(func(k *Kubeconfig) []string { return k.Clusters })},
		"--user":                  {list: ofKubeconfig(func(k *Kubeconfig) []string { return k.Users })},
		"--certificate-authority": file,
		"--client-certificate":    file,
		"--client-key":            file,
		"--namespace":             {list: namespaces},
		"--agent-namespace":       {list: namespaces},
		"--node":                  {list: allNodes},
		"--node-name":             {list: allNodes},
		"--remove-node":           {list: allNodes},
		"--if-gone":               {list: pods},
		"web --output":            values("json", "yaml"),
		"sim show --output":       values("table", "json"),
		"--file":                  objects,
		"--from":                  objects,
		"--nodes":                 lists,
		"--pods":                  lists,
		"--published":             lists,
		"--plot":                  {files: true, extensions: []string{"svg", "png"}},
		"--policy":                values(append(replay.AllNames(), "all")...),
		"--mig-layout":            values("all-balanced", "all-disabled", "all-enabled"),
		"--agent":                 file,
		"--sim":                   folder,
		"--host-root":             folder,
		"--driver-root":           folder,
		"--kubelet-dir":           folder,
		"--cdi-dir":               folder,
		"--containerd-state":      folder,
		"--pod-logs":              folder,
		"--proc":                  folder,
		"--mps-root":              folder,

		"sim create --profile":     {list: profiles},
		"--driver":                 values(sim.Drivers()...),
		"--gpu":                    {list: simulatedGPUs},
		"sim clear --gpu":          {list: clearable},
		"sim inject --row-remap":   values(sim.RowRemapPending, sim.RowRemapFailed),
		"sim inject --throttle":    values(sim.ThrottleHW, sim.ThrottleThermal, sim.ThrottlePowerBrake),
		"sim inject --fabric":      values(sim.FabricNotStarted, sim.FabricInProgress, sim.FabricFailed),
		"sim inject --recovery":    values(append(sim.RecoveryActions(), sim.RecoveryUnsupported)...),
		"sim inject --error":       values(sim.TransientErrors()...),
		"sim inject --nvlink-down": values("all"),
	}
}
