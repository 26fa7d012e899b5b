//go:build !linux

package volume

import "golang.org/x/sys/unix"

// kernel needs Linux's mounts: elsewhere volumes in memory and below subPath are refused.
type kernel struct{ noMounts }

const openPath = unix.O_RDONLY

func modeOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) }
