package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/monotonic"
)

// A token is renewed after this share of its life, and after maxTokenAge at last.
const (
	tokenRenewal = 0.8
	maxTokenAge  = 24 * time.Hour
)

// token is one token as it is kept on disk. It must never be logged.
type token struct {
	Token     []byte        `json:"token"`
	IssuedAt  time.Time     `json:"issuedAt"`
	Life      time.Duration `json:"life"`
	requested time.Time     // last try to renew it
}

// age returns the age of the token by the clock that says more: the monotonic clock stands still
// while the machine is suspended, and the wall clock may be set back.
func (t *token) age(now time.Time) time.Duration {
	return max(now.Sub(t.IssuedAt), now.Round(0).Sub(t.IssuedAt.Round(0)))
}

// needsRenewal reports whether the token is old.
func (t *token) needsRenewal(now time.Time) bool {
	return t.age(now) > min(time.Duration(tokenRenewal*float64(t.Life)), maxTokenAge)
}

// tokens requests the tokens of pods and keeps them until they are due for renewal.
type tokens struct {
	k    *Kube
	disk objectDir

	mu  sync.Mutex // guards the map; never held during I/O
	all map[tokenKey]*tokenSlot
}

type tokenKey struct {
	uid      types.UID
	audience string
	seconds  int64
	account  types.UID // that the service account must have; "": any
}

// file returns the name of the file of the token. An audience is any text.
func (key tokenKey) file() string {
	text := key.audience + "\x00" + strconv.FormatInt(key.seconds, 10)
	if key.account != "" {
		text += "\x00" + string(key.account)
	}
	hash := sha256.Sum256([]byte(text))
	return tokenPrefix + string(key.uid) + "_" + hex.EncodeToString(hash[:8]) + ".json"
}

// tokenSlot has one token, and one request for it at a time.
type tokenSlot struct {
	inUse   chan struct{} // one slot: the right to use the fields below
	current *token
	file    podFile // of current
}

func newTokens(k *Kube, disk objectDir) *tokens {
	return &tokens{k: k, disk: disk, all: map[tokenKey]*tokenSlot{}}
}

// ServiceAccountToken implements podspec.Projections. The token is bound to the pod, and
// so to the node. It is renewed after 80 % of its life or 24 hours. While the API server
// does not answer, the last token is returned, even if it has expired: nothing is gained
// by a pod that does not start, and the token is renewed when the server is back. A server that
// denies another token is believed only after the last one has expired, as by a kubelet.
func (o *Objects) ServiceAccountToken(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	return o.ServiceAccountTokenOf(ctx, pod, "", p)
}

// ServiceAccountTokenOf is ServiceAccountToken for the service account with this UID. There is no
// token of one that was deleted and created under the same name since.
func (o *Objects) ServiceAccountTokenOf(ctx context.Context, pod *corev1.Pod, account types.UID, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	key := tokenKey{uid: pod.UID, audience: p.Audience, account: account}
	if p.ExpirationSeconds != nil {
		key.seconds = *p.ExpirationSeconds
	}
	return o.tokens.get(ctx, key, pod)
}

func (t *tokens) get(ctx context.Context, key tokenKey, pod *corev1.Pod) ([]byte, error) {
	t.mu.Lock()
	slot := t.all[key]
	if slot == nil {
		slot = &tokenSlot{inUse: make(chan struct{}, 1), file: podFile{dir: t.disk, name: key.file(), warn: func(err error) {
			t.k.cfg.Logger.Warn("token not kept on disk", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
		}}}
		t.all[key] = slot
	}
	t.mu.Unlock()
	select {
	case slot.inUse <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-slot.inUse }()
	if slot.current == nil {
		slot.current = t.load(key)
	}
	current, now := slot.current, time.Now()
	slot.file.retry(now)
	if current != nil && (!current.needsRenewal(now) || !current.requested.IsZero() && now.Sub(current.requested) < objectTimeout) {
		return current.Token, nil
	}
	renewed, err := t.request(ctx, key, pod)
	switch {
	case err == nil:
		slot.current = renewed
		slot.file.write(renewed, now)
		return renewed.Token, nil
	case current == nil, current.age(now) > current.Life && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
		return nil, err
	}
	current.requested = now
	t.k.cfg.Logger.Warn("service account token not renewed", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err),
		slog.Duration("age", current.age(now)))
	return current.Token, nil
}

func (t *tokens) load(key tokenKey) *token {
	var stored token
	if !t.disk.read(key.file(), &stored) || len(stored.Token) == 0 {
		return nil
	}
	now := time.Now()
	if stored.IssuedAt.After(now) { // the clock was set back: its age is not known
		stored.IssuedAt = time.Time{}
	}
	stored.IssuedAt = monotonic.At(stored.IssuedAt, now)
	return &stored
}

func (t *tokens) request(ctx context.Context, key tokenKey, pod *corev1.Pod) (*token, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: key.account}, Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	if key.audience != "" {
		request.Spec.Audiences = []string{key.audience}
	}
	if key.seconds > 0 {
		request.Spec.ExpirationSeconds = &key.seconds
	}
	got, err := t.k.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token of service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	if got.Status.Token == "" {
		return nil, fmt.Errorf("request token of service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, errNoToken)
	}
	life := time.Hour // the default of the API
	if got.Spec.ExpirationSeconds != nil {
		life = time.Duration(*got.Spec.ExpirationSeconds) * time.Second
	}
	return &token{Token: []byte(got.Status.Token), IssuedAt: time.Now(), Life: life}, nil
}

var errNoToken = errors.New("the response has no token")

// keep forgets the tokens of pods that are not in uids.
func (t *tokens) keep(uids map[types.UID]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.all {
		if !uids[key.uid] {
			delete(t.all, key)
		}
	}
}
