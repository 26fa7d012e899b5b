// Package bootid identifies the current boot of the machine.
package bootid

import (
	"os"
	"strings"
)

// Read returns the id of the current boot, which ends all mounts and whatever is below /run; ""
// if it is unknown.
func Read() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
