package csi

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sublet-dev/agent/internal/logattr"
)

// stagingName matches the names of directories of staged volumes, besides those of devices.
var stagingName = regexp.MustCompile("^[0-9a-f]{64}$")

// removeEmptyDirs removes what agents that were killed while they wrote or removed records have left: partly written
// ones, and directories that have nothing in them. It must be called before anything is staged.
func (m *Manager) removeEmptyDirs() {
	drivers, err := dirNames(m.paths.plugin())
	if err != nil {
		m.cfg.Logger.Warn("directories of staged volumes not cleaned up", logattr.Err(err))
	}
	for _, driver := range drivers {
		names, err := dirNames(filepath.Join(m.paths.plugin(), driver))
		if err != nil {
			m.cfg.Logger.Warn("directories of staged volumes not cleaned up", logattr.Err(err))
		}
		for _, name := range names {
			dir := filepath.Join(m.paths.plugin(), driver, name)
			switch {
			case driver == blockDirName:
				removePartialRecords(filepath.Join(dir, "data"))
				removeIfEmpty(filepath.Join(dir, "data"), filepath.Join(m.paths.plugin(), driver, "publish", name), dir)
			case stagingName.MatchString(name):
				removePartialRecords(dir)
				removeIfEmpty(dir)
			}
		}
	}
}

// removePartialRecords removes the files of records in a directory that were not written to their end.
func removePartialRecords(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // there is none
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), ".json.") && e.Type().IsRegular() {
			_ = os.Remove(filepath.Join(dir, e.Name())) // then the directory stays
		}
	}
}
