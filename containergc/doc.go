// Package containergc removes what pods leave behind: exited containers, empty
// sandboxes and logs.
//
// Guarantees:
//   - The last exited container of each name is kept while its pod is desired or, with
//     KeepUntilReplaced, until a newer one runs. Its exit code is part of the status,
//     and planning has to know that an init container has completed.
//   - Everything of a deleted pod is removed, within a second of RequestCollection.
//   - Removals are paced, so that the runtime can start containers meanwhile. Deleted
//     pods come first, and Reclaim does not wait for a paced collection.
//
// Decisions are made by Plan, a pure function, and PodStates. Collector executes them.
package containergc
