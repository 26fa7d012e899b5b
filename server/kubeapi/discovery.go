package kubeapi

import (
	"net/http"
	"runtime"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// kubernetesVersion is that of the API whose behaviour this package has. kubectl warns if
// it differs from its own by more than one minor version.
const kubernetesVersion = "v1.37.0+sublet"

// serveDiscovery responds to what each authenticated user may ask: what there is.
func (a *API) serveDiscovery(r *request) (handled bool, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false, nil
	}
	p := strings.TrimSuffix(r.URL.Path, "/")
	respond := func(v any) (bool, error) { return true, r.respond(http.StatusOK, v) }
	switch p {
	case "/version":
		return respond(versionInfo())
	case "/api", "/apis":
		if wantsAggregated(r) {
			return true, a.respondAggregated(r, p == "/api")
		}
		if p == "/api" {
			return respond(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}})
		}
		return respond(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: a.groups()})
	case "/openapi/v3":
		return respond(a.openAPIPaths())
	}
	if document, ok := a.openAPI()[p]; ok {
		r.send(http.StatusOK, document)
		return true, nil
	}
	for _, gv := range a.groupVersions() {
		switch p {
		case gv.path():
			return respond(a.resourceList(gv))
		case "/apis/" + gv.group:
			group := gv.apiGroup()
			group.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}
			return respond(group)
		}
	}
	return false, nil
}

func versionInfo() version.Info {
	return version.Info{
		Major: "1", Minor: "37", GitVersion: kubernetesVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// groupVersion is a version of a group; the core group has no name.
type groupVersion struct{ group, version string }

func (gv groupVersion) path() string {
	if gv.group == "" {
		return "/api/" + gv.version
	}
	return "/apis/" + gv.group + "/" + gv.version
}

func (gv groupVersion) apiGroup() metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{GroupVersion: gv.group + "/" + gv.version, Version: gv.version}
	return metav1.APIGroup{Name: gv.group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
}

// groupVersions returns those of all resources. Each group has one version.
func (a *API) groupVersions() (all []groupVersion) {
	for _, res := range a.resources {
		if gv := (groupVersion{res.group, res.version}); !slices.Contains(all, gv) {
			all = append(all, gv)
		}
	}
	return all
}

// groups returns the groups with a name.
func (a *API) groups() []metav1.APIGroup {
	all := []metav1.APIGroup{}
	for _, gv := range a.groupVersions() {
		if gv.group != "" {
			all = append(all, gv.apiGroup())
		}
	}
	return all
}

// resourceList returns the resources of a version, with their subresources.
func (a *API) resourceList(gv groupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: strings.TrimPrefix(gv.group+"/"+gv.version, "/")}
	for _, res := range a.of(gv) {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: res.name, SingularName: res.singular, Namespaced: res.namespaced, Kind: res.kind, Verbs: res.verbs, ShortNames: res.shortNames, Categories: res.categories,
		})
		for _, sub := range res.subresources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: res.name + "/" + sub.name, Namespaced: res.namespaced, Kind: sub.kind, Verbs: sub.verbs})
		}
	}
	return list
}

func (a *API) of(gv groupVersion) (all []*resource) {
	for _, res := range a.resources {
		if gv == (groupVersion{res.group, res.version}) {
			all = append(all, res)
		}
	}
	return all
}

// aggregatedType is the media type of a discovery in one document.
const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func wantsAggregated(r *request) bool {
	return slices.ContainsFunc(r.accepts(), func(a accepted) bool {
		return a.mediaType == "application/json" && a.as == "APIGroupDiscoveryList" && a.group == "apidiscovery.k8s.io" && a.version == "v2"
	})
}

// respondAggregated responds with all groups, or with the core group.
func (a *API) respondAggregated(r *request, core bool) error {
	list := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}, Items: []apidiscovery.APIGroupDiscovery{}}
	for _, gv := range a.groupVersions() {
		if core != (gv.group == "") {
			continue
		}
		v := apidiscovery.APIVersionDiscovery{Version: gv.version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for _, res := range a.of(gv) {
			v.Resources = append(v.Resources, res.discovery())
		}
		list.Items = append(list.Items, apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.group}, Versions: []apidiscovery.APIVersionDiscovery{v}})
	}
	return r.respondAs(aggregatedType, http.StatusOK, list)
}

// discovery returns a resource for the aggregated discovery.
func (r *resource) discovery() apidiscovery.APIResourceDiscovery {
	kind := r.gvk()
	d := apidiscovery.APIResourceDiscovery{
		Resource: r.name, ResponseKind: &kind, Scope: apidiscovery.ScopeCluster, SingularResource: r.singular, Verbs: r.verbs, ShortNames: r.shortNames, Categories: r.categories,
	}
	if r.namespaced {
		d.Scope = apidiscovery.ScopeNamespace
	}
	for _, sub := range r.subresources {
		kind := metav1.GroupVersionKind{Group: r.group, Version: r.version, Kind: sub.kind}
		d.Subresources = append(d.Subresources, apidiscovery.APISubresourceDiscovery{Subresource: sub.name, ResponseKind: &kind, Verbs: sub.verbs})
	}
	return d
}
