// Package configwatch follows where a node's configuration comes from while the agent
// runs: the file of --config, a key of a ConfigMap that the node's label chooses, the
// ConfigMap of MIG layouts, and the node's label nvidia.com/mig.config.
//
// It guarantees:
//
//   - What it says is in force is complete and consistent.
//   - A bad new configuration leaves the last good one in force, over a restart and a reboot too (it is kept on disk before
//     it takes effect), and is named with line, field and fix. Bad is also one that the hardware cannot have for a device
//     that is offered now, which a Judge tells; before the hardware was scanned the last good one stays in force.
//   - Once a key of the ConfigMap was in force, a ConfigMap that is gone, has no key, or has several of which nothing
//     chooses one, is a refusal too. The label's value "default" and a start without --config-map go back to the defaults.
//   - Bad MIG layouts leave the last good ones in force, over a restart and a reboot. When there were none, State says so.
//   - While the API does not answer, the labels of the Node that were known last count after Patience.
//   - What was kept of another Node, by its UID, is void as soon as our Node's UID is known.
//   - Settings which only a start can change keep their value.
//   - A change is seen within a second. ConfigMaps are watched through the API, since mounted ones lag by a minute or more.
//
// Current reads memory only: parsing and writing to the disk are done by one goroutine, which no reader waits for.
//
// It decides nothing about GPUs. It must not import any package but config, spelling, statefile and the public types.
package configwatch
