package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// Checks that every node has. The kubelet's second one is about its log.
const (
	pingCheck = "ping"
	logCheck  = "log"
)

// checks returns those of Config after the ones that every node has.
func (s *Server) checks() []HealthCheck {
	healthy := func() error { return nil }
	return append([]HealthCheck{{Name: pingCheck, Check: healthy}, {Name: logCheck, Check: healthy}}, s.cfg.Checks...)
}

// healthz responds with 200 and "ok", or with 500 and the failed checks. ?verbose lists
// all checks and warnings; ?exclude omits one.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	healthy, verbose, excluded := true, r.URL.Query().Has("verbose"), r.URL.Query()["exclude"]
	for _, c := range s.checks() {
		if slices.Contains(excluded, c.Name) {
			continue
		}
		err := c.Check()
		if h := s.cfg.Hooks.HealthChecked; h != nil {
			h(strings.TrimPrefix(r.URL.Path, "/"), c.Name, err)
		}
		if err != nil {
			healthy = false
			fmt.Fprintf(&text, "[-] %s: %v\n", c.Name, err)
		} else if verbose {
			fmt.Fprintf(&text, "[+] %s\n", c.Name)
		}
	}
	if s.cfg.Warnings != nil && verbose {
		for _, warning := range s.cfg.Warnings() {
			fmt.Fprintf(&text, "[ ] %s\n", warning)
		}
	}
	if healthy {
		text.WriteString("ok")
	}
	s.health(w, r, healthy, text.String())
}

// check responds like healthz, with one check.
func (s *Server) check(c HealthCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := c.Check(); err != nil {
			s.health(w, r, false, fmt.Sprintf("[-] %s: %v\n", c.Name, err))
			return
		}
		s.health(w, r, true, "ok")
	}
}

func (s *Server) health(w http.ResponseWriter, r *http.Request, healthy bool, text string) {
	status := http.StatusOK
	if !healthy {
		status = http.StatusInternalServerError
	}
	s.text(w, r, status, text)
}

func (s *Server) text(w http.ResponseWriter, r *http.Request, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	s.write(w, r, []byte(text))
}

func (s *Server) problems(w http.ResponseWriter, r *http.Request) {
	problems := []Problem{}
	if s.cfg.Problems != nil {
		problems = append(problems, s.cfg.Problems()...)
	}
	s.json(w, r, problems)
}

func (s *Server) json(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, r, append(b, '\n'))
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, b []byte) {
	_, err := w.Write(b)
	s.logWriteError(r, err)
}

// logWriteError logs that a client closed the connection before it had the response.
func (s *Server) logWriteError(r *http.Request, err error) {
	if err != nil {
		s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "client closed the connection", logattr.Err(err))
	}
}

// summary responds with the usage of the node and its pods.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil { // also in the body of a POST
		s.fail(w, r, err, http.StatusBadRequest)
		return
	}
	v, err := s.cfg.Summary(r.Context(), slices.Equal(r.Form["only_cpu_and_memory"], []string{"true"}))
	if err != nil {
		s.fail(w, r, err, http.StatusInternalServerError)
		return
	}
	s.json(w, r, v)
}

// configz responds with the configuration under the key that the kubelet uses.
func (s *Server) configz(w http.ResponseWriter, r *http.Request) {
	s.json(w, r, map[string]any{"kubeletconfig": s.cfg.Configz()})
}

// nodeLogs serves the files below Config.LogDir, and queries for the logs of services.
func (s *Server) nodeLogs(w http.ResponseWriter, r *http.Request) {
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	root, err := os.OpenRoot(s.cfg.LogDir)
	if err != nil {
		s.fail(w, r, err, http.StatusInternalServerError)
		return
	}
	defer func() { _ = root.Close() }()
	files := regularFiles{root, s.cfg.LogDir}
	file, handled := s.queryLogs(w, r, files)
	switch {
	case handled:
		return
	case file != "":
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = "/logs/"+strings.TrimLeft(file, "/"), ""
	case r.URL.Path == "/logs":
		http.Redirect(w, r, "/logs/", http.StatusMovedPermanently)
		return
	}
	logHeader(w.Header(), r.URL.Path)
	http.StripPrefix("/logs/", http.FileServerFS(files)).ServeHTTP(streamedResponse{w, s.newFlushWriter(w)}, r)
}

// logHeader has browsers show a file as text or save it: what it contains is no page of this
// origin. http.FileServer makes the type of a listing HTML, and files can be saved from it.
func logHeader(h http.Header, path string) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if strings.HasSuffix(path, "/") {
		h.Set("Content-Security-Policy", "sandbox allow-downloads; default-src 'none'")
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	switch filepath.Ext(path) {
	case ".gz":
		h.Set("Content-Type", "application/gzip")
	case ".bz2", ".xz", ".zst":
		h.Set("Content-Type", "application/octet-stream")
	}
}

// streamedResponse is a response that may last long.
type streamedResponse struct {
	http.ResponseWriter

	body *flushWriter
}

func (r streamedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

// regularFiles are the files and directories of a root without what blocks, such as FIFOs.
type regularFiles struct {
	root *os.Root
	dir  string // of the root
}

// maxLogLinks is how many absolute links are followed: one to the log of a container, and one of a runtime.
const maxLogLinks = 3

// Open implements fs.FS.
func (r regularFiles) Open(name string) (fs.File, error) {
	name = filepath.FromSlash(name)
	open := func() (*os.File, error) {
		// A device is not opened even for a moment: that can have effects.
		if info, err := r.root.Stat(name); err != nil || !isFile(info) {
			return nil, cmp.Or[error](err, errNotFile(name))
		}
		return r.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	}
	f, err := open()
	for range maxLogLinks {
		target, ok := r.linkTarget(name)
		if err == nil || !ok {
			break
		}
		name = target
		f, err = open()
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !isFile(info) {
		err = errNotFile(name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isFile reports whether something can be served.
func isFile(info fs.FileInfo) bool { return info.Mode().IsRegular() || info.IsDir() }

func errNotFile(name string) error {
	return &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

// linkTarget returns where an absolute link leads, if that is below the root. An os.Root follows none, but the links to the
// logs of containers are absolute, as those of a kubelet.
func (r regularFiles) linkTarget(name string) (target string, ok bool) {
	link, err := r.root.Readlink(name)
	if err != nil || !filepath.IsAbs(link) {
		return "", false
	}
	dir, err := filepath.Abs(r.dir)
	if err != nil {
		return "", false
	}
	target, err = filepath.Rel(dir, link)
	return target, err == nil && filepath.IsLocal(target)
}

// fail responds with an error of the node. fallback is the status of an error that
// wraps none of package runtime.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error, fallback int) {
	status := fallback
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, runtime.ErrUnsupported):
		status = http.StatusNotImplemented
	case errors.Is(err, runtime.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, runtime.ErrUnavailable), errors.Is(err, runtime.ErrNotReady):
		status = http.StatusServiceUnavailable
	}
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "request failed", slog.String("path", r.URL.Path), slog.Int("status", status), logattr.Err(err))
	http.Error(w, err.Error(), status)
}
