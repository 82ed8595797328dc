// Package apiserver runs the chart, the operator, the agent and the command line against API servers of several versions of Kubernetes,
// which are processes on the loopback, with etcd. There is no kubelet and no controller: pods are objects only.
package apiserver
