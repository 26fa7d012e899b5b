package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// Kinds of objects in the directory of Storage.
const (
	claimKind  = "PersistentVolumeClaim"
	volumeKind = "PersistentVolume"
	driverKind = "CSIDriver"
)

// readStored is readThrough with the directory of Storage.
func readStored[T any](ctx context.Context, s *Storage, ref podspec.Ref, get func(context.Context) (*T, error)) (*T, error) {
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("kube: directory of volumes: %w", err)
	}
	return readThrough(ctx, s.k, s.disk, ref, get)
}

// sweep removes what no desired pod uses from disk.
func (s *Storage) sweep() {
	pods, synced := s.cfg.Pods()
	if !synced {
		return
	}
	refs := map[podspec.Ref]bool{}
	for _, ref := range s.refs(pods) {
		refs[ref] = true
	}
	if err := s.disk.keep(refs, nil); err != nil {
		s.k.cfg.Logger.Warn("unused objects not removed from disk", logattr.Err(err))
	}
}

// SecretRefs returns the Secrets that CSI drivers need for the PersistentVolumes of pods,
// for ObjectsConfig.Refs. It reads the directory of Storage; without one there are none.
func (s *Storage) SecretRefs(pods []*corev1.Pod) (secrets []podspec.Ref) {
	for _, ref := range s.refs(pods) {
		if ref.Kind == podspec.Secret {
			secrets = append(secrets, ref)
		}
	}
	return secrets
}

// refs returns the objects that the volumes of pods need, by what is on disk.
func (s *Storage) refs(pods []*corev1.Pod) (refs []podspec.Ref) {
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			refs = append(refs, s.volumeRefs(pod, &pod.Spec.Volumes[i])...)
		}
	}
	return refs
}

// volumeRefs returns the objects that a volume of a pod needs.
func (s *Storage) volumeRefs(pod *corev1.Pod, v *corev1.Volume) (refs []podspec.Ref) {
	var name string
	switch {
	case v.CSI != nil:
		return []podspec.Ref{{Kind: driverKind, Name: v.CSI.Driver}}
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = pod.Name + "-" + v.Name
	default:
		return nil
	}
	var claim corev1.PersistentVolumeClaim
	ref := podspec.Ref{Kind: claimKind, Namespace: pod.Namespace, Name: name}
	refs = append(refs, ref)
	if !s.disk.read(objectFile(ref), &claim) {
		return refs
	}
	var volume corev1.PersistentVolume
	ref = podspec.Ref{Kind: volumeKind, Name: claim.Spec.VolumeName}
	refs = append(refs, ref)
	if !s.disk.read(objectFile(ref), &volume) || volume.Spec.CSI == nil {
		return refs
	}
	source := volume.Spec.CSI
	refs = append(refs, podspec.Ref{Kind: driverKind, Name: source.Driver})
	for _, secret := range []*corev1.SecretReference{source.NodeStageSecretRef, source.NodePublishSecretRef, source.NodeExpandSecretRef} {
		if secret != nil {
			refs = append(refs, podspec.Ref{Kind: podspec.Secret, Namespace: secret.Namespace, Name: secret.Name})
		}
	}
	return refs
}
