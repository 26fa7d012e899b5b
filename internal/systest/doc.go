// Package systest has what tests and benchmarks ask of the operating system.
package systest
