// Package migapply carries MIG plans out on this node: given what each card is to be,
// it waits for those in the way, changes the cards, and says how far it is.
//
// It guarantees that
//   - nothing that is held is destroyed: whatever goes is taken from the ledger first, as
//     maintenance, and a card of which that fails is left as it is;
//   - a GPU instance that looks empty is removed only while nobody holds a MIG device of its GPU that the
//     scan does not list, and never with a compute instance;
//   - a GPU that has to be reset is not touched while any program has it open: it waits for 30 seconds,
//     has then failed with the name of the program, serves as it is, and is tried again;
//   - of a card that waits, what is free and will go is barred, so that it drains;
//   - cards that nobody wants changed are never touched, nor are kept instances;
//   - one agent at a time changes the node, also while an upgrade runs two;
//   - an agent that dies at any moment leaves nothing for good: the next one finishes
//     what is wanted then, and lets go of everything else;
//   - a failed card ends its maintenance, so that what is left of it serves, and keeps no other
//     card from being finished;
//   - a call of the hardware that does not return holds up nothing but its own card, which stays
//     barred until it does.
//
// It must not import Kubernetes, a vendor adapter or a front end: the hardware, the
// inventory and the ledger are handed in.
//
// # How it survives death
//
// Reconcile is level-triggered: each call plans anew from what is there to what is wanted,
// so no step has to be recorded once it is done. What cannot be seen on the hardware
// is recorded before the first change, in the journal: which cards are under way, to
// what, and who said so. A card of the journal that is wanted otherwise meanwhile becomes
// that, which is how a change is undone; one that nobody wants anything of any more is
// finished. The journal is gone when nothing is under way. Its folder has to outlive a reboot; one of another
// Node, by the Node's UID, is void.
//
// Beside the journal is its lock file. The agent that changes something holds the lock for as
// long, and the kernel drops it when the agent dies. Its text is the generation: one more for each change,
// and for each taking over of another agent's, for the life of the file.
//
// # What is barred
//
// The holder of all this is gpu.HolderMaintenance with HolderID. It holds the whole card
// when the mode changes and when no instance is kept, and otherwise the instances that
// go; kept instances serve on, and new ones serve when the inventory has seen them. While a card
// waits it holds the free shares and instances among those that will go. The
// ledger's bars are enough for instances; for a change of the mode the whole card has to leave
// the offers, of which Pending tells.
package migapply
