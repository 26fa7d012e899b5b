package kubeapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/server"
)

// AllowAll returns an Authorizer that lets each authenticated user do everything: the owner
// of a node alone has the only credentials.
func AllowAll() server.Authorizer {
	return server.AuthorizerFunc(func(_ context.Context, user *authenticationv1.UserInfo, _ *authorizationv1.ResourceAttributes) (bool, error) {
		return !isAnonymous(user), nil
	})
}

// isAnonymous reports whether a client is not authenticated: see server.Config.Anonymous.
func isAnonymous(user *authenticationv1.UserInfo) bool {
	return user == nil || slices.Contains(user.Groups, "system:unauthenticated")
}

// authorize returns an error if the user has no right to the verb.
func (a *API) authorize(r *request, verb string) error {
	attributes := authorizationv1.ResourceAttributes{
		Verb: verb, Group: r.path.group, Version: r.path.version, Namespace: r.path.namespace,
		Resource: r.path.resource, Subresource: r.path.subresource, Name: r.path.name,
	}
	if r.resource != nil && r.resource.name == "namespaces" {
		attributes.Namespace = r.path.name
	}
	if attributes.Name == "" && (verb == "list" || verb == "watch") {
		attributes.Name = r.selectedName()
	}
	allowed, err := a.may(r, &attributes)
	if err != nil {
		return apierrors.NewInternalError(errAuthorization)
	}
	if !allowed {
		return errNotAllowed(r.User, &attributes)
	}
	return nil
}

// may reports whether the user has a right. An error denies, and is logged: clients do not get it.
func (a *API) may(r *request, attributes *authorizationv1.ResourceAttributes) (bool, error) {
	if r.Authorizer == nil {
		return true, nil
	}
	allowed, err := r.Authorizer.Authorize(r.Context(), r.User, attributes)
	if err != nil {
		a.undecided.Log(r.Context(), a.cfg.Logger, slog.LevelWarn, "authorization failed", slog.String("user", r.User.Username), slog.String("verb", attributes.Verb),
			slog.String("resource", attributes.Resource), logattr.Err(err))
	}
	return allowed, err
}

// The reviews by which a user asks about himself, as each authenticated user may.
const (
	accessReviews = "selfsubjectaccessreviews"
	rulesReviews  = "selfsubjectrulesreviews"
	userReviews   = "selfsubjectreviews"
)

// reviewResources returns them as resources, for discovery.
func reviewResources() []*resource {
	review := func(group, name, kind string) *resource {
		return &resource{group: group, version: "v1", name: name, singular: name[:len(name)-1], kind: kind, verbs: []string{"create"}}
	}
	return []*resource{
		review(authorizationv1.GroupName, accessReviews, "SelfSubjectAccessReview"),
		review(authorizationv1.GroupName, rulesReviews, "SelfSubjectRulesReview"),
		review(authenticationv1.GroupName, userReviews, "SelfSubjectReview"),
	}
}

// review returns the handler of a review, or nil for other requests.
func (a *API) review(r *request, p path) func() error {
	if r.Method != http.MethodPost || p.version != "v1" || p.name != "" || p.namespace != "" {
		return nil
	}
	switch p.group + "/" + p.resource {
	case authorizationv1.GroupName + "/" + accessReviews:
		return func() error { return a.reviewAccess(r) }
	case authorizationv1.GroupName + "/" + rulesReviews:
		return func() error { return a.reviewRules(r) }
	case authenticationv1.GroupName + "/" + userReviews:
		return r.reviewUser
	}
	return nil
}

// maxReview bounds the body of a review, which takes no right: it has a few names.
const maxReview = 64 << 10

// decodeReview decodes the body into a review.
func (r *request) decodeReview(to message, apiVersion, kind string) error {
	r.Body = http.MaxBytesReader(r.w, r.Body, maxReview)
	b, err := r.body(to)
	if err != nil {
		return err
	}
	if err := r.checkKind(b, apiVersion, kind); err != nil {
		return err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return apierrors.NewBadRequest("decode the review: " + err.Error())
	}
	return nil
}

// reviewUser says who the user is.
func (r *request) reviewUser() error {
	var review authenticationv1.SelfSubjectReview
	if err := r.decodeReview(&review, "authentication.k8s.io/v1", "SelfSubjectReview"); err != nil {
		return err
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}
	review.Status = authenticationv1.SelfSubjectReviewStatus{UserInfo: *r.User}
	return r.respond(http.StatusCreated, review)
}

// reviewAccess says whether the user has a right.
func (a *API) reviewAccess(r *request) error {
	var review authorizationv1.SelfSubjectAccessReview
	if err := r.decodeReview(&review, "authorization.k8s.io/v1", "SelfSubjectAccessReview"); err != nil {
		return err
	}
	spec := review.Spec
	switch {
	case (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil):
		return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName}, "", field.ErrorList{
			field.Invalid(field.NewPath("spec"), field.OmitValueType{}, "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
		})
	case spec.NonResourceAttributes != nil:
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: spec.NonResourceAttributes.Verb == "get", Reason: "each authenticated user may read discovery, versions and OpenAPI"}
	default:
		allowed, err := a.may(r, spec.ResourceAttributes)
		review.Status.Allowed = allowed && err == nil
		if err != nil {
			review.Status.EvaluationError = errAuthorization.Error()
		}
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
	return r.respond(http.StatusCreated, review)
}

// reviewRules lists the rights to what is served.
func (a *API) reviewRules(r *request) error {
	var review authorizationv1.SelfSubjectRulesReview
	if err := r.decodeReview(&review, "authorization.k8s.io/v1", "SelfSubjectRulesReview"); err != nil {
		return err
	}
	if review.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectRulesReview"}
	review.Status = authorizationv1.SubjectRulesReviewStatus{ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version"}},
	}}
	for _, res := range a.resources {
		if res.collection == nil {
			continue
		}
		a.addRule(r, &review, res, "", res.verbs)
		for _, sub := range res.subresources {
			a.addRule(r, &review, res, sub.name, sub.verbs)
		}
	}
	return r.respond(http.StatusCreated, review)
}

// addRule adds the verbs that the user may use on a resource.
func (a *API) addRule(r *request, review *authorizationv1.SelfSubjectRulesReview, res *resource, subresource string, verbs []string) {
	rule := authorizationv1.ResourceRule{APIGroups: []string{res.group}, Resources: []string{res.name}}
	if subresource != "" {
		rule.Resources[0] += "/" + subresource
	}
	for _, verb := range verbs {
		attributes := authorizationv1.ResourceAttributes{Verb: verb, Group: res.group, Version: res.version, Resource: res.name, Subresource: subresource}
		if res.namespaced {
			attributes.Namespace = review.Spec.Namespace
		}
		allowed, err := a.may(r, &attributes)
		if err != nil {
			review.Status.Incomplete, review.Status.EvaluationError = true, errAuthorization.Error()
		}
		if allowed && err == nil {
			rule.Verbs = append(rule.Verbs, verb)
		}
	}
	if len(rule.Verbs) > 0 {
		review.Status.ResourceRules = append(review.Status.ResourceRules, rule)
	}
}
