// Package placement is the plugin of berth-scheduler that decides on which node a pod with GPUs runs.
package placement
