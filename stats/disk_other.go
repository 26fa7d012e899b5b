//go:build !linux

package stats

import "golang.org/x/sys/unix"

func deviceOf(st *unix.Stat_t) uint64 { return uint64(st.Dev) }
