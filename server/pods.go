package server

import (
	"bufio"
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// pods responds with all pods, sorted by namespace, name and UID.
func (s *Server) pods(w http.ResponseWriter, r *http.Request) {
	var pods []*corev1.Pod
	if s.cfg.Pods != nil {
		pods = slices.Clone(s.cfg.Pods())
	}
	s.podList(w, r, pods)
}

// runningPods responds with the pods of the runtime.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.cfg.RunningPods(r.Context())
	if err != nil {
		s.fail(w, r, err, http.StatusInternalServerError)
		return
	}
	s.podList(w, r, slices.Clone(pods))
}

// podList responds with a v1.PodList. It encodes one pod at a time, because the list
// may have many megabytes.
func (s *Server) podList(w http.ResponseWriter, r *http.Request, pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	trusted := s.trusted(r)
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(`{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [`) // errors are returned by Flush
	separator := "\n"
	for _, pod := range pods {
		if !trusted {
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

// requestedPod returns the pod that the path of a request names, or responds. Of pods
// with the same name it is the one that is not being deleted.
func (s *Server) requestedPod(w http.ResponseWriter, r *http.Request) *corev1.Pod {
	var found *corev1.Pod
	if s.cfg.Pods != nil {
		for _, pod := range s.cfg.Pods() {
			if pod.Namespace != r.PathValue("namespace") || pod.Name != r.PathValue("pod") {
				continue
			}
			if uid := r.PathValue("uid"); uid != "" && uid != string(pod.UID) {
				continue
			}
			if found == nil || found.DeletionTimestamp != nil {
				found = pod
			}
		}
	}
	if found == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
	}
	return found
}

// requestedContainer returns the pod and the container that the path of a request
// names, or responds.
func (s *Server) requestedContainer(w http.ResponseWriter, r *http.Request) (*corev1.Pod, string) {
	pod := s.requestedPod(w, r)
	if pod == nil {
		return nil, ""
	}
	name := r.PathValue("container")
	isNamed := func(c corev1.Container) bool { return c.Name == name }
	ephemeral := func(c corev1.EphemeralContainer) bool { return c.Name == name }
	if !slices.ContainsFunc(pod.Spec.Containers, isNamed) && !slices.ContainsFunc(pod.Spec.InitContainers, isNamed) &&
		!slices.ContainsFunc(pod.Spec.EphemeralContainers, ephemeral) {
		http.Error(w, "container "+name+" not found in pod "+pod.Name, http.StatusNotFound)
		return nil, ""
	}
	return pod, name
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
