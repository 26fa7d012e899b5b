package stats

import (
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// fdCache holds kernel files open between readings: to open and close one costs
// more than to read it. It keeps real files only.
type fdCache struct {
	// mu is held for reading while a file is read, so that none is closed
	// under a reader; the kernel makes up the content in memory.
	mu    sync.RWMutex
	files map[string]*cachedFile
	most  int
	round uint64 // sweeps so far
}

type cachedFile struct {
	file *os.File // keeps fd open
	fd   int
	used atomic.Uint64 // round in which it was read last
}

const (
	// maxKept bounds open files: four for each of a thousand pods.
	maxKept = 4096
	// keptPart is the part of the files that the process may have open: an eighth is
	// kept at the most.
	keptPart = 8
	// maxSingleRead is the most that one read of a kernel file returns for sure if it
	// is all there is: a little less than a page.
	maxSingleRead = 3584
)

func newFDCache() *fdCache {
	k := &fdCache{files: make(map[string]*cachedFile), most: maxKept}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		k.most = mayKeep(uint64(limit.Cur)) //nolint:unconvert // its type differs by system
	}
	return k
}

// mayKeep is how many files are kept open in a process that may have so many open.
func mayKeep(limit uint64) int { return int(min(limit/keptPart, maxKept)) }

// read reads a cached file into buf. ok is false if the file is not cached, was removed or
// does not fit; the caller must open it then.
func (k *fdCache) read(name string, buf []byte) (n int, ok bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	f := k.files[name]
	if f == nil {
		return 0, false
	}
	for n < len(buf) {
		m, err := unix.Pread(f.fd, buf[n:], int64(n))
		if err != nil {
			f.used.Store(0) // the next sweep closes it
			return 0, false
		}
		n += m
		if m == 0 || n < maxSingleRead {
			f.used.Store(k.round + 1)
			return n, true
		}
	}
	return 0, false
}

// keep takes a file over and reports whether it did.
func (k *fdCache) keep(name string, f fs.File) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.files[name]
	if old == nil && len(k.files) >= k.most {
		return false
	}
	if old != nil {
		old.file.Close() //nolint:errcheck,gosec // it was only read
	}
	kept := &cachedFile{file: file, fd: int(file.Fd())}
	kept.used.Store(k.round + 1)
	k.files[name] = kept
	return true
}

// sweep closes the files that were not read since the sweep before the last.
func (k *fdCache) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, f := range k.files {
		if f.used.Load() < k.round {
			f.file.Close() //nolint:errcheck,gosec // it was only read
			delete(k.files, name)
		}
	}
	k.round++
}
