package kubeauth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeauth"
)

var (
	_ server.Authenticator = (*kubeauth.Tokens)(nil)
	_ server.Authorizer    = (*kubeauth.Access)(nil)
)

// Clients of client-go fit.
var _ = func(c kubernetes.Interface) (kubeauth.TokenReviewer, kubeauth.AccessReviewer) {
	return c.AuthenticationV1().TokenReviews(), c.AuthorizationV1().SubjectAccessReviews()
}

// apiServer answers reviews and counts them.
type apiServer struct {
	mu      sync.Mutex
	reviews []string
	err     error
	block   chan struct{} // if any, answers wait for it
	active  atomic.Int32
	most    atomic.Int32
	status  authenticationv1.TokenReviewStatus
	denied  bool // Status.Denied
	panics  bool
}

func (a *apiServer) answer(ctx context.Context, review string) error {
	if a.panics {
		panic("of a reviewer")
	}
	a.mu.Lock()
	a.reviews = append(a.reviews, review)
	err := a.err
	a.mu.Unlock()
	now := a.active.Add(1)
	defer a.active.Add(-1)
	for most := a.most.Load(); now > most && !a.most.CompareAndSwap(most, now); most = a.most.Load() {
	}
	if a.block != nil {
		select {
		case <-a.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (a *apiServer) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.reviews)
}

type tokenReviews struct{ *apiServer }

func (a tokenReviews) Create(ctx context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	if err := a.answer(ctx, r.Spec.Token); err != nil {
		return nil, err
	}
	r = r.DeepCopy()
	r.Status = a.status
	if strings.HasPrefix(r.Spec.Token, "valid") {
		r.Status.Authenticated, r.Status.User = true, authenticationv1.UserInfo{Username: "user of " + r.Spec.Token, Groups: []string{"g"}}
	}
	return r, nil
}

type accessReviews struct{ *apiServer }

func (a accessReviews) Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s := r.Spec
	if err := a.answer(ctx, fmt.Sprint(s.User, s.UID, s.Groups, s.Extra, s.ResourceAttributes.Verb, s.ResourceAttributes.Subresource)); err != nil {
		return nil, err
	}
	r = r.DeepCopy()
	r.Status.Allowed, r.Status.Denied = s.ResourceAttributes.Subresource == "metrics", a.denied
	return r, nil
}

func request(ctx context.Context, authorization string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

func tokens(t *testing.T, cfg kubeauth.TokensConfig, a *apiServer) *kubeauth.Tokens {
	t.Helper()
	cfg.Reviews = tokenReviews{a}
	tokens, err := kubeauth.NewTokens(cfg)
	require.NoError(t, err)
	return tokens
}

func access(t *testing.T, cfg kubeauth.AccessConfig, a *apiServer) *kubeauth.Access {
	t.Helper()
	cfg.Reviews = accessReviews{a}
	access, err := kubeauth.NewAccess(cfg)
	require.NoError(t, err)
	return access
}

func TestTokens_Authenticate(t *testing.T) {
	a := &apiServer{}
	tok := tokens(t, kubeauth.TokensConfig{}, a)
	for header, want := range map[string]string{
		"Bearer valid": "user of valid", "bearer  valid": "user of valid", " Bearer valid ": "user of valid",
		"": "", "Bearer": "", "Bearer ": "", "Basic valid": "",
	} {
		user, err := tok.Authenticate(request(t.Context(), header))
		require.NoError(t, err, header)
		if want == "" {
			assert.Nil(t, user, header)
		} else {
			assert.Equal(t, want, user.Username)
			assert.Equal(t, []string{"g"}, user.Groups)
		}
	}
	assert.Equal(t, 1, a.count())
	_, err := tok.Authenticate(request(t.Context(), "Bearer wrong"))
	require.ErrorIs(t, err, kubeauth.ErrInvalidToken)
	a.status = authenticationv1.TokenReviewStatus{User: authenticationv1.UserInfo{Username: "someone"}}
	_, err = tok.Authenticate(request(t.Context(), "Bearer not-authenticated"))
	require.ErrorIs(t, err, kubeauth.ErrInvalidToken)
	a.status = authenticationv1.TokenReviewStatus{Authenticated: true}
	_, err = tok.Authenticate(request(t.Context(), "Bearer without-a-name"))
	require.ErrorIs(t, err, kubeauth.ErrInvalidToken)
}

func TestTokens_Audiences(t *testing.T) {
	for want, status := range map[bool]authenticationv1.TokenReviewStatus{
		true: {Audiences: []string{"other", "node"}}, false: {Audiences: []string{"other"}},
	} {
		a := &apiServer{status: status}
		user, err := tokens(t, kubeauth.TokensConfig{Audiences: []string{"node"}}, a).Authenticate(request(t.Context(), "Bearer valid"))
		assert.Equal(t, want, err == nil)
		assert.Equal(t, want, user != nil)
	}
}

// SV-7
func TestTokens_CachesAnswersForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{}
		tok := tokens(t, kubeauth.TokensConfig{}, a)
		ask := func(token string, reviews int) {
			t.Helper()
			_, _ = tok.Authenticate(request(t.Context(), "Bearer "+token))
			assert.Equal(t, reviews, a.count())
		}
		ask("valid", 1)
		ask("wrong", 2)
		time.Sleep(10*time.Second - 1)
		ask("wrong", 2)
		time.Sleep(time.Nanosecond)
		ask("wrong", 3)
		time.Sleep(110*time.Second - 1)
		ask("valid", 3)
		time.Sleep(time.Nanosecond)
		ask("valid", 4)
	})
}

// Guessed tokens displace each other, not valid ones. SV-7
func TestTokens_BoundedMemory(t *testing.T) {
	a := &apiServer{}
	tok := tokens(t, kubeauth.TokensConfig{MaxEntries: 3}, a)
	ask := func(token string) { _, _ = tok.Authenticate(request(t.Context(), "Bearer "+token)) }
	ask("valid-1")
	for i := range 100 {
		ask(fmt.Sprint("wrong-", i))
	}
	ask("valid-1")
	assert.Equal(t, 101, a.count())
	ask("valid-2")
	ask("valid-3")
	ask("valid-1") // used last
	ask("valid-4") // displaces valid-2
	assert.Equal(t, 104, a.count())
	for _, token := range []string{"valid-1", "valid-3", "valid-4"} {
		ask(token)
	}
	assert.Equal(t, 104, a.count())
	ask("valid-2")
	assert.Equal(t, 105, a.count())
}

// An API server that does not answer denies, and is asked again. SV-7
func TestTokens_ErrorsAreNotCached(t *testing.T) {
	a := &apiServer{err: errors.New("connection refused")}
	tok := tokens(t, kubeauth.TokensConfig{}, a)
	user, err := tok.Authenticate(request(t.Context(), "Bearer valid"))
	require.EqualError(t, err, "review token: connection refused")
	assert.Nil(t, user)
	a.err = nil
	user, err = tok.Authenticate(request(t.Context(), "Bearer valid"))
	require.NoError(t, err)
	assert.NotNil(t, user)
}

func TestTokens_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{block: make(chan struct{})}
		start := time.Now()
		_, err := tokens(t, kubeauth.TokensConfig{}, a).Authenticate(request(t.Context(), "Bearer valid"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second, time.Since(start))
	})
}

// Many clients with one token are one review, which does not end with the first client.
func TestTokens_EqualQuestionsAreOneReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{block: make(chan struct{})}
		tok := tokens(t, kubeauth.TokensConfig{}, a)
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := tok.Authenticate(request(first, "Bearer valid"))
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range 100 {
			wg.Go(func() {
				user, err := tok.Authenticate(request(t.Context(), "Bearer valid"))
				if assert.NoError(t, err) {
					assert.Equal(t, "user of valid", user.Username)
				}
			})
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		close(a.block)
		wg.Wait()
		assert.Equal(t, 1, a.count())
	})
}

// An answer that is renewed takes no more memory than before.
func TestTokens_BoundedMemoryOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{}
		tok := tokens(t, kubeauth.TokensConfig{MaxEntries: 2}, a)
		ask := func(token string) { _, _ = tok.Authenticate(request(t.Context(), "Bearer "+token)) }
		for range 5 {
			ask("valid-1")
			ask("valid-2")
			time.Sleep(2 * time.Minute)
		}
		ask("valid-1")
		ask("valid-2")
		assert.Equal(t, 12, a.count())
		ask("valid-1")
		ask("valid-2")
		assert.Equal(t, 12, a.count())
	})
}

// A review that waits for others to end has the same time.
func TestTokens_TimeoutOfWaitingReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{block: make(chan struct{})}
		tok := tokens(t, kubeauth.TokensConfig{Timeout: time.Hour}, a)
		hasty := tokens(t, kubeauth.TokensConfig{}, &apiServer{block: make(chan struct{})})
		var wg sync.WaitGroup
		for i := range 17 {
			wg.Go(func() { _, _ = tok.Authenticate(request(t.Context(), fmt.Sprint("Bearer ", i))) })
			wg.Go(func() {
				_, err := hasty.Authenticate(request(t.Context(), fmt.Sprint("Bearer ", i)))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		synctest.Wait()
		time.Sleep(10 * time.Second)
		assert.Equal(t, 16, a.count())
		close(a.block)
		wg.Wait()
		assert.Equal(t, 17, a.count())
	})
}

func TestTokens_BoundedReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{block: make(chan struct{})}
		tok := tokens(t, kubeauth.TokensConfig{}, a)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { _, _ = tok.Authenticate(request(t.Context(), fmt.Sprint("Bearer ", i))) })
		}
		synctest.Wait()
		assert.Equal(t, int32(16), a.active.Load())
		close(a.block)
		wg.Wait()
		assert.Equal(t, int32(16), a.most.Load())
		assert.Equal(t, 100, a.count())
	})
}

func right(subresource string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: subresource, Name: "n"}
}

func TestAccess_Authorize(t *testing.T) {
	a := &apiServer{}
	acc := access(t, kubeauth.AccessConfig{}, a)
	user := &authenticationv1.UserInfo{
		Username: "u", UID: "1", Groups: []string{"b", "a"}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"x", "y"}},
	}
	allowed, err := acc.Authorize(t.Context(), user, right("metrics"))
	require.NoError(t, err)
	assert.True(t, allowed)
	allowed, err = acc.Authorize(t.Context(), user, right("proxy"))
	require.NoError(t, err)
	assert.False(t, allowed)
	assert.Equal(t, []string{"u1[a b] map[scope:[x y]]getmetrics", "u1[a b] map[scope:[x y]]getproxy"}, a.reviews)
	assert.Equal(t, []string{"b", "a"}, user.Groups, "the user stays as it is")

	// The order of groups makes no other question; every other difference does.
	same, other := *user, *user
	same.Groups, other.Groups = []string{"a", "b"}, []string{"a"}
	_, _ = acc.Authorize(t.Context(), &same, right("metrics"))
	assert.Equal(t, 2, a.count())
	_, _ = acc.Authorize(t.Context(), &other, right("metrics"))
	assert.Equal(t, 3, a.count())

	a.denied = true
	allowed, err = acc.Authorize(t.Context(), &authenticationv1.UserInfo{Username: "v"}, right("metrics"))
	require.NoError(t, err)
	assert.False(t, allowed, "an explicit denial")
}

// SV-7
func TestAccess_CachesAnswersForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiServer{}
		acc := access(t, kubeauth.AccessConfig{}, a)
		ask := func(subresource string, reviews int) {
			t.Helper()
			_, err := acc.Authorize(t.Context(), &authenticationv1.UserInfo{Username: "u"}, right(subresource))
			require.NoError(t, err)
			assert.Equal(t, reviews, a.count())
		}
		ask("metrics", 1)
		ask("proxy", 2)
		time.Sleep(30*time.Second - 1)
		ask("proxy", 2)
		time.Sleep(time.Nanosecond)
		ask("proxy", 3)
		time.Sleep(270*time.Second - 1)
		ask("metrics", 3)
		time.Sleep(time.Nanosecond)
		ask("metrics", 4)
	})
}

// SV-1
func TestAccess_ErrorDenies(t *testing.T) {
	a := &apiServer{err: errors.New("connection refused")}
	acc := access(t, kubeauth.AccessConfig{}, a)
	allowed, err := acc.Authorize(t.Context(), &authenticationv1.UserInfo{Username: "u"}, right("metrics"))
	require.EqualError(t, err, "review access: connection refused")
	assert.False(t, allowed)
}

// A Reviewer that panics denies, and ends neither the program nor later reviews.
func TestAccess_PanicDenies(t *testing.T) {
	a := &apiServer{panics: true}
	var log logtest.Buffer
	acc := access(t, kubeauth.AccessConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, a)
	allowed, err := acc.Authorize(t.Context(), &authenticationv1.UserInfo{Username: "u"}, right("metrics"))
	require.ErrorContains(t, err, "review access: review by the API server: panic: of a reviewer")
	assert.False(t, allowed)
	assert.Contains(t, log.String(), "panic recovered")
	a.panics = false
	allowed, err = acc.Authorize(t.Context(), &authenticationv1.UserInfo{Username: "u"}, right("metrics"))
	require.NoError(t, err)
	assert.True(t, allowed)
}

func TestNew_RejectsInvalidConfigs(t *testing.T) {
	_, err := kubeauth.NewTokens(kubeauth.TokensConfig{})
	require.ErrorContains(t, err, "Reviews required")
	_, err = kubeauth.NewAccess(kubeauth.AccessConfig{})
	require.ErrorContains(t, err, "Reviews required")
	for _, cfg := range []kubeauth.TokensConfig{{TTL: -1}, {Timeout: -1}, {MaxEntries: -1}} {
		cfg.Reviews = tokenReviews{}
		_, err = kubeauth.NewTokens(cfg)
		require.ErrorContains(t, err, "negative")
	}
	for _, cfg := range []kubeauth.AccessConfig{{AllowedTTL: -1}, {DeniedTTL: -1}, {Timeout: -1}, {MaxEntries: -1}} {
		cfg.Reviews = accessReviews{}
		_, err = kubeauth.NewAccess(cfg)
		require.ErrorContains(t, err, "negative")
	}
}

func ExampleNewAccess() {
	access, err := kubeauth.NewAccess(kubeauth.AccessConfig{Reviews: accessReviews{&apiServer{}}})
	if err != nil {
		panic(err)
	}
	allowed, err := access.Authorize(context.Background(), &authenticationv1.UserInfo{Username: "prometheus"}, right("metrics"))
	fmt.Println(allowed, err)
	// Output: true <nil>
}
