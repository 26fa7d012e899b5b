package stats

import "golang.org/x/sys/unix"

func deviceOf(st *unix.Stat_t) uint64 { return st.Dev }
