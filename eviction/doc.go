// Package eviction keeps a node alive: it watches what the node is short of,
// has things deleted that nobody needs, and if that is not enough ends the pod
// that should go first.
//
// What it promises:
//
//   - Prompt: kernel notices ([ThresholdNotifier]) start a look at once; without them it
//     looks every [Config].Poll, and sooner where a threshold is near. After an
//     eviction it waits for the pod to be reclaimed, measures afresh and goes on
//     at once while it has to.
//   - Quiet: while nothing is short it looks at the node alone ([NodeUsageProvider]), which
//     costs some microseconds, and measures no pod.
//   - Fair: pods above their request go first, then by priority, then by how
//     far above. A critical pod never goes, or only when no other can.
//   - Of use: nobody goes for what somebody else takes, and evictions that do not
//     help come further and further apart.
//   - Careful: a figure that is missing, or older than the start of the last
//     eviction, evicts nobody.
//   - Explained: each eviction has one event and one log line that say what
//     was seen, which threshold was crossed, and who was ranked how.
//
// Deciding is pure: thresholds, observations and ranking are values and
// functions of them. [Manager] measures, has reclaimed and evicts.
package eviction
