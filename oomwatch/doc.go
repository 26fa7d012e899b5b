// Package oomwatch reports what the kernel kills for want of memory: as an event of the container whose process it was, and as
// SystemOOM of the node if the machine itself ran out, as a kubelet does.
//
// It reads the kernel's log. What is in it is chosen by containers in part: the names of processes, and of cgroups below a container's
// own. A record is therefore taken apart from both ends, one that can be read in two ways is attributed to no pod, and records
// that a process wrote are ignored.
package oomwatch
