// Package diskusage measures directories to which containers can write, and file systems.
package diskusage
