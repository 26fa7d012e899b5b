package server

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// healthz responds with 200 and "ok", or with 500 and the failed checks. ?verbose lists
// all checks and warnings.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	healthy := true
	for _, c := range s.cfg.Checks {
		if err := c.Check(); err != nil {
			healthy = false
			fmt.Fprintf(&text, "[-] %s: %v\n", c.Name, err)
		} else if r.URL.Query().Has("verbose") {
			fmt.Fprintf(&text, "[+] %s\n", c.Name)
		}
	}
	if s.cfg.Warnings != nil && r.URL.Query().Has("verbose") {
		for _, warning := range s.cfg.Warnings() {
			fmt.Fprintf(&text, "[ ] %s\n", warning)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !healthy {
		w.WriteHeader(http.StatusInternalServerError)
	} else {
		text.WriteString("ok\n")
	}
	s.write(w, r, []byte(text.String()))
}

// pods responds with a v1.PodList, sorted by namespace, name and UID. It encodes one pod
// at a time, because the list may have many megabytes.
func (s *Server) pods(w http.ResponseWriter, r *http.Request) {
	var pods []*corev1.Pod
	if s.cfg.Pods != nil {
		pods = slices.Clone(s.cfg.Pods())
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(`{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [`) // errors are returned by Flush
	separator := "\n"
	for _, pod := range pods {
		if !s.cfg.Environment {
			pod = withoutEnvironment(pod)
		}
		b, err := json.Marshal(pod)
		if err != nil {
			s.cfg.Logger.LogAttrs(r.Context(), slog.LevelWarn, "encoding pod failed", logattr.Pod(pod), logattr.Err(err))
			continue
		}
		_, _ = out.WriteString(separator)
		_, _ = out.Write(b)
		separator = ",\n"
	}
	_, _ = out.WriteString("]}\n")
	s.logWriteError(r, out.Flush())
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

// withoutEnvironment returns a copy of the pod without the values of environment
// variables, which often are passwords. The original is not modified.
func withoutEnvironment(pod *corev1.Pod) *corev1.Pod {
	redacted := *pod
	redacted.Spec.InitContainers = slices.Clone(pod.Spec.InitContainers)
	redacted.Spec.Containers = slices.Clone(pod.Spec.Containers)
	redacted.Spec.EphemeralContainers = slices.Clone(pod.Spec.EphemeralContainers)
	for _, containers := range [][]corev1.Container{redacted.Spec.InitContainers, redacted.Spec.Containers} {
		for i := range containers {
			containers[i].Env = withoutValues(containers[i].Env)
		}
	}
	for i := range redacted.Spec.EphemeralContainers {
		redacted.Spec.EphemeralContainers[i].Env = withoutValues(redacted.Spec.EphemeralContainers[i].Env)
	}
	// kubectl apply stores the complete manifest in this annotation.
	if _, ok := redacted.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		redacted.Annotations = maps.Clone(redacted.Annotations)
		delete(redacted.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return &redacted
}

func withoutValues(env []corev1.EnvVar) []corev1.EnvVar {
	redacted := slices.Clone(env)
	for i := range redacted {
		redacted[i].Value = ""
	}
	return redacted
}
