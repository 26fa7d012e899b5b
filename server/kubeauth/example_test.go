package kubeauth_test

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/server/kubeauth"
)

// reviews stand for clientset.AuthorizationV1().SubjectAccessReviews().
type reviews struct{}

func (reviews) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	fmt.Println("asked about", r.Spec.User, r.Spec.ResourceAttributes.Subresource)
	r.Status.Allowed = r.Spec.User == "prometheus"
	return r, nil
}

// An Access is the Authorizer of a server.Config. It asks the API server once.
func ExampleAccess() {
	access, err := kubeauth.NewAccess(kubeauth.AccessConfig{Reviews: reviews{}})
	if err != nil {
		panic(err)
	}
	for range 2 {
		allowed, err := access.Authorize(context.Background(), &authenticationv1.UserInfo{Username: "prometheus"},
			&authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "metrics", Name: "node-1"})
		fmt.Println(allowed, err)
	}
	// Output:
	// asked about prometheus metrics
	// true <nil>
	// true <nil>
}
