// Package configwatch follows where a node's configuration comes from while the agent
// runs: the file of --config, a key of a ConfigMap that the node's label chooses, the
// ConfigMap of MIG layouts, and the node's label nvidia.com/mig.config.
//
// It guarantees that what it says is in force is complete and consistent; that a bad new
// configuration leaves the last good one in force, over a restart of the agent too (it is
// kept on disk before it takes effect), and is named with line, field and fix; that
// settings which only a start can change keep their value; and that a change is seen
// within a second. ConfigMaps are watched through the API, since mounted ones lag by a minute or more.
//
// It decides nothing about GPUs. It must not import any room but config and the public types.
package configwatch
