package prom

import (
	"strings"
	"sync"
)

// maxLabelValues bounds the values of a label that plugins on the node or a runtime choose.
const maxLabelValues = 100

// otherValue is the value of a label in place of those beyond a bound, and of those without a name.
const otherValue = "other"

// labelValues are those of a label that plugins choose, such as their names. A plugin that comes with a new one each time would
// make series without end.
type labelValues struct {
	mu    sync.Mutex
	known map[string]struct{}
}

func newLabelValues() *labelValues { return &labelValues{known: map[string]struct{}{}} }

// add returns the value for a label: v, or otherValue if there are too many.
func (l *labelValues) add(v string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.known[v]; ok {
		return v
	}
	if len(l.known) >= maxLabelValues {
		return otherValue
	}
	l.known[v] = struct{}{}
	return v
}

// has reports whether v is a value of the label.
func (l *labelValues) has(v string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.known[v]
	return ok
}

// grpcCode returns the name of a gRPC status code. A driver may answer with any number, which has no name: it means an unknown
// error.
func grpcCode(name string) string {
	if strings.HasPrefix(name, "Code(") {
		return "Unknown"
	}
	return name
}
