// Package sandbox runs a real Kubernetes on one machine: etcd, the API server, the controller manager, the scheduler
// and, per node, a kubelet with its own containerd. It needs root and runc, pulls nothing, and leaves nothing behind.
//
// Everything that it creates is below one directory and in one cgroup, both recorded in that directory's state file, so
// that a sandbox whose creator was killed can still be found and removed:
//
//	DIR/state.json            what was started: processes, nodes, addresses
//	DIR/kubeconfig            cluster-admin access
//	DIR/logs/                 one file per process
//	DIR/pki/, DIR/etcd/       certificates, the API server's storage
//	DIR/images/               the image tarballs made here
//	DIR/nodes/NAME/kubelet    the node's /var/lib/kubelet
//	DIR/nodes/NAME/etc-cdi    the node's /etc/cdi
//	DIR/nodes/NAME/lib-berth  the node's /var/lib/berth
//	DIR/nodes/NAME/run        the node's /run (its cdi/ is /var/run/cdi)
//	DIR/nodes/NAME/log        the node's /var/log, with the logs of its pods: the agent's are in pods/berth-system_*
//	DIR/nodes/NAME/sim        the node's simulated hardware
//
// A kubelet's device plugin directory is hard-coded, so each node has its own mount namespace, in which the directories
// above are bind-mounted at the usual paths. From outside, files and sockets in them are visible in the directories
// above; what the node mounts itself (the volumes of its pods, the root file systems of its containers) is visible only
// through /proc/PID/root, where PID is the node's [Node.PID].
package sandbox
