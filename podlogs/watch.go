package podlogs

import (
	"github.com/fsnotify/fsnotify"

	"github.com/sublet-dev/agent/internal/notify"
)

func notifier(wake chan<- struct{}) func() { return func() { notify.Send(wake) } }

// watch watches a directory by what the system has for it. Events and errors alike only
// say that the log is to be read.
func watch(dir string, notify func()) (stop func(), err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case _, ok := <-w.Events:
				if !ok {
					return
				}
			case _, ok := <-w.Errors:
				if !ok {
					return
				}
			}
			notify()
		}
	}()
	return func() {
		_ = w.Close()
		<-done
	}, nil
}
