package runtimetest

import (
	"encoding/base64"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func privateImageCases() []testCase {
	const needs = aPrivateImage | alone
	return []testCase{
		{"a private image is pulled with its credentials", "imagePullSecrets would be ignored", needs, func(c *CaseT) {
			right := &v1.AuthConfig{Username: c.s.credentials.GetUsername(), Password: c.s.credentials.GetPassword()}
			_, err := c.pullAs(right)
			c.ok(err, "pull of a private image with username and password")
			c.check(c.image(c.s.private) != nil, "the private image has no status after its pull")
			host, _, _ := strings.Cut(c.s.private, "/")
			right.ServerAddress = "https://" + host
			_, err = c.pullAs(right)
			c.ok(err, "pull of a private image with server_address, username and password")
			_, err = c.pullAs(&v1.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte(right.GetUsername() + ":" + right.GetPassword()))})
			c.ok(err, "pull of a private image with auth")
		}},
		{"a private image is not pulled without its credentials", "a pod could run the private images of another", needs, func(c *CaseT) {
			_, err := c.pullAs(nil)
			c.rejected(err, "pull of a private image without credentials")
			const wrong = "sublet-test-wrong"
			_, err = c.pullAs(&v1.AuthConfig{Username: c.s.credentials.GetUsername(), Password: wrong})
			c.rejected(err, "pull of a private image with a wrong password")
			c.check(err == nil || !strings.Contains(err.Error(), wrong), "the error of the pull has the password in it; kubelets show it in events")
			c.check(c.image(c.s.private) == nil, "the private image is there although no pull succeeded")
		}},
		{"credentials of one pull are not those of the next", "a pod could run the private images of another", needs, func(c *CaseT) {
			_, err := c.pullAs(c.s.credentials)
			c.ok(err, "pull of a private image with username and password")
			_, err = c.pullAs(nil)
			c.rejected(err, "pull of a private image without credentials after one with them")
		}},
	}
}

// pullAs removes the private image and pulls it with credentials.
func (c *CaseT) pullAs(auth *v1.AuthConfig) (string, error) {
	_, err := c.is.RemoveImage(c.ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: c.s.private}})
	c.ok(err, "remove the private image")
	cfg := c.podConfig("p") // which kubelets pass on: the image is for this pod
	r, err := c.is.PullImage(c.ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: c.s.private}, Auth: auth, SandboxConfig: cfg})
	return r.GetImageRef(), err
}
