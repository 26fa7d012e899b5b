//go:build !linux

package volume

import "golang.org/x/sys/unix"

// osMounter needs Linux's mounts: elsewhere volumes in memory and below subPath are refused.
type osMounter struct{ noMounts }

const openPath = unix.O_RDONLY

func modeOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) }
