package server

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The objects that the pages /flagz and /statusz are, for programs.
const (
	zpagesGroup   = "config.k8s.io"
	zpagesVersion = "v1beta1"
)

// flagz responds with one flag a line.
func (s *Server) flagz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	flags := s.cfg.Flagz()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&text, "%s=%s\n", name, flags[name])
	}
	s.zpage(w, r, "Flagz", text.String(), map[string]any{"flags": flags})
}

// statusz responds with the version, the age and the paths of this process.
func (s *Server) statusz(w http.ResponseWriter, r *http.Request) {
	version, goVersion := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version, goVersion = info.Main.Version, info.GoVersion
	}
	paths, roots := map[string]bool{}, map[string]bool{}
	for pattern, rt := range s.routes {
		if rt.off == "" {
			root, _, _ := strings.Cut(strings.TrimPrefix(path(pattern), "/"), "/")
			paths[path(pattern)], roots["/"+root] = true, true
		}
	}
	age := time.Since(s.started)
	text := fmt.Sprintf("Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\n\nPaths:\n%s\n",
		s.started.UTC().Format(time.RFC3339), age.Truncate(time.Second), goVersion, version, strings.Join(slices.Sorted(maps.Keys(paths)), "\n"))
	s.zpage(w, r, "Statusz", text, map[string]any{
		"startTime": s.started.UTC().Format(time.RFC3339), "uptimeSeconds": int64(age.Seconds()), "goVersion": goVersion, "binaryVersion": version,
		"paths": slices.Sorted(maps.Keys(roots)),
	})
}

// zpage responds with a page as text or, if that is what the client accepts, as an object of this kind with these fields.
func (s *Server) zpage(w http.ResponseWriter, r *http.Request, kind, text string, fields map[string]any) {
	isObject, ok := acceptsZPage(r.Header.Get("Accept"), kind)
	switch {
	case !ok:
		http.Error(w, fmt.Sprintf("only text/plain and application/json;as=%s;g=%s;v=%s are served", kind, zpagesGroup, zpagesVersion), http.StatusNotAcceptable)
	case isObject:
		fields["kind"], fields["apiVersion"], fields["metadata"] = kind, zpagesGroup+"/"+zpagesVersion, map[string]string{"name": "kubelet"}
		s.json(w, r, fields)
	default:
		s.text(w, r, http.StatusOK, fmt.Sprintf("kubelet %s\nWarning: the format of this page may change.\n\n%s", strings.ToLower(kind), text))
	}
}

// acceptsZPage reports whether a client accepts a page, and whether as an object: JSON is served only to who names the kind of object.
func acceptsZPage(accept, kind string) (isObject, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return false, true
	}
	for clause := range strings.SplitSeq(accept, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		object := [3]string{params["as"], params["g"], params["v"]}
		switch {
		case object == [3]string{kind, zpagesGroup, zpagesVersion} && slices.Contains([]string{"application/json", "application/*", "*/*"}, mediaType):
			return true, true
		case object == [3]string{} && slices.Contains([]string{"text/plain", "text/*", "*/*"}, mediaType):
			return false, true
		}
	}
	return false, false
}
