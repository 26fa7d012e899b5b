package credentialprovider

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kubelet/config/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime/cri"
)

// ServiceAccounts are the service accounts of pods. *kube.Objects has those of a cluster.
type ServiceAccounts interface {
	// ServiceAccount returns a service account, with its UID and annotations. It is not changed.
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// ServiceAccountTokenOf returns a token of the pod's service account, bound to the pod. It is
	// an error if the service account does not have the UID account.
	ServiceAccountTokenOf(ctx context.Context, pod *corev1.Pod, account types.UID, p *corev1.ServiceAccountTokenProjection) ([]byte, error)
}

// query is what a plugin is asked.
type query struct {
	image       string
	token       string
	annotations map[string]string // of the service account
	// account identifies the service account of the token, scope who may have a cached
	// answer. They are empty without a token: the answer is for all pods.
	account, scope string
}

// key is what makes two queries the same.
func (q query) key() string { return q.scope + q.image }

// podCredentials returns the logins that a plugin has for a pod.
func (p *plugin) podCredentials(ctx context.Context, pod *corev1.Pod, image string) (map[string]cri.RegistryLogin, error) {
	q := query{image: image}
	if a := p.cfg.TokenAttributes; a != nil {
		name := pod.Spec.ServiceAccountName
		switch {
		case p.accounts != nil && name != "":
			ok, err := p.addToken(ctx, &q, pod)
			if err != nil {
				return nil, fmt.Errorf("service account %s/%s: %w", pod.Namespace, name, err)
			}
			if !ok {
				return nil, nil
			}
		case *a.RequireServiceAccount:
			return nil, nil
		}
	}
	return p.credentials(ctx, q)
}

// addToken adds the token of the pod's service account, and its annotations. ok is false if the
// account lacks an annotation that the plugin requires: it has not opted in.
func (p *plugin) addToken(ctx context.Context, q *query, pod *corev1.Pod) (ok bool, err error) {
	a := p.cfg.TokenAttributes
	account, err := p.accounts.ServiceAccount(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return false, err
	}
	q.annotations = map[string]string{}
	for _, key := range a.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			p.log.Debug("credential provider plugin not called", slog.String("plugin", p.cfg.Name), logattr.Pod(pod), slog.String("annotation", key))
			return false, nil
		}
		q.annotations[key] = value
	}
	for _, key := range a.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			q.annotations[key] = value
		}
	}
	token, err := p.accounts.ServiceAccountTokenOf(ctx, pod, account.UID, &corev1.ServiceAccountTokenProjection{Audience: a.ServiceAccountTokenAudience})
	if err != nil {
		return false, err
	}
	q.token = string(token)
	q.account = fmt.Sprintf("%s/%s %s", account.Namespace, account.Name, account.UID)
	q.scope, err = scopeOf(q, a.CacheType)
	return err == nil, err
}

// scopeOf returns a hash of what an answer depends on, besides the image.
func scopeOf(q *query, t configv1.ServiceAccountTokenCacheType) (string, error) {
	parts := []any{q.account, q.annotations}
	if t == configv1.TokenServiceAccountTokenCacheType {
		parts = append(parts, q.token)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%x ", sum), nil
}

var errTokenReturned = errors.New("its answer has the token of the service account as a password, which needs cacheType: Token")

// checkPassword rejects an answer that would be kept for longer than it is valid.
func (p *plugin) checkPassword(q query, password string) error {
	if q.token != "" && password == q.token && p.cfg.TokenAttributes.CacheType != configv1.TokenServiceAccountTokenCacheType {
		return errTokenReturned
	}
	return nil
}
