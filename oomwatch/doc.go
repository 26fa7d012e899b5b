// Package oomwatch reports what the kernel kills for want of memory: as an event of the container whose process it was, and as
// SystemOOM of the node if the machine itself ran out, as a kubelet does.
//
// It reads the kernel's log, a part of which containers choose: the names of processes, and of cgroups below a container's own. A
// record is therefore parsed from both ends, one that is ambiguous is attributed to no pod, and records that a process wrote are
// ignored.
package oomwatch
