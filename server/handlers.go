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
)

// healthz answers 200 and ok, or 500 and what is wrong; with ?verbose each check
// and each note.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	well := true
	for _, c := range s.cfg.Checks {
		if err := c.Check(); err != nil {
			well = false
			fmt.Fprintf(&text, "[-] %s: %v\n", c.Name, err)
		} else if r.URL.Query().Has("verbose") {
			fmt.Fprintf(&text, "[+] %s\n", c.Name)
		}
	}
	if s.cfg.Warnings != nil && r.URL.Query().Has("verbose") {
		for _, note := range s.cfg.Warnings() {
			fmt.Fprintf(&text, "[ ] %s\n", note)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !well {
		w.WriteHeader(http.StatusInternalServerError)
	} else {
		text.WriteString("ok\n")
	}
	s.write(w, r, []byte(text.String()))
}

// pods answers a v1.PodList, sorted by namespace, name and UID. It is written pod
// by pod: all of them at once may be many megabytes.
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
	_, _ = out.WriteString(`{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [`) // an error stays until Flush
	separator := "\n"
	for _, pod := range pods {
		if !s.cfg.Environment {
			pod = withoutEnvironment(pod)
		}
		b, err := json.Marshal(pod)
		if err != nil {
			s.cfg.Logger.LogAttrs(r.Context(), slog.LevelWarn, "a pod cannot be shown", slog.Any("error", err))
			continue
		}
		_, _ = out.WriteString(separator)
		_, _ = out.Write(b)
		separator = ",\n"
	}
	_, _ = out.WriteString("]}\n")
	s.gone(r, out.Flush())
}

func (s *Server) faults(w http.ResponseWriter, r *http.Request) {
	faults := []Problem{}
	if s.cfg.Problems != nil {
		faults = append(faults, s.cfg.Problems()...)
	}
	s.json(w, r, faults)
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
	s.gone(r, err)
}

// gone notes that a client did not wait for its answer.
func (s *Server) gone(r *http.Request, err error) {
	if err != nil {
		s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "a client went away", slog.Any("error", err))
	}
}

// withoutEnvironment returns a pod without the values of environment variables, which is where manifests have passwords.
// It shares all else with the original, which it leaves as it is.
func withoutEnvironment(pod *corev1.Pod) *corev1.Pod {
	shown := *pod
	shown.Spec.InitContainers = slices.Clone(pod.Spec.InitContainers)
	shown.Spec.Containers = slices.Clone(pod.Spec.Containers)
	shown.Spec.EphemeralContainers = slices.Clone(pod.Spec.EphemeralContainers)
	for _, containers := range [][]corev1.Container{shown.Spec.InitContainers, shown.Spec.Containers} {
		for i := range containers {
			containers[i].Env = withoutValues(containers[i].Env)
		}
	}
	for i := range shown.Spec.EphemeralContainers {
		shown.Spec.EphemeralContainers[i].Env = withoutValues(shown.Spec.EphemeralContainers[i].Env)
	}
	// A manifest that went through kubectl apply stands there once more, whole.
	if _, ok := shown.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		shown.Annotations = maps.Clone(shown.Annotations)
		delete(shown.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return &shown
}

func withoutValues(env []corev1.EnvVar) []corev1.EnvVar {
	shown := slices.Clone(env)
	for i := range shown {
		shown[i].Value = ""
	}
	return shown
}
