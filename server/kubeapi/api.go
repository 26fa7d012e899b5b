package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/loglimit"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/stats"
)

// Operator changes running pods. *podops.Operator is one.
type Operator interface {
	// RestartPod terminates a pod and has it started again. It blocks until then.
	RestartPod(ctx context.Context, pod *corev1.Pod) error
}

// Config describes an API. NodeName and Pods are required; what a nil field would
// provide is not served.
type Config struct {
	NodeName string
	// Pods returns the pods of the node with their statuses, read-only. Agent.Pods is one
	Pods func() []*corev1.Pod
	// Watch yields an event after each change of a pod, until ctx is done. Agent.Watch is
	// one. Default: watchers of pods learn of changes every second
	Watch func(ctx context.Context) iter.Seq[podwatch.Event]
	// Operator restarts static pods that are deleted. Default: they cannot be deleted
	Operator Operator
	// Node returns the Node object, read-only; with an error, what is known of it. ctx ends after 10 seconds
	Node func(ctx context.Context) (*corev1.Node, error)
	// Objects returns the ConfigMaps of the node. Others are left out
	Objects func() []podspec.Object
	// Stats returns the usage of the node and its pods, for kubectl top. Agent.CPUAndMemoryStats is one
	Stats func(ctx context.Context) (stats.Summary, error)
	// Events are those that were recorded
	Events *Events
	// Store is the source of the pods that clients may create and change. The agent must use
	// it as a source and as a status sink. Default: pods are read-only
	Store *Store
	// Logger has the restarts and the authorizations that failed. Default: discard
	Logger *slog.Logger
}

// API is a server.KubeAPI.
type API struct {
	cfg       Config
	versions  *versions
	resources []*resource
	pods      podView
	node      *collection
	spaces    *collection
	maps      *collection
	lease     *collection
	restarts  chan *corev1.Pod
	openAPI   func() map[string][]byte // documents by path
	started   time.Time
	created   atomic.Pointer[metav1.Time] // see startedAt
	undecided loglimit.Limit              // requests that could not be authorized
}

var _ server.KubeAPI = (*API)(nil)

// New returns an API. It does no I/O.
func New(cfg Config) (*API, error) {
	if cfg.NodeName == "" || cfg.Pods == nil {
		return nil, errors.New("kubeapi: Config.NodeName and Pods required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	v := newVersions()
	a := &API{
		cfg: cfg, versions: v, node: newCollection(v), spaces: newCollection(v), maps: newCollection(v), lease: newCollection(v),
		pods: podView{collection: newCollection(v), refreshing: newRefresher(), restarts: map[types.UID]*restart{}}, restarts: make(chan *corev1.Pod), started: time.Now(),
	}
	a.openAPI = sync.OnceValue(a.buildOpenAPIs)
	if cfg.Events != nil {
		cfg.Events.collection.adopt(v)
	}
	if cfg.Store != nil {
		cfg.Store.nodeName = cfg.NodeName
	}
	a.resources = a.allResources()
	return a, nil
}

// refreshPeriod is how often what watchers see is compared with the node. Changes of pods
// are seen earlier, by Config.Watch.
const refreshPeriod = time.Second

// minRefreshInterval bounds what many changes of pods cost.
const minRefreshInterval = 50 * time.Millisecond

// Run informs watchers and restarts pods until ctx is done. Before, deletions of static
// pods fail. It is called once.
func (a *API) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	changed := make(chan struct{}, 1)
	if a.cfg.Watch != nil {
		wg.Go(func() {
			safe.Do(a.cfg.Logger, "Watch", func() {
				for range a.cfg.Watch(ctx) {
					notify.Send(changed)
				}
			})
		})
	}
	due := make([]chan struct{}, len(a.resources))
	for i, res := range a.resources {
		due[i] = make(chan struct{}, 1)
		wg.Go(func() { a.keepFresh(ctx, res, due[i]) })
	}
	tick := time.NewTicker(refreshPeriod)
	defer tick.Stop()
	pause := time.NewTicker(minRefreshInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case pod := <-a.restarts:
			wg.Go(func() { a.restart(ctx, pod) })
			continue
		case <-changed:
			a.refreshLater(due, a.isOfPods)
		case <-a.stored():
			a.refreshLater(due, a.isOfPods)
		case <-tick.C:
			a.refreshLater(due, func(*resource) bool { return true })
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// refreshLater has keepFresh update some of the resources.
func (a *API) refreshLater(due []chan struct{}, isMeant func(*resource) bool) {
	for i, res := range a.resources {
		if isMeant(res) {
			notify.Send(due[i])
		}
	}
}

// isOfPods reports whether a resource follows from the pods. Others are not updated at each change of a pod: for the
// node, the runtime lists its images.
func (a *API) isOfPods(res *resource) bool {
	return res.collection == a.pods.collection || res.collection == a.spaces
}

// stored has a value when the Store has changed.
func (a *API) stored() <-chan struct{} {
	if a.cfg.Store == nil {
		return nil
	}
	return a.cfg.Store.changed
}

// keepFresh updates a resource that is watched, each time that it is due. The node may wait for the
// runtime, and what happens to pods is not to wait for the node.
func (a *API) keepFresh(ctx context.Context, res *resource, due <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
		}
		if res.collection == nil || !res.collection.isWatched() {
			continue
		}
		if err := safe.Call(a.cfg.Logger, "refresh of "+res.name, func() error { return res.refresh(ctx) }); err != nil {
			a.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "refreshing objects failed", slog.String("resource", res.name), logattr.Err(err))
		}
	}
}

// ServeKube implements server.KubeAPI.
func (a *API) ServeKube(w http.ResponseWriter, r *server.KubeRequest) {
	req := newRequest(r, w)
	err := a.serve(req)
	if err != nil {
		req.fail(err)
	}
}

func (a *API) serve(r *request) error {
	switch {
	case r.User == nil:
		return errUnauthorized()
	case r.impersonates():
		return errForbidden("impersonation is not supported")
	}
	path, isResource := parsePath(r.URL.Path)
	review := a.review(r, path)
	if isAnonymous(r.User) && (!isResource || review != nil) {
		return errForbidden("user %q cannot use path %q, which is for authenticated users", r.User.Username, r.URL.Path)
	}
	if err := r.checkTimeout(path); err != nil {
		return err
	}
	if handled, err := a.serveDiscovery(r); handled {
		return err
	}
	switch {
	case !isResource:
		return errNoPath()
	case review != nil:
		return review()
	}
	res := a.find(path)
	r.path, r.resource = path, res
	if res == nil {
		return errNoPath()
	}
	verb, err := r.verb()
	if err != nil {
		return err
	}
	if err := a.authorize(r, verb); err != nil {
		return err
	}
	return a.serveResource(r, verb)
}

// serveResource responds to an authorized request.
func (a *API) serveResource(r *request, verb string) error {
	if r.path.subresource != "" {
		return a.serveSubresource(r, verb)
	}
	if r.resource.name == "secrets" {
		return errForbidden("secrets are not served by a node alone")
	}
	switch reads := map[string]func(*request) error{"get": a.get, "list": a.list, "watch": a.watch}; {
	case r.resource.collection == nil, reads[verb] != nil && !slices.Contains(r.resource.verbs, verb):
		return errMethod()
	case reads[verb] != nil:
		return reads[verb](r)
	}
	if r.resource.name != "pods" || r.resource.group != "" {
		return errReadOnly(r, verb)
	}
	switch verb {
	case "create":
		return a.create(r)
	case "update":
		return a.update(r, "")
	case "patch":
		return a.patch(r, "")
	case "delete":
		return a.delete(r)
	case "deletecollection":
		return a.deleteAll(r)
	}
	return fmt.Errorf("verb %q is not known", verb)
}
