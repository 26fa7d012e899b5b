package kube

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
)

func TestToken_NeedsRenewal(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		issuedAt      time.Time
		want, expired bool
	}{
		"new":                             {now.Add(-47 * time.Minute), false, false},
		"old":                             {now.Add(-49 * time.Minute), true, false},
		"the machine was suspended":       {clocktest.BeforeSetBack(t, now.Add(-time.Minute), -2*time.Hour), true, true},
		"the clock was set back":          {clocktest.BeforeSetBack(t, now.Add(-49*time.Minute), 2*time.Hour), true, false},
		"new, and the clock was set back": {clocktest.BeforeSetBack(t, now, 2*time.Hour), false, false},
		"of an unknown age":               {time.Time{}, true, true},
	} {
		token := token{IssuedAt: tc.issuedAt, Life: time.Hour}
		assert.Equal(t, tc.want, token.needsRenewal(now), name)
		assert.Equal(t, tc.expired, token.age(now) > token.Life, name)
	}
}

// A node without a clock of its own may have been ahead when the token was issued.
func TestTokens_OfTheFutureAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, server, get := startTokens(t, t.TempDir(), 3600)
		key := tokenKey{uid: "uid", audience: "vault", seconds: 3600}
		require.NoError(t, b.objects.tokens.disk.write(key.file(), &token{Token: []byte("stored"), IssuedAt: time.Now().Add(time.Hour), Life: time.Hour}))
		server.err = errors.New("connection refused")
		assert.Equal(t, "stored", get(), "there is no other")
		server.err = nil
		b.wait(11 * time.Second)
		assert.Equal(t, secretText+"+", get())
	})
}

// A pod keeps a token that is valid, whatever the server says about the next one.
func TestTokens_DeniedRenewal(t *testing.T) {
	for name, denied := range map[string]error{
		"forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "sa", nil),
		"not found": apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "sa"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, server, get := startTokens(t, "", 3600)
				first := get()
				b.wait(50 * time.Minute)
				server.err = denied
				assert.Equal(t, first, get())
				b.wait(11 * time.Minute)
				seconds := int64(3600)
				_, err := b.objects.ServiceAccountToken(t.Context(), podOf(), &corev1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: &seconds})
				require.ErrorIs(t, err, denied, "it has expired")
				server.err = nil
				assert.NotEqual(t, first, get())
			})
		})
	}
}

// A service account that was deleted and created under the same name is another one.
func TestTokens_OfOneServiceAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, server, _ := startTokens(t, t.TempDir(), 3600)
		get := func(account types.UID) (string, error) {
			got, err := b.objects.ServiceAccountTokenOf(t.Context(), podOf(), account, &corev1.ServiceAccountTokenProjection{Audience: "registry"})
			return string(got), err
		}
		server.account = "old"
		first, err := get("old")
		require.NoError(t, err)
		server.account = "new"
		second, err := get("new")
		require.NoError(t, err)
		assert.NotEqual(t, first, second)
		_, err = get("other")
		require.True(t, apierrors.IsConflict(err), err)
		b.wait(61 * time.Minute)
		_, err = get("old")
		require.True(t, apierrors.IsConflict(err), "it has expired")
	})
}
