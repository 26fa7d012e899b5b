package kube

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sublet-dev/agent/podspec"
)

// trustBundles follows the ClusterTrustBundles from the first use of one.
type trustBundles struct {
	k      *Kube
	synced chan struct{}
	used   chan struct{} // closed at the first use
	want   sync.Once

	mu    sync.Mutex // guards the fields below
	store *syncedStore
	err   error
}

func (b *trustBundles) run(ctx context.Context) {
	select {
	case <-b.used:
	case <-ctx.Done():
		return
	}
	store := newSyncedStore(b.synced)
	b.mu.Lock()
	b.store = store
	b.mu.Unlock()
	newFollower(b.k, b.k.cfg.Client.CertificatesV1().ClusterTrustBundles(), &certificatesv1.ClusterTrustBundle{}, "", store, b.fail).run(ctx)
}

func (b *trustBundles) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// all returns the bundles once they are known.
func (b *trustBundles) all(ctx context.Context) ([]*certificatesv1.ClusterTrustBundle, error) {
	b.want.Do(func() { close(b.used) })
	wait, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	select {
	case <-b.synced:
	case <-wait.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		return nil, fmt.Errorf("list cluster trust bundles: %w", firstError(ctx.Err(), b.err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var bundles []*certificatesv1.ClusterTrustBundle
	for _, obj := range b.store.List() {
		if bundle, ok := obj.(*certificatesv1.ClusterTrustBundle); ok {
			bundles = append(bundles, bundle)
		}
	}
	return bundles, nil
}

// firstError returns the first error, or errNoAnswer.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return errNoAnswer
}

// ClusterTrustBundle implements podspec.Projections: the certificates of the bundle of
// that name, or of all bundles of a signer with the labels. Each is there once, in an
// order that stays the same.
func (o *Objects) ClusterTrustBundle(ctx context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	isSelected, err := bundleSelector(p)
	if err != nil {
		return nil, err
	}
	bundles, err := o.bundles.all(ctx)
	if err != nil {
		return nil, err
	}
	var blocks [][]byte
	found := false
	for _, bundle := range bundles {
		if !isSelected(bundle) {
			continue
		}
		found = true
		rest := []byte(bundle.Spec.TrustBundle)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			blocks = append(blocks, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
	if !found {
		return nil, fmt.Errorf("cluster trust bundle: %w", podspec.ErrObjectNotFound)
	}
	slices.SortFunc(blocks, bytes.Compare)
	return bytes.Join(slices.CompactFunc(blocks, bytes.Equal), nil), nil
}

// bundleSelector returns the predicate of a projection. Without a label selector, none of
// a signer's bundles is selected.
func bundleSelector(p *corev1.ClusterTrustBundleProjection) (func(*certificatesv1.ClusterTrustBundle) bool, error) {
	if p.Name != nil {
		return func(b *certificatesv1.ClusterTrustBundle) bool { return b.Name == *p.Name }, nil
	}
	if p.SignerName == nil {
		return nil, errors.New("cluster trust bundle: name or signerName required")
	}
	selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("cluster trust bundle: label selector: %w", err)
	}
	return func(b *certificatesv1.ClusterTrustBundle) bool {
		return b.Spec.SignerName == *p.SignerName && selector.Matches(labels.Set(b.Labels))
	}, nil
}
