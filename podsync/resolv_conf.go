package podsync

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/fileversion"
	"github.com/sublet-dev/agent/runtime"
)

const (
	maxResolvConf = 64 << 10
	resolvedConf  = "/run/systemd/resolve/resolv.conf" // the name servers that systemd-resolved asks
)

// resolvConfs has the resolver configurations of the node. Each sync of a pod needs one, and
// they hardly ever change. The zero value is ready for use.
type resolvConfs struct {
	mu    sync.Mutex
	files map[string]resolvConf
}

// resolvConf is a file as it was read.
type resolvConf struct {
	version fileversion.Version
	dns     runtime.DNS
}

// reachable returns the file with the name servers of the node: path, or if that names only
// a resolver on loopback, which pods do not reach, the one of systemd-resolved with those
// that it asks itself.
func (r *resolvConfs) reachable(path, resolved string) string {
	d, err := r.read(path)
	if err != nil || len(d.Servers) == 0 || slices.ContainsFunc(d.Servers, func(s string) bool { return !net.ParseIP(s).IsLoopback() }) {
		return path
	}
	if _, err := os.Stat(resolved); err != nil {
		return path
	}
	return resolved
}

// read returns what a file says, which belongs to the caller. It reads only a file that has changed.
func (r *resolvConfs) read(path string) (runtime.DNS, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file := r.files[path]
	if info, err := os.Stat(path); err != nil || !file.version.IsCurrent(info) {
		delete(r.files, path)
		if file, err = readResolvConf(path); err != nil {
			return runtime.DNS{}, err
		}
		if r.files == nil {
			r.files = make(map[string]resolvConf)
		}
		r.files[path] = file
	}
	d := file.dns
	return runtime.DNS{Servers: slices.Clone(d.Servers), Searches: slices.Clone(d.Searches), Options: slices.Clone(d.Options)}, nil
}

func readResolvConf(path string) (resolvConf, error) {
	f, err := os.Open(path)
	if err != nil {
		return resolvConf{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	readAt := time.Now()
	info, err := f.Stat()
	if err != nil {
		return resolvConf{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return resolvConf{}, err
	}
	return resolvConf{fileversion.Of(info, readAt), parseResolvConf(b)}, nil
}

func parseResolvConf(b []byte) runtime.DNS {
	var d runtime.DNS
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(f) > 1 {
				d.Servers = append(d.Servers, f[1])
			}
		case "search": // the last line counts, also without domains
			d.Searches = nil
			for _, domain := range f[1:] {
				if domain = strings.TrimSuffix(domain, "."); domain != "" {
					d.Searches = append(d.Searches, domain)
				}
			}
		case "options": // all lines count
			for _, option := range f[1:] {
				d.Options = withOption(d.Options, option)
			}
		}
	}
	return d
}
