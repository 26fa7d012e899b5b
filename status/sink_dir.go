package status

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// sinkDir is the directory of a FileSink. It is opened once and stays open, because
// each pod writes to it many times. If it is removed it is created again.
type sinkDir struct {
	dir string

	mu   sync.Mutex // guards root
	root *openDir   // nil: not opened yet
}

// openDir is an open directory, with its own file for syncs.
type openDir struct {
	*os.Root
	self *os.File

	fsyncCh chan struct{} // one slot: its owner runs the sync
	mu      sync.Mutex    // guards next
	next    *commit       // the sync that has not begun
}

// commit is one sync, shared by all callers that requested it before it began.
type commit struct {
	done chan struct{} // closed once err is set
	err  error
}

// do runs work in the directory. It opens the directory, and creates it if makeIt
// is set. Work that failed because the directory was removed runs again in a new one.
func (f *sinkDir) do(makeIt bool, work func(*openDir) error) error {
	o, fresh, err := f.open(makeIt)
	if err != nil {
		return err
	}
	err = work(o)
	if fresh || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.forget(o)
	if o, _, err = f.open(makeIt); err != nil {
		return err
	}
	return work(o)
}

// open returns the directory, and whether this call opened it.
func (f *sinkDir) open(makeIt bool) (o *openDir, fresh bool, err error) {
	f.mu.Lock()
	o = f.root
	f.mu.Unlock()
	if o != nil {
		return o, false, nil
	}
	if makeIt {
		if err := os.MkdirAll(f.dir, 0o700); err != nil {
			return nil, false, err
		}
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, false, err
	}
	self, err := root.Open(".")
	if err != nil {
		return nil, false, errors.Join(err, root.Close())
	}
	o = &openDir{Root: root, self: self, fsyncCh: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root = o // of two concurrent calls the last wins
	return o, true, nil
}

// forget drops an open directory. Work in progress continues; the garbage collector
// closes the directory after the last use.
func (f *sinkDir) forget(o *openDir) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root == o {
		f.root = nil
	}
}

// sync makes the renames and removals before it durable. Callers during a sync share
// the next one.
func (o *openDir) sync() error {
	o.mu.Lock()
	if o.next == nil {
		o.next = &commit{done: make(chan struct{})}
	}
	c := o.next
	o.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case o.fsyncCh <- struct{}{}:
	}
	defer func() { <-o.fsyncCh }()
	o.mu.Lock()
	mine := o.next == c
	if mine {
		o.next = nil
	}
	o.mu.Unlock()
	if mine { // otherwise another caller ran it
		c.err = o.self.Sync()
		close(c.done)
	}
	return c.err
}
