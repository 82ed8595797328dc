// Package configwatch follows the sources of a node's configuration while the agent runs: the file of --config, a key
// of a ConfigMap that the node's label chooses, the ConfigMap of MIG layouts, and the node's label
// nvidia.com/mig.config.
//
// It guarantees:
//
//   - The configuration in force is complete and consistent.
//   - An invalid new configuration leaves the last valid one in force, also after a restart and a reboot (it is stored
//     on disk before it takes effect), and is reported with line, field and fix. A configuration is also invalid when
//     the hardware does not support it for a device that is advertised now, which a Judge decides; until the hardware
//     was scanned the last valid one stays in force.
//   - After a key of the ConfigMap was in force, a ConfigMap that is missing, has no key, has several keys of which
//     none is chosen, or only another key, is refused too. The label's value "default" and a start without --config-map return to the
//     defaults.
//   - Invalid MIG layouts leave the last valid ones in force, also after a restart and a reboot. State reports it when
//     there were none.
//   - While the API does not respond, the last known labels of the Node apply after AnswerTimeout.
//   - What was stored for another Node, by its UID, is discarded when the UID of the agent's Node is known.
//   - Static settings keep their value until the agent restarts. A start begins with those of the last configuration of the
//     ConfigMap; the first one of a node asks the API, for AnswerTimeout. The name of the Node, the persistent directory and standalone
//     are those of the file and the flags.
//   - Where settings were in force, a text without any content is refused: an editor or a tool has emptied it. A text that only has a kind
//     selects the defaults. A file is read when it has been equal for 200 ms, since an edit in place passes through other valid files.
//   - A start does not put the last valid configuration in force before one that is valid now: see AwaitDecision and State.Pending.
//   - What could not be stored is in force all the same, is reported, and is written again until that succeeds.
//   - A change takes effect within a second. ConfigMaps are watched through the API, because mounted ones are updated a
//     minute or more later.
//
// Current only reads memory: one goroutine parses and writes to disk, and no reader waits for it.
//
// A [Reporter] reports whether the newest configuration is in force: the condition ConfigAccepted of the GPUNode, and the problems of the
// source "config". It applies nothing: what depends on the configuration reads it from the watcher and has a subscription of its own.
//
// It decides nothing about GPUs but asks package offer ([JudgeByHardware]). It must not import an adapter, the ledger or a front end.
package configwatch
