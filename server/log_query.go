package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// LogQuery is what a request for /logs/?query= wants of the logs of services (KEP-2258).
type LogQuery struct {
	Services []string // one to four, of letters, digits and "-_.:@"
	Since    time.Time
	Until    time.Time
	Tail     *int   // lines, at most 100,000; default: all
	Boot     *int   // 0: since the last boot of the machine, -1: between the one before and that; default: all
	Pattern  string // a regular expression for the lines; default: all
}

// ServiceLogs has the logs of services of the node. Journal is one. It is called concurrently.
type ServiceLogs interface {
	// Having returns those of the services that it has logs of.
	Having(ctx context.Context, services []string) ([]string, error)
	// Read writes the logs of the services of q, oldest first, as text. It ends early with ctx, or when w fails.
	Read(ctx context.Context, q *LogQuery, w io.Writer) error
}

// Limits of a query, as with a kubelet.
const (
	maxServices      = 4
	maxServiceLength = 256
	maxTail          = 100_000
	maxHavingTime    = 30 * time.Second
)

// parsedQuery is a query for services, or for one file.
type parsedQuery struct {
	LogQuery

	files []string
}

// hasOptions reports whether something is wanted that files do not have.
func (q *parsedQuery) hasOptions() bool {
	return !q.Since.IsZero() || !q.Until.IsZero() || q.Tail != nil || q.Boot != nil || q.Pattern != ""
}

// parseLogQuery returns nil if there is no query.
func parseLogQuery(query url.Values) (*parsedQuery, error) {
	var q parsedQuery
	var errs []error
	fail := func(name, value, reason string) {
		errs = append(errs, fmt.Errorf("%s: Invalid value: %q: %s", name, value, reason))
	}
	for _, value := range query["query"] {
		switch {
		case strings.ContainsAny(value, `/\`): // a service has none
			q.files = append(q.files, value)
		case strings.TrimSpace(value) != "":
			q.Services = append(q.Services, value)
		}
	}
	if query.Has("query") && len(q.files)+len(q.Services) == 0 {
		fail("query", strings.Join(query["query"], ","), "must name a service, such as kubelet, or a file")
	}
	for name, to := range map[string]*time.Time{"sinceTime": &q.Since, "untilTime": &q.Until} {
		if value := query.Get(name); value != "" {
			var err error
			if *to, err = time.Parse(time.RFC3339, value); err != nil {
				fail(name, value, "must be a time such as 2026-01-02T15:04:05Z")
			}
		}
	}
	for name, to := range map[string]**int{"boot": &q.Boot, "tailLines": &q.Tail} {
		if value := query.Get(name); value != "" {
			number, err := strconv.Atoi(value)
			if err != nil {
				fail(name, value, "must be a number")
			}
			*to = &number
		}
	}
	q.Pattern = query.Get("pattern")
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(q.files)+len(q.Services) == 0 && !q.hasOptions() {
		return nil, nil //nolint:nilnil // as documented
	}
	return &q, nil
}

// check returns all that is wrong with a query.
func (q *parsedQuery) check() error {
	var errs []error
	fail := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, s := range q.Services {
		fail(len(s) > maxServiceLength, "query: Invalid value: %q: must be at most %d bytes long", s[:min(len(s), maxServiceLength)], maxServiceLength)
		fail(strings.ContainsFunc(s, func(r rune) bool { return !validInName(r) && r != ':' && r != '@' }), "query: Invalid value: %q: must consist of letters, digits and -_.:@", s)
	}
	fail(len(q.Services) > maxServices, "query: Too many: %d: must have at most %d services", len(q.Services), maxServices)
	fail(len(q.files)+len(q.Services) == 0, "query: Required value: name a service, or a file of the log directory")
	fail(len(q.files) > 0 && len(q.Services) > 0, "query: Invalid value: a file and a service cannot be read together")
	fail(len(q.files) > 1, "query: Invalid value: %q: more than one file", q.files)
	fail(len(q.files) == 1 && q.hasOptions(), "query: Invalid value: %q: files have no options; use it alone", q.files)
	fail(!q.Since.IsZero() && !q.Until.IsZero() && q.Since.After(q.Until), "untilTime: Invalid value: must be after sinceTime")
	fail(q.Boot != nil && *q.Boot > 0, "boot: Invalid value: must not be greater than 0")
	fail(q.Tail != nil && (*q.Tail < 0 || *q.Tail > maxTail), "tailLines: Invalid value: must be 0 to %d", maxTail)
	_, err := syntax.Parse(q.Pattern, syntax.Perl)
	fail(err != nil, "pattern: Invalid value: %w", err)
	fail(strings.Contains(q.Pattern, "\x00"), "pattern: Invalid value: must have no NUL")
	return errors.Join(errs...)
}

// queryLogs responds to a query. It returns the file to serve instead, if the query is for one, and false
// if there is no query.
func (s *Server) queryLogs(w http.ResponseWriter, r *http.Request, files regularFiles) (file string, handled bool) {
	if s.cfg.ServiceLogs == nil {
		return "", false
	}
	q, err := parseLogQuery(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return "", true
	case q == nil:
		return "", false
	case strings.Trim(r.URL.Path, "/") != "logs":
		http.Error(w, "a query has the path /logs/", http.StatusNotAcceptable)
		return "", true
	}
	if err := q.check(); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return "", true
	}
	if len(q.files) == 1 {
		return strings.ReplaceAll(q.files[0], `\`, "/"), false
	}
	s.readServices(w, r, q, files)
	return "", true
}

// readServices sends the logs of services: those of ServiceLogs first, and then the files of the others.
func (s *Server) readServices(w http.ResponseWriter, r *http.Request, q *parsedQuery, files regularFiles) {
	ctx, cancel := context.WithTimeout(r.Context(), maxHavingTime)
	known, err := s.cfg.ServiceLogs.Having(ctx, q.Services)
	cancel()
	if err != nil {
		known = nil // the services may have files
	}
	others := slices.DeleteFunc(slices.Clone(q.Services), func(name string) bool { return slices.Contains(known, name) })
	logHeader(w.Header(), "")
	out := s.newFlushWriter(w)
	if len(known) > 0 {
		of := q.LogQuery
		of.Services = known
		if err := s.cfg.ServiceLogs.Read(r.Context(), &of, out); err != nil {
			_, _ = fmt.Fprintf(out, "\nread the logs of %s: %v\n", strings.Join(known, ", "), err) // the status is sent
		}
	}
	for _, name := range others {
		if q.hasOptions() {
			_, _ = fmt.Fprintf(out, "\nno journal of %s; query it without options for its file\n", name)
			continue
		}
		if errFile := copyServiceFile(out, files, name); errFile != nil {
			_, _ = fmt.Fprintf(out, "\nlog of %s: %v\n", name, errors.Join(errFile, err))
		}
	}
}

// copyServiceFile writes the file that the log of a service usually is.
func copyServiceFile(w io.Writer, files regularFiles, service string) error {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, err := files.Open(name)
		if err != nil {
			continue
		}
		info, err := f.Stat()
		if err == nil && info.Mode().IsRegular() {
			_, err = io.Copy(w, f)
			return errors.Join(err, f.Close())
		}
		_ = f.Close()
	}
	return fmt.Errorf("%w: neither journal nor file", runtime.ErrNotFound)
}
