package kubeauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TokenReviewer creates TokenReviews. It is part of TokenReviewInterface of client-go.
type TokenReviewer interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// TokensConfig describes Tokens.
type TokensConfig struct {
	Reviews    TokenReviewer // required
	Audiences  []string      // of which a token must have one; default: that of the API server
	TTL        time.Duration // for which a user is used; default: 2 min. An invalid token is reviewed again after 10 s
	Timeout    time.Duration // of a review; default: 10 s
	MaxEntries int           // valid tokens to remember, and as many invalid ones; default: 1024
	Logger     *slog.Logger  // has panics of Reviews; default: discard
}

// Tokens authenticates requests with a bearer token. It implements server.Authenticator.
type Tokens struct {
	cfg     TokensConfig
	answers *answers[*authenticationv1.UserInfo]
}

// ErrInvalidToken is returned for a token that the API server does not accept.
var ErrInvalidToken = errors.New("invalid bearer token")

// NewTokens returns Tokens. It makes no request.
func NewTokens(cfg TokensConfig) (*Tokens, error) {
	if cfg.Reviews == nil {
		return nil, errors.New("kubeauth: TokensConfig.Reviews required")
	}
	if cfg.TTL < 0 || cfg.Timeout < 0 || cfg.MaxEntries < 0 {
		return nil, errors.New("kubeauth: TokensConfig.TTL, Timeout, MaxEntries: must not be negative")
	}
	ttl, timeout, entries := cmp.Or(cfg.TTL, defaultTokenTTL), cmp.Or(cfg.Timeout, defaultTimeout), cmp.Or(cfg.MaxEntries, defaultMaxEntries)
	return &Tokens{cfg: cfg, answers: newAnswers[*authenticationv1.UserInfo](cfg.Logger, timeout, min(ttl, invalidTokenTTL), ttl, entries)}, nil
}

// Authenticate returns the user of the request's token, nil if it has none, or an error
// that wraps ErrInvalidToken. The user is read-only.
func (t *Tokens) Authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, nil //nolint:nilnil // no token, no user
	}
	user, err := t.answers.get(r.Context(), sha256.Sum256([]byte(token)), func(ctx context.Context) (*authenticationv1.UserInfo, bool, error) {
		user, err := t.review(ctx, token)
		return user, user != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("review token: %w", err)
	}
	if user == nil {
		return nil, ErrInvalidToken
	}
	return user, nil
}

// review returns nil for a token that is not valid.
func (t *Tokens) review(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	review, err := t.cfg.Reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: t.cfg.Audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	status := review.Status
	switch {
	case !status.Authenticated || status.User.Username == "":
		return nil, nil //nolint:nilnil // not valid
	case len(t.cfg.Audiences) > 0 && !slices.ContainsFunc(status.Audiences, func(a string) bool { return slices.Contains(t.cfg.Audiences, a) }):
		return nil, nil //nolint:nilnil // for others
	}
	return &status.User, nil
}
