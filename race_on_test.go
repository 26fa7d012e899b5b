//go:build race

package agent_test

// raced reports whether the race detector watches.
const raced = true
