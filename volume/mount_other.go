//go:build !linux

package volume

import "golang.org/x/sys/unix"

// osMounter supports only Linux. On other systems volumes in memory are rejected.
type osMounter struct{ noMounts }

const openPath = unix.O_RDONLY

func modeOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) }
