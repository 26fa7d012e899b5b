package kube

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourceClaim returns a claim for devices, with the allocation that the scheduler has made. It
// implements dra.Claims. A claim is needed when its pod starts only, so that it is not watched;
// the Node authorizer lets a node read those of its pods. The error wraps
// podspec.ErrObjectNotFound if there is none.
func (k *Kube) ResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	return found(k.cfg.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{}))
}
