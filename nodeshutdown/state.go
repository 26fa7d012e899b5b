package nodeshutdown

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
)

// maxStateBytes bounds what is read of a state file.
const maxStateBytes = 4 << 10

// state is the format of the state file, which is the kubelet's.
type state struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime,omitzero"` // zero: the periods were too short, or the agent was stopped
}

func (r *Runner) save(s state) {
	if r.m.cfg.StateFile == "" {
		return
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = atomicfile.Write(r.m.cfg.StateFile, text)
	}
	if err != nil {
		r.m.cfg.Logger.Warn("recording the node shutdown failed", logattr.Err(err))
	}
}

// forget removes the record of a shutdown that was cancelled: the next process must not report it.
func (r *Runner) forget() {
	if r.m.cfg.StateFile == "" {
		return
	}
	if err := os.Remove(r.m.cfg.StateFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.m.cfg.Logger.Warn("removing the record of a cancelled node shutdown failed", logattr.Err(err))
	}
}

// reportPrevious logs how the previous shutdown went.
func (r *Runner) reportPrevious() {
	if r.m.cfg.StateFile == "" {
		return
	}
	_ = atomicfile.RemovePartial(r.m.cfg.StateFile) // of a shutdown that was faster
	previous, err := readState(r.m.cfg.StateFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		r.m.cfg.Logger.Warn("reading the record of the previous node shutdown failed", logattr.Err(err))
	case previous.EndTime.IsZero():
		r.m.cfg.Logger.Warn("previous node shutdown was cut short", slog.Time("startTime", previous.StartTime))
	default:
		r.m.cfg.Logger.Info("previous node shutdown was graceful",
			slog.Time("startTime", previous.StartTime), slog.Duration("duration", previous.EndTime.Sub(previous.StartTime)))
	}
}

func readState(path string) (s state, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return s, err
	}
	if !info.Mode().IsRegular() {
		return s, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer func() { _ = f.Close() }()
	err = json.NewDecoder(io.LimitReader(f, maxStateBytes)).Decode(&s)
	return s, err
}
