// Package scenario has tests of whole agents that are described by files. Each file of
// testdata has pods, a script of changes, and the actions that the agent must take; each of
// testdata/status has the statuses that it must send. The scenarios are also played with
// random faults, and with an agent that is killed at random times.
//
// The format of the files is in the comment of TestScenarios. -update writes what the
// agent did into them.
package scenario
