// Package statefile keeps the state of a component in a JSON file, which survives a crash of
// the agent and of the machine. The component has its state in memory, below a mutex of its own;
// a File reads it once, and writes it after changes.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/sublet-dev/agent/internal/atomicfile"
)

// File is the state file of a component. Its fields are set before the first call. Its methods
// may be called from any goroutine.
type File[T any] struct {
	Path  string
	Limit int64       // of the bytes that are read and written
	Mu    sync.Locker // guards the state of the component

	// Parse returns the state that a file has, or an error if the component cannot have
	// written it.
	Parse func([]byte) (T, error)
	// Restore takes over what was read. Without a state err is fs.ErrNotExist, or a
	// *atomicfile.DamagedError: the file was renamed, by this process or by one that wrote no
	// state after that. Mu is locked.
	Restore func(state T, err error)
	// Lost is called after Restore if the file was damaged, without a lock; nil: nothing is.
	Lost func(error)
	// Snapshot returns the state to be stored. Mu is locked.
	Snapshot func() T

	saving   sync.Mutex // serialises writes; locked before Mu
	reported sync.Once  // by ReportOnce

	// guarded by Mu
	loaded  bool
	unsaved bool
}

// Load reads the file, unless that was done. An error is temporary: nothing was restored, and the
// next call tries again.
func (f *File[T]) Load() error {
	lost, err := f.load()
	if lost != nil && f.Lost != nil {
		f.Lost(lost)
	}
	return err
}

// ReportOnce passes the first error of Load to report, for callers that have no error of their own
// and may ask often. err may be nil.
func (f *File[T]) ReportOnce(err error, report func(error)) {
	if err != nil {
		f.reported.Do(func() { report(err) })
	}
}

func (f *File[T]) load() (lost, err error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.loaded {
		return nil, nil
	}
	var state T
	err = atomicfile.Load(f.Path, f.Limit, func(text []byte) (err error) {
		state, err = f.Parse(text)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(f.Path + atomicfile.DamagedSuffix); statErr == nil {
			err = &atomicfile.DamagedError{Path: f.Path, Err: errors.New("damaged at an earlier start")}
		}
	}
	if damaged, ok := errors.AsType[*atomicfile.DamagedError](err); ok {
		lost = damaged
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		state = *new(T)
	}
	f.loaded = true
	f.Restore(state, err)
	return lost, nil
}

// Changed notes that the file lacks a change of the state. Mu is locked.
func (f *File[T]) Changed() { f.unsaved = true }

// Unsaved reports whether the file lacks a change of the state. Mu is locked.
func (f *File[T]) Unsaved() bool { return f.unsaved }

// Save writes the file if it lacks a change. It blocks until all changes of before are durable;
// those of several goroutines are written once. Mu is not locked. After an error the changes are
// still unsaved: the file is as it was, also if the state has become larger than Limit.
func (f *File[T]) Save() error {
	f.saving.Lock()
	defer f.saving.Unlock()
	f.Mu.Lock()
	if !f.unsaved {
		f.Mu.Unlock()
		return nil
	}
	text, err := json.Marshal(f.Snapshot())
	f.unsaved = false
	f.Mu.Unlock()
	if err == nil && int64(len(text)) > f.Limit {
		// Load would take the file for damaged, and all of the state would be lost.
		err = fmt.Errorf("%s: %d bytes are more than the %d that are read", f.Path, len(text), f.Limit)
	}
	if err == nil {
		err = atomicfile.Write(f.Path, text)
	}
	if err != nil {
		f.Mu.Lock()
		f.unsaved = true
		f.Mu.Unlock()
	}
	return err
}
