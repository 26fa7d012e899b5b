package status

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// sinkDir is the folder of a FileSink. It is opened once and stays open: each pod
// writes to it many times. One that is taken away is made again.
type sinkDir struct {
	dir string

	mu   sync.Mutex // guards root
	root *openDir   // nil: not opened yet
}

// openDir is an open folder, and itself as a file that can be synced.
type openDir struct {
	*os.Root
	self *os.File

	fsyncCh chan struct{} // one slot: who has put something in it syncs
	mu      sync.Mutex    // guards next
	next    *commit       // the sync that has not begun
}

// commit is one sync, shared by all who ask for it before it begins.
type commit struct {
	done chan struct{} // closed once err is set
	err  error
}

// do runs work in the folder, which it opens, and makes if make is set. Work that
// found that the folder is gone is done again in a new one.
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

// open returns the folder, and whether this call has opened it.
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
	f.root = o // of two who open it at once the last
	return o, true, nil
}

// forget lets go of a folder. Who is at work in it goes on: it is closed when
// nobody has it any more.
func (f *sinkDir) forget(o *openDir) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.root == o {
		f.root = nil
	}
}

// sync makes what was renamed and removed before it last through a crash. Those
// who call it while another sync is under way share the one after it.
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
	if mine { // else it was done in another's turn
		c.err = o.self.Sync()
		close(c.done)
	}
	return c.err
}
