// Package diskusage measures directories to which containers can write.
package diskusage
