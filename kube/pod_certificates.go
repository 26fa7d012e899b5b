package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

const (
	// maxRefreshDelay spreads the requests of pods whose certificates are due at one time.
	maxRefreshDelay = 5 * time.Minute
	// requestLostAge is the age at which a request that is not known has been deleted.
	requestLostAge = 10 * time.Minute
	// refreshRetry is the time between requests for a certificate that there is already.
	refreshRetry = 10 * time.Minute
	// refreshOverdueAge is the time after which a certificate that was to be renewed is overdue.
	refreshOverdueAge = 10 * time.Minute
)

// podCertificate is a private key and its certificate as they are kept on disk. It must
// never be logged.
type podCertificate struct {
	Key       []byte    `json:"key"`
	Chain     []byte    `json:"chain"`
	RefreshAt time.Time `json:"refreshAt"` // by the wall clock, as all times of certificates
	NotAfter  time.Time `json:"notAfter"`
}

// podCertificates requests the certificates of pods and keeps them until they are due. The
// requests of the node are watched from the first one that was created.
type podCertificates struct {
	k     *Kube
	disk  objectDir
	store cache.Store
	begin sync.Once
	used  chan struct{} // closed when a request was created

	mu      sync.Mutex    // guards the fields below; never held during I/O
	changed chan struct{} // closed at the next change of store
	all     map[certificateKey]*certificateSlot
}

type certificateKey struct {
	uid        types.UID
	projection string // a hash of it
}

func (key certificateKey) file() string {
	return certificatePrefix + string(key.uid) + "_" + key.projection + ".json"
}

// certificateSlot is the state of one projection. Only the holder of inUse uses it.
type certificateSlot struct {
	inUse    chan struct{} // one slot
	loaded   bool
	current  *podCertificate
	pending  *podCertificateRequest
	refusal  error     // why there is no certificate, and will be none
	retryAt  time.Time // no request before
	reported string    // the last reason of an event about the age of current
	file     podFile   // of current
}

func newPodCertificates(k *Kube, disk objectDir) *podCertificates {
	return &podCertificates{
		k: k, disk: disk, store: cache.NewStore(cache.MetaNamespaceKeyFunc), used: make(chan struct{}), changed: make(chan struct{}),
		all: map[certificateKey]*certificateSlot{},
	}
}

// PodCertificate implements podspec.Projections. The key is made on this node and is
// another one for each certificate. A certificate is renewed from the time that its
// signer has set; until there is a new one, and while the API server does not answer,
// the last one is returned. A request that was denied, or that its signer has failed, is
// final if there is no certificate yet, as with a kubelet.
func (o *Objects) PodCertificate(ctx context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (key, chain []byte, err error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, nil, fmt.Errorf("encode projection: %w", err)
	}
	hash := sha256.Sum256(text)
	c, err := o.certs.get(ctx, certificateKey{pod.UID, hex.EncodeToString(hash[:8])}, pod, p)
	if err != nil {
		return nil, nil, err
	}
	return c.Key, c.Chain, nil
}

func (c *podCertificates) get(ctx context.Context, key certificateKey, pod *corev1.Pod, p *corev1.PodCertificateProjection) (*podCertificate, error) {
	slot := c.slot(key, pod)
	select {
	case slot.inUse <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-slot.inUse }()
	if !slot.loaded {
		slot.loaded, slot.current = true, c.load(key)
	}
	wait, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	for {
		changed := c.nextChange()
		c.settle(slot, pod)
		now := time.Now()
		slot.file.retry(now)
		c.reportAge(slot, pod, now)
		if slot.refusal != nil {
			return nil, slot.refusal
		}
		if err := c.renew(ctx, slot, pod, p, now); err != nil && slot.current == nil {
			return nil, err
		}
		if slot.current != nil {
			return slot.current, nil
		}
		select {
		case <-changed:
		case <-wait.Done():
			return nil, fmt.Errorf("PodCertificateRequest %s: the signer has not answered yet", slot.pending.name)
		}
	}
}

func (c *podCertificates) slot(key certificateKey, pod *corev1.Pod) *certificateSlot {
	c.mu.Lock()
	defer c.mu.Unlock()
	slot := c.all[key]
	if slot == nil {
		slot = &certificateSlot{inUse: make(chan struct{}, 1), file: podFile{dir: c.disk, name: key.file(), warn: func(err error) {
			c.k.cfg.Logger.Warn("pod certificate not kept on disk", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
		}}}
		c.all[key] = slot
	}
	return slot
}

func (c *podCertificates) load(key certificateKey) *podCertificate {
	var stored podCertificate
	if !c.disk.read(key.file(), &stored) || len(stored.Key) == 0 || len(stored.Chain) == 0 {
		return nil
	}
	return &stored
}

// renew creates a request if there is no certificate, or the one that there is is due.
func (c *podCertificates) renew(ctx context.Context, slot *certificateSlot, pod *corev1.Pod, p *corev1.PodCertificateProjection, now time.Time) (err error) {
	if slot.pending != nil || now.Before(slot.retryAt) || slot.current != nil && now.Before(slot.current.RefreshAt) {
		return nil
	}
	if slot.pending, err = c.request(ctx, pod, p); err != nil {
		if slot.current != nil {
			slot.retryAt = now.Add(objectTimeout)
			c.k.cfg.Logger.Warn("pod certificate not renewed", logattr.Pod(pod), logattr.PodUID(pod.UID),
				slog.Time("notAfter", slot.current.NotAfter), logattr.Err(err))
		}
		return err
	}
	c.begin.Do(func() { close(c.used) })
	return nil
}

// settle takes over the result of the request, if there is one.
func (c *podCertificates) settle(slot *certificateSlot, pod *corev1.Pod) {
	if slot.pending == nil {
		return
	}
	now := time.Now()
	stored, known, _ := c.store.GetByKey(slot.pending.name) // a store in memory has no errors
	object, ok := stored.(*certificatesv1.PodCertificateRequest)
	if !known || !ok {
		if now.Sub(slot.pending.createdAt) > requestLostAge {
			slot.pending = nil
		}
		return
	}
	issued, err := slot.pending.result(object)
	var refusal *refusalError
	switch {
	case errors.As(err, &refusal):
		slot.pending, slot.retryAt = nil, now.Add(refreshRetry)
		if slot.current == nil {
			slot.refusal = err
		}
		c.k.cfg.Logger.Warn("pod certificate refused", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
		c.k.events.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, refusal.condition, err.Error(), now))
	case issued != nil:
		delay := min(maxRefreshDelay, max(0, issued.NotAfter.Sub(issued.RefreshAt)/2))
		issued.RefreshAt = issued.RefreshAt.Add(rand.N(delay + 1))
		slot.pending, slot.current, slot.reported = nil, issued, ""
		slot.file.write(issued, now)
	}
}

// reportAge records an event when a certificate is overdue, and one when it has expired, as a kubelet does.
func (c *podCertificates) reportAge(slot *certificateSlot, pod *corev1.Pod, now time.Time) {
	if slot.current == nil {
		return
	}
	reason, message := "", ""
	switch current := slot.current; {
	case now.After(current.NotAfter):
		reason, message = "CertificateExpired", "pod certificate has expired at "+current.NotAfter.UTC().Format(time.RFC3339)
	case now.After(current.RefreshAt.Add(refreshOverdueAge)):
		reason, message = "CertificateOverdueForRefresh", "pod certificate was to be renewed at "+current.RefreshAt.UTC().Format(time.RFC3339)
	}
	if reason != "" && reason != slot.reported {
		c.k.events.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, reason, message, now))
	}
	slot.reported = reason
}

// keep forgets the certificates of pods that are not in uids.
func (c *podCertificates) keep(uids map[types.UID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.all {
		if !uids[key.uid] {
			delete(c.all, key)
		}
	}
}

// nextChange returns a channel that is closed when a request has changed.
func (c *podCertificates) nextChange() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// run watches the requests of the node from the first one on, until ctx is done.
func (c *podCertificates) run(ctx context.Context) {
	select {
	case <-c.used:
	case <-ctx.Done():
		return
	}
	ofNode := fields.OneTermEqualSelector("spec.nodeName", c.k.cfg.NodeName)
	newSelectingFollower(c.k, c.k.cfg.Client.CertificatesV1().PodCertificateRequests(corev1.NamespaceAll),
		&certificatesv1.PodCertificateRequest{}, ofNode, 0, requestStore{c.store, c}, nil).run(ctx)
}

// requestStore is the store of a reflector that tells of changes.
type requestStore struct {
	cache.Store
	c *podCertificates
}

// Add implements cache.ReflectorStore, as the methods below.
func (s requestStore) Add(obj any) error { return s.changed(s.Store.Add(obj), obj) }

// Update changes a request.
func (s requestStore) Update(obj any) error { return s.changed(s.Store.Update(obj), obj) }

// Delete deletes a request.
func (s requestStore) Delete(obj any) error { return s.changed(s.Store.Delete(obj), obj) }

// Replace replaces all requests.
func (s requestStore) Replace(list []any, version string) error {
	return s.changed(s.Store.Replace(list, version), list...)
}

// changed wakes those who wait for a certificate, and has pods synced that can use one.
func (s requestStore) changed(err error, objects ...any) error {
	s.c.mu.Lock()
	close(s.c.changed)
	s.c.changed = make(chan struct{})
	s.c.mu.Unlock()
	for _, obj := range objects {
		if request, ok := obj.(*certificatesv1.PodCertificateRequest); ok && len(request.Status.Conditions) > 0 {
			s.c.k.requeue(request.Spec.PodUID)
		}
	}
	return err
}
