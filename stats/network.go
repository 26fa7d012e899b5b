package stats

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// defaultInterface is the interface whose counters are those of a pod or node as a whole,
	// by its name in the kubelet.
	defaultInterface = "eth0"

	// maxNodeNetDev and maxPodNetDev limit the size of what is read of /proc/PID/net/dev. A
	// line has about 120 bytes. Containers can create interfaces, and a node can have one for
	// each pod.
	maxNodeNetDev = 1 << 20
	maxPodNetDev  = 64 << 10
	// maxNodeInterfaces and maxPodInterfaces limit the interfaces that are reported.
	maxNodeInterfaces = 1024
	maxPodInterfaces  = 128
)

// nodeNetwork returns the network usage of the machine, which is that of its first process. It
// is unknown without an interface that counts.
func (p *Provider) nodeNetwork(now time.Time) (runtime.NetworkUsage, error) {
	u, err := p.netDev("1", maxNodeNetDev, maxNodeInterfaces, now)
	if err != nil { // of another user, or hidden
		u, err = p.netDev("self", maxNodeNetDev, maxNodeInterfaces, now)
	}
	if err != nil || len(u.Interfaces) == 0 {
		return runtime.NetworkUsage{}, err
	}
	return u, nil
}

// netDev returns the interfaces in the network namespace of a process. The file is not kept
// open, because it would keep the namespace of a pod that has ended, with its interfaces.
func (p *Provider) netDev(pid string, size, count int, now time.Time) (runtime.NetworkUsage, error) {
	u := runtime.NetworkUsage{At: now}
	err := p.procUncached.head(pid+"/net/dev", size, func(data []byte) (err error) {
		u.Interfaces, err = parseNetDev(data, count)
		return err
	})
	if err != nil {
		return runtime.NetworkUsage{}, err
	}
	return u, nil
}

// netDevColumns is the number of counters of an interface: eight received, eight transmitted.
const netDevColumns = 16

// parseNetDev returns up to limit interfaces of a /proc/PID/net/dev, the default one whatever
// its position. A last line that is cut off is ignored. The names are unique and printable,
// whatever interfaces the containers of a pod create or rename meanwhile.
func parseNetDev(data []byte, limit int) ([]runtime.InterfaceUsage, error) {
	var list []runtime.InterfaceUsage
	for line := range bytes.Lines(data) {
		colon := bytes.LastIndexByte(line, ':')
		if colon < 0 || line[len(line)-1] != '\n' {
			continue // a heading
		}
		name := string(bytes.TrimSpace(line[:colon]))
		if !isCounted(name) || slices.ContainsFunc(list, func(i runtime.InterfaceUsage) bool { return i.Name == name }) {
			continue
		}
		i, err := parseInterface(name, line[colon+1:])
		switch {
		case err != nil:
			return nil, err
		case len(list) < limit:
			list = append(list, i)
		case name == defaultInterface:
			list[limit-1] = i
		}
	}
	return list, nil
}

// isCounted reports whether an interface is reported.
func isCounted(name string) bool {
	if name == "" || isIgnored(strings.ToLower(name)) || !utf8.ValidString(name) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// isIgnored reports whether cAdvisor leaves out an interface, of the node and of pods: its
// traffic stays on the machine, or is that of another namespace.
func isIgnored(name string) bool {
	for _, prefix := range []string{"lo", "veth", "docker", "nerdctl"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// parseInterface reads the counters of an interface.
func parseInterface(name string, counters []byte) (runtime.InterfaceUsage, error) {
	var n [netDevColumns]uint64
	columns := 0
	for field := range bytes.FieldsSeq(counters) {
		if columns == len(n) {
			columns++
			break
		}
		var err error
		if n[columns], err = strconv.ParseUint(string(field), 10, 64); err != nil {
			return runtime.InterfaceUsage{}, fmt.Errorf("interface %q: %w", name, err)
		}
		columns++
	}
	if columns != len(n) {
		return runtime.InterfaceUsage{}, fmt.Errorf("interface %q does not have %d counters", name, len(n))
	}
	return runtime.InterfaceUsage{
		Name:    name,
		RxBytes: n[0], RxPackets: n[1], RxErrors: n[2], RxDropped: n[3],
		TxBytes: n[8], TxPackets: n[9], TxErrors: n[10], TxDropped: n[11],
	}, nil
}
