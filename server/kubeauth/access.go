package kubeauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AccessReviewer creates SubjectAccessReviews. It is part of SubjectAccessReviewInterface
// of client-go.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// AccessConfig describes an Access.
type AccessConfig struct {
	Reviews    AccessReviewer // required
	AllowedTTL time.Duration  // for which a right is used; default: 5 min
	DeniedTTL  time.Duration  // for which a denial is used; default: 30 s
	Timeout    time.Duration  // of a review; default: 10 s
	MaxEntries int            // rights to remember, and as many denials; default: 1024
	Logger     *slog.Logger   // has panics of Reviews; default: discard
}

// Access decides by SubjectAccessReviews. It implements server.Authorizer.
type Access struct {
	reviews AccessReviewer
	answers *answers[bool]
}

// NewAccess returns an Access. It makes no request.
func NewAccess(cfg AccessConfig) (*Access, error) {
	if cfg.Reviews == nil {
		return nil, errors.New("kubeauth: AccessConfig.Reviews required")
	}
	if min(cfg.AllowedTTL, cfg.DeniedTTL, cfg.Timeout) < 0 || cfg.MaxEntries < 0 {
		return nil, errors.New("kubeauth: AccessConfig.AllowedTTL, DeniedTTL, Timeout, MaxEntries: must not be negative")
	}
	return &Access{reviews: cfg.Reviews, answers: newAnswers[bool](cfg.Logger, cmp.Or(cfg.Timeout, defaultTimeout),
		cmp.Or(cfg.DeniedTTL, defaultDeniedTTL), cmp.Or(cfg.AllowedTTL, defaultAllowedTTL), cmp.Or(cfg.MaxEntries, defaultMaxEntries))}, nil
}

// Authorize reports whether the API server allows it.
func (a *Access) Authorize(ctx context.Context, user *authenticationv1.UserInfo, attributes *authorizationv1.ResourceAttributes) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: slices.Sorted(slices.Values(user.Groups)), ResourceAttributes: attributes,
	}
	for name, values := range user.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	b, _ := json.Marshal(&spec) // strings cannot fail, and the keys of maps are sorted
	allowed, err := a.answers.get(ctx, sha256.Sum256(b), func(ctx context.Context) (allowed, positive bool, err error) {
		review, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, false, err
		}
		allowed = review.Status.Allowed && !review.Status.Denied
		return allowed, allowed, nil
	})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return allowed, nil
}
