package stats

import (
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// fdCache keeps kernel files open between readings, because opening and closing one costs
// more than reading it. It only keeps an *os.File.
type fdCache struct {
	// mu is read-locked while a file is read, so that no file is closed meanwhile. The
	// reads do not block for long: the kernel generates the content in memory.
	mu       sync.RWMutex
	files    map[string]*cachedFile
	maxFiles int
	round    uint64 // number of sweeps so far
}

type cachedFile struct {
	file *os.File // keeps fd open
	fd   int
	used atomic.Uint64 // round+1 of the last read; 0: to be closed
}

const (
	// maxKept limits open files: four for each of a thousand pods.
	maxKept = 4096
	// keptPart limits open files to an eighth of those that the process may have open.
	keptPart = 8
	// maxSingleRead is the largest file that one read is certain to return completely: a
	// little less than a page.
	maxSingleRead = 3584
)

func newFDCache() *fdCache {
	k := &fdCache{files: make(map[string]*cachedFile), maxFiles: maxKept}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		k.maxFiles = fileLimit(uint64(limit.Cur)) //nolint:unconvert // its type differs by system
	}
	return k
}

// fileLimit returns how many files are kept open by a process that can open limit files.
func fileLimit(limit uint64) int { return int(min(limit/keptPart, maxKept)) }

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

// keep adds an open file to the cache, which closes it later. It reports whether it did:
// otherwise the file still belongs to the caller.
func (k *fdCache) keep(name string, f fs.File) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.files[name]
	if old == nil && len(k.files) >= k.maxFiles {
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

// sweep closes the files that were not read since the sweep before the previous one.
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
