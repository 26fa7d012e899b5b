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
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			s.addRefs(refs, pod, &pod.Spec.Volumes[i])
		}
	}
	if err := s.disk.keep(refs, nil); err != nil {
		s.k.cfg.Logger.Warn("unused objects not removed from disk", logattr.Err(err))
	}
}

// addRefs adds the objects that a volume of a pod needs, and returns the source of its
// PersistentVolume if that is one of CSI and known.
func (s *Storage) addRefs(refs map[podspec.Ref]bool, pod *corev1.Pod, v *corev1.Volume) *corev1.CSIPersistentVolumeSource {
	var name string
	switch {
	case v.CSI != nil:
		refs[podspec.Ref{Kind: driverKind, Name: v.CSI.Driver}] = true
		return nil
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = pod.Name + "-" + v.Name
	default:
		return nil
	}
	var claim corev1.PersistentVolumeClaim
	ref := podspec.Ref{Kind: claimKind, Namespace: pod.Namespace, Name: name}
	refs[ref] = true
	if !s.disk.read(objectFile(ref), &claim) {
		return nil
	}
	var volume corev1.PersistentVolume
	ref = podspec.Ref{Kind: volumeKind, Name: claim.Spec.VolumeName}
	refs[ref] = true
	if !s.disk.read(objectFile(ref), &volume) || volume.Spec.CSI == nil {
		return nil
	}
	refs[podspec.Ref{Kind: driverKind, Name: volume.Spec.CSI.Driver}] = true
	return volume.Spec.CSI
}

// SecretRefs returns the Secrets that CSI drivers need for the PersistentVolumes of pods,
// for ObjectsConfig.Refs. It reads the directory of Storage; without one there are none.
func (s *Storage) SecretRefs(pods []*corev1.Pod) (secrets []podspec.Ref) {
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			source := s.addRefs(map[podspec.Ref]bool{}, pod, &pod.Spec.Volumes[i])
			if source == nil {
				continue
			}
			for _, ref := range []*corev1.SecretReference{source.NodeStageSecretRef, source.NodePublishSecretRef, source.NodeExpandSecretRef} {
				if ref != nil {
					secrets = append(secrets, podspec.Ref{Kind: podspec.Secret, Namespace: ref.Namespace, Name: ref.Name})
				}
			}
		}
	}
	return secrets
}
