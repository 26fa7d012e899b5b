package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// hashVersion stands before every hash. It changes with the meaning of the hash,
// so that a new agent does not restart what an old one made.
const hashVersion = "s1-"

// HashContainer returns a hash of what a container is made from. Two specs with
// the same hash need no restart to get from one to the other: fields that are
// read while the container runs (probes, hooks, restart policy and rules) and
// resources, which change in place, are left out.
func HashContainer(c *corev1.Container) string {
	made := *c
	made.Resources, made.ResizePolicy = corev1.ResourceRequirements{}, nil
	made.LivenessProbe, made.ReadinessProbe, made.StartupProbe = nil, nil, nil
	made.RestartPolicy, made.RestartPolicyRules = nil, nil
	made.ImagePullPolicy = ""
	made.Lifecycle = nil
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		// Unlike the hooks, the runtime takes the signal when it makes the container.
		made.Lifecycle = &corev1.Lifecycle{StopSignal: c.Lifecycle.StopSignal}
	}
	// Fields that are not set are left out of the text, so that a field added to
	// the API does not change the hash of containers that do without it.
	text, err := json.Marshal(&made)
	if err != nil {
		return hashVersion // only a type that cannot be marshalled errs; Container can
	}
	sum := sha256.Sum256(text)
	return hashVersion + hex.EncodeToString(sum[:8])
}

// changed reports whether the container was made from another spec. A hash that
// is not ours (the kubelet's, another version's) tells nothing and changes
// nothing, lest taking over a node restart everything on it.
func changed(c *corev1.Container, made *Container) bool {
	return strings.HasPrefix(made.Hash, hashVersion) && made.Hash != HashContainer(c)
}
