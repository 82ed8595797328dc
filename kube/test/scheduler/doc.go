// Package scheduler tests Berth's scheduler plugins within Kubernetes' scheduler: with its NodeInfo, its framework and its default plugins.
package scheduler
