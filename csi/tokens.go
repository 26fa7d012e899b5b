package csi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// tokensKey is where a driver finds the tokens of a pod's service account.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens" //nolint:gosec // no credential

// token is a token as drivers expect it.
type token struct {
	Token      string    `json:"token"`
	Expiration time.Time `json:"expirationTimestamp"`
}

// tokenSource is the part of podspec.Projections that is needed here.
type tokenSource interface {
	ServiceAccountToken(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error)
}

// tokens returns the tokens that the CSIDriver requests, by audience.
func (o *operation) tokens(ctx context.Context) (map[string]token, error) {
	server, ok := o.v.Objects.(tokenSource)
	if !ok {
		return nil, fmt.Errorf("CSI driver %s wants tokens of service accounts, which need an API server", o.id.driver)
	}
	all := map[string]token{}
	for _, r := range o.driver.Spec.TokenRequests {
		text, err := server.ServiceAccountToken(ctx, o.v.Pod, &corev1.ServiceAccountTokenProjection{Audience: r.Audience, ExpirationSeconds: r.ExpirationSeconds})
		if err != nil {
			return nil, fmt.Errorf("token for CSI driver %s: %w", o.id.driver, err)
		}
		expiration, err := expirationOf(string(text))
		if err != nil {
			return nil, fmt.Errorf("token for CSI driver %s: %w", o.id.driver, err)
		}
		all[r.Audience] = token{string(text), expiration}
	}
	return all, nil
}

// expirationOf reads when a JWT expires. The error does not contain the token.
func expirationOf(jwt string) (time.Time, error) {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return time.Time{}, errors.New("is not a JWT")
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(data, &claims) != nil {
		return time.Time{}, errors.New("is not a JWT")
	}
	return time.Unix(claims.Expires, 0).UTC(), nil
}
