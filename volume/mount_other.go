//go:build !linux

package volume

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// osMounter supports only Linux. On other systems volumes in memory are rejected.
type osMounter struct{ noMounts }

func statfs(string) (runtime.FSUsage, error) { return runtime.FSUsage{}, errors.ErrUnsupported }

const openPath = unix.O_RDONLY

func modeOf(st *unix.Stat_t) uint32 { return uint32(st.Mode) }
