package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// hashVersion prefixes every hash. It changes with the meaning of the hash, so that a new
// agent does not restart the containers of an old one.
const hashVersion = "s1-"

// HashContainer returns a hash of a container spec. A change between two specs with the
// same hash needs no restart: fields that are read while the container runs (probes,
// hooks, restart policy and rules) and resources, which change in place, are left out.
func HashContainer(c *corev1.Container) string {
	made := *c
	made.Resources, made.ResizePolicy = corev1.ResourceRequirements{}, nil
	made.LivenessProbe, made.ReadinessProbe, made.StartupProbe = nil, nil, nil
	made.RestartPolicy, made.RestartPolicyRules = nil, nil
	made.ImagePullPolicy = ""
	made.Lifecycle = nil
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		// Unlike the hooks, the signal is fixed when the container is created.
		made.Lifecycle = &corev1.Lifecycle{StopSignal: c.Lifecycle.StopSignal}
	}
	// Fields that are not set are left out of the text, so that a field added to
	// the API does not change the hash of containers that do without it.
	return hashJSON(hashVersion, &made)
}

// HashResources returns a hash of the resources of a container spec.
func HashResources(c *corev1.Container) string { return hashJSON("", &c.Resources) }

// hashJSON returns version and a hash of v, whose type can be marshalled.
func hashJSON(version string, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return version
	}
	sum := sha256.Sum256(text)
	var hash [32]byte // on the stack: this is called for each container of each sync
	return string(hex.AppendEncode(append(hash[:0], version...), sum[:8]))
}

// HashWithInjection returns the hash of a container spec and of what is injected into the
// container. It is the value of AnnotationHash.
func HashWithInjection(c *corev1.Container, i Injection) string {
	return joinHashes(HashContainer(c), i.Hash())
}

func joinHashes(spec, injection string) string {
	if injection == "" {
		return spec
	}
	return spec + "+" + injection
}

// changed reports whether the container was created from another spec, or got another
// injection than the one with the given hash. A hash of another format (the kubelet's,
// another version's) is ignored, so that adopting a node does not restart its containers.
//
// Of a pod whose spec is fixed only another image is another spec. A field that this version
// knows and the previous one did not, or a new default, changes the hash of a container whose
// spec is the same.
func changed(pod *corev1.Pod, c *corev1.Container, made *Container, injection string) bool {
	if !strings.HasPrefix(made.Hash, hashVersion) {
		return false
	}
	spec, injected, _ := strings.Cut(made.Hash, "+")
	switch {
	case injection != UnknownInjection && injection != injected:
		return true
	case spec == HashContainer(c):
		return false
	}
	return made.SpecImage == "" || made.SpecImage != c.Image || !hasFixedSpec(pod)
}

// hasFixedSpec reports whether the image of a container is all of its spec that can change while the
// pod has its UID, except resources: the pod is that of an API server, which accepts no other
// change, or its UID is computed from its content.
func hasFixedSpec(pod *corev1.Pod) bool {
	hash := pod.Annotations[podspec.AnnotationHash]
	fromAPI := pod.Annotations[podspec.AnnotationSource] == podspec.SourceAPI && !podspec.IsStatic(pod)
	return fromAPI || hash != "" && hash == string(pod.UID)
}
