//go:build !race

package agenttest

// raceDetector reports whether the race detector is enabled.
const raceDetector = false
