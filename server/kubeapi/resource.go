package kubeapi

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// resource is a kind of objects that is served.
type resource struct {
	group, version, name, singular, kind string
	shortNames                           []string
	categories                           []string
	namespaced                           bool
	verbs                                []string
	subresources                         []subresource
	collection                           *collection                     // nil: only its own handler serves it
	refresh                              func(ctx context.Context) error // updates the collection
	fields                               func(o object) fields.Set       // that selectors may name
	table                                table
}

// subresource is a part of a resource with a path of its own.
type subresource struct {
	name, kind string
	verbs      []string
}

func (r *resource) gvk() metav1.GroupVersionKind {
	return metav1.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind}
}

// apiVersion is that of the objects.
func (r *resource) apiVersion() string {
	return metav1.GroupVersion{Group: r.group, Version: r.version}.String()
}

// noRefresh is for a collection that is always up to date.
func noRefresh(context.Context) error { return nil }

// allResources returns what is served with this configuration.
func (a *API) allResources() []*resource {
	read := []string{"get", "list", "watch"}
	all := []*resource{a.podResource()}
	all = append(all, &resource{
		version: "v1", name: "namespaces", singular: "namespace", kind: "Namespace", shortNames: []string{"ns"}, verbs: read,
		collection: a.spaces, refresh: shared(a.refreshNamespaces), fields: namespaceFields, table: namespaceTable(),
	})
	if a.cfg.Node != nil {
		all = append(all, &resource{
			version: "v1", name: "nodes", singular: "node", kind: "Node", shortNames: []string{"no"}, verbs: read,
			subresources: []subresource{{proxy, "NodeProxyOptions", []string{"create", "get"}}},
			collection:   a.node, refresh: shared(a.refreshNode), fields: nodeFields, table: nodeTable(),
		}, a.leaseResource())
	}
	if a.cfg.Events != nil {
		all = append(all, &resource{
			version: "v1", name: "events", singular: "event", kind: "Event", shortNames: []string{"ev"}, namespaced: true, verbs: read,
			collection: a.cfg.Events.collection, refresh: noRefresh, fields: eventFields, table: eventTable(),
		})
	}
	if a.cfg.Objects != nil {
		all = append(all, &resource{
			version: "v1", name: "configmaps", singular: "configmap", kind: "ConfigMap", shortNames: []string{"cm"}, namespaced: true, verbs: read,
			collection: a.maps, refresh: shared(a.refreshConfigMaps), fields: namespacedFields, table: configMapTable(),
		})
	}
	// There are no Services. kubectl cluster-info and dashboards list them, and fail if they are unknown.
	all = append(all, &resource{
		version: "v1", name: "services", singular: "service", kind: "Service", shortNames: []string{"svc"}, namespaced: true, verbs: read,
		collection: newCollection(a.versions), refresh: noRefresh, fields: namespacedFields, table: serviceTable(),
	})
	// Discovery has Secrets so that kubectl gets the reason why there are none.
	all = append(all, &resource{version: "v1", name: "secrets", singular: "secret", kind: "Secret", namespaced: true, verbs: []string{}})
	all = append(all, a.metricsResources()...)
	return append(all, reviewResources()...)
}

// shared returns an update of which requests that come at once share one: that of a node is work for the runtime.
func shared(refresh func(context.Context) error) func(context.Context) error {
	refreshing := newRefresher()
	return func(ctx context.Context) error {
		return refreshing.do(ctx, func() error { return refresh(ctx) })
	}
}

// podResource returns that of pods, with what the configuration allows.
func (a *API) podResource() *resource {
	res := &resource{
		version: "v1", name: "pods", singular: "pod", kind: "Pod", shortNames: []string{"po"}, categories: []string{"all"}, namespaced: true,
		verbs: []string{"get", "list", "watch"}, collection: a.pods.collection, refresh: a.refreshPods, fields: podFields, table: podTable(),
		subresources: []subresource{
			{"attach", "PodAttachOptions", []string{"create", "get"}},
			{"exec", "PodExecOptions", []string{"create", "get"}},
			{"log", "Pod", []string{"get"}},
			{"portforward", "PodPortForwardOptions", []string{"create", "get"}},
			{"status", "Pod", []string{"get"}},
		},
	}
	if a.cfg.Operator != nil || a.cfg.Store != nil {
		res.verbs = append(res.verbs, "delete", "deletecollection")
	}
	if a.cfg.Store != nil {
		res.verbs = append(res.verbs, "create", "update", "patch")
		for _, name := range []string{"ephemeralcontainers", "resize"} {
			res.subresources = append(res.subresources, subresource{name, "Pod", []string{"get", "patch", "update"}})
		}
	}
	slices.Sort(res.verbs)
	slices.SortFunc(res.subresources, func(a, b subresource) int { return compare(a.name, b.name) })
	return res
}

// find returns the resource of a path, or nil.
func (a *API) find(p path) *resource {
	for _, res := range a.resources {
		if res.group != p.group || res.version != p.version || res.name != p.resource {
			continue
		}
		if p.isOldWatch && p.subresource != "" || !res.namespaced && p.namespace != "" || res.namespaced && p.name != "" && p.namespace == "" {
			return nil
		}
		if p.subresource == "" || slices.ContainsFunc(res.subresources, func(s subresource) bool { return s.name == p.subresource }) {
			return res
		}
	}
	return nil
}

// maxSkew is how far a start time may be off, so that a clock that is slewed changes no object.
const maxSkew = time.Minute

// startedAt returns when this process has started, which is the age of what has no other. It is by the clock of now:
// that of a board that starts in 1970 is set later.
func (a *API) startedAt() metav1.Time {
	at := time.Now().Add(-time.Since(a.started)).Truncate(seconds)
	if known := a.created.Load(); known != nil && at.Sub(known.Time).Abs() < maxSkew {
		return *known
	}
	a.created.Store(&metav1.Time{Time: at})
	return metav1.Time{Time: at}
}

// refreshNamespaces derives the namespaces from the objects that are in them.
func (a *API) refreshNamespaces(ctx context.Context) error {
	names := map[string]bool{corev1.NamespaceDefault: true, metav1.NamespaceSystem: true}
	for _, res := range a.resources {
		if !res.namespaced || res.collection == nil || res.group == metricsGroup {
			continue // metrics have to be measured, and are in the namespaces of the pods
		}
		if err := res.refresh(ctx); err != nil {
			return err
		}
		objects, _, _ := res.collection.list()
		for _, o := range objects {
			names[o.GetNamespace()] = true
		}
	}
	var all []object
	for name := range names {
		all = append(all, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: derivedUID("namespace", name), CreationTimestamp: a.startedAt(), Labels: map[string]string{corev1.LabelMetadataName: name}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		})
	}
	a.spaces.replace(all)
	return nil
}

// nodeTimeout is less than the time that a server has for a response. A node whose runtime hangs is
// shown without what only the runtime knows.
const nodeTimeout = 10 * time.Second

// refreshNode gets the Node object.
func (a *API) refreshNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	n, err := a.cfg.Node(ctx)
	if err != nil && n == nil {
		return err
	}
	n = n.DeepCopy()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	n.Name = a.cfg.NodeName
	if n.UID == "" {
		n.UID = derivedUID("node", n.Name)
	}
	if n.Status.NodeInfo.KubeletVersion == "" {
		n.Status.NodeInfo.KubeletVersion = kubernetesVersion
	}
	if n.CreationTimestamp.IsZero() {
		n.CreationTimestamp = a.startedAt()
	}
	if shown, ok := a.node.get("", n.Name).(*corev1.Node); ok && isSameNode(n, shown) {
		return nil
	}
	a.node.replace([]object{n})
	return nil
}

// nodeReportPeriod is how old heartbeats get before clients see newer ones of a node that has not changed: the
// kubelet's. Each would be a change for those who watch it.
const nodeReportPeriod = 5 * time.Minute

// isSameNode reports whether nothing but heartbeats differs from what clients see, and these not by much.
func isSameNode(n, shown *corev1.Node) bool {
	same := n.DeepCopy()
	same.ResourceVersion = shown.ResourceVersion
	for i := range same.Status.Conditions {
		c := &same.Status.Conditions[i]
		for j := range shown.Status.Conditions {
			s := &shown.Status.Conditions[j]
			if since := c.LastHeartbeatTime.Sub(s.LastHeartbeatTime.Time); s.Type == c.Type && since >= 0 && since < nodeReportPeriod {
				c.LastHeartbeatTime = s.LastHeartbeatTime
			}
		}
	}
	return equality.Semantic.DeepEqual(same, shown)
}

// refreshConfigMaps gets the ConfigMaps.
func (a *API) refreshConfigMaps(context.Context) error {
	var all []object
	for _, o := range a.cfg.Objects() {
		if cm := asConfigMap(o); cm != nil {
			cm.CreationTimestamp = a.startedAt()
			all = append(all, cm)
		}
	}
	a.maps.replace(all)
	return nil
}
