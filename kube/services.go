package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// syncedStore is a store of a reflector that tells when it is complete.
type syncedStore struct {
	cache.Store
	once    sync.Once
	synced  chan struct{}
	changed atomic.Bool
}

func newSyncedStore(synced chan struct{}) *syncedStore {
	return &syncedStore{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), synced: synced}
}

// Add implements cache.ReflectorStore, as the methods below.
func (s *syncedStore) Add(obj any) error { s.changed.Store(true); return s.Store.Add(obj) }

// Update changes an object.
func (s *syncedStore) Update(obj any) error { s.changed.Store(true); return s.Store.Update(obj) }

// Delete deletes an object.
func (s *syncedStore) Delete(obj any) error { s.changed.Store(true); return s.Store.Delete(obj) }

// Replace replaces all objects; they are complete then.
func (s *syncedStore) Replace(list []any, version string) error {
	err := s.Store.Replace(list, version)
	s.changed.Store(true)
	s.once.Do(func() { close(s.synced) })
	return err
}

// serviceLink is what the variables of a service need of it.
type serviceLink struct {
	Namespace, Name, IP string
	Ports               []servicePort
}

type servicePort struct {
	Name, Protocol string
	Port           int32
}

// services follows all services that have an address.
type services struct {
	k       *Kube
	disk    objectDir
	running chan struct{}
	synced  chan struct{}
	store   atomic.Pointer[syncedStore]
	// Of save alone.
	retryAt time.Time     // the first write after one that failed
	saved   []serviceLink // what was written last
}

func (s *services) run(ctx context.Context) {
	store := newSyncedStore(s.synced)
	s.store.Store(store)
	newFollower(s.k, s.k.cfg.Client.CoreV1().Services(corev1.NamespaceAll), &corev1.Service{}, "", store, nil).run(ctx)
}

// links returns the services, sorted.
func (s *services) links() []serviceLink {
	store := s.store.Load()
	if store == nil {
		return nil
	}
	var links []serviceLink
	for _, obj := range store.List() {
		service, ok := obj.(*corev1.Service)
		if !ok || service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone || len(service.Spec.Ports) == 0 {
			continue
		}
		link := serviceLink{Namespace: service.Namespace, Name: service.Name, IP: service.Spec.ClusterIP}
		for _, p := range service.Spec.Ports {
			link.Ports = append(link.Ports, servicePort{Name: p.Name, Protocol: cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)), Port: p.Port})
		}
		links = append(links, link)
	}
	slices.SortFunc(links, func(a, b serviceLink) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return links
}

// save writes the services to disk if they have changed. One goroutine may call it.
func (s *services) save(now time.Time) {
	store := s.store.Load()
	if store == nil || now.Before(s.retryAt) || !store.changed.Swap(false) {
		return
	}
	links := s.links()
	if s.saved != nil && reflect.DeepEqual(links, s.saved) { // something else of a service has changed
		return
	}
	if err := s.disk.write(servicesFile, links); err != nil {
		store.changed.Store(true)
		s.retryAt = now.Add(retryPeriod)
		s.k.cfg.Logger.Warn("services not kept on disk", logattr.Err(err))
		return
	}
	s.saved = links
}

// known returns the services once they are known, or those on disk while the API server
// does not answer.
func (s *services) known(ctx context.Context) ([]serviceLink, error) {
	var stored []serviceLink
	timeout, isStored := objectTimeout, s.disk.read(servicesFile, &stored)
	if isStored {
		timeout = s.k.answerTimeout()
	}
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-s.synced:
		return s.links(), nil
	case <-wait.Done():
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case isStored:
		s.k.noteUnanswered(timeout)
		return stored, nil
	}
	return nil, fmt.Errorf("list services: %w", errNoAnswer)
}

// masterService is the service of the API server, for all pods.
const masterService = "kubernetes"

// ServiceEnv implements podspec.Services: the variables of the services in the pod's
// namespace, unless enableServiceLinks is false, and those of the API server. Static pods
// do not wait for services.
func (o *Objects) ServiceEnv(ctx context.Context, pod *corev1.Pod) ([]corev1.EnvVar, error) {
	if podspec.IsStatic(pod) {
		select {
		case <-o.services.synced:
		default:
			return nil, nil
		}
	}
	links, err := o.services.known(ctx)
	if err != nil {
		return nil, err
	}
	wantsLinks := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	var vars []corev1.EnvVar
	hasOwnMaster := false // it replaces that of all pods, with its variables
	for _, l := range links {
		if wantsLinks && l.Namespace == pod.Namespace {
			vars = append(vars, l.variables()...)
			hasOwnMaster = hasOwnMaster || l.Name == masterService
		}
	}
	for _, l := range links {
		if l.Namespace == corev1.NamespaceDefault && l.Name == masterService && !hasOwnMaster {
			vars = append(vars, l.variables()...)
		}
	}
	return vars, nil
}

// variables returns the variables of a service under the names that a kubelet gives them.
func (l serviceLink) variables() []corev1.EnvVar {
	prefix := variableName(l.Name)
	vars := []corev1.EnvVar{
		{Name: prefix + "_SERVICE_HOST", Value: l.IP},
		{Name: prefix + "_SERVICE_PORT", Value: strconv.Itoa(int(l.Ports[0].Port))},
	}
	for _, p := range l.Ports {
		if p.Name != "" {
			vars = append(vars, corev1.EnvVar{Name: prefix + "_SERVICE_PORT_" + variableName(p.Name), Value: strconv.Itoa(int(p.Port))})
		}
	}
	for i, p := range l.Ports {
		port, protocol := strconv.Itoa(int(p.Port)), strings.ToLower(p.Protocol)
		url := protocol + "://" + net.JoinHostPort(l.IP, port)
		if i == 0 {
			vars = append(vars, corev1.EnvVar{Name: prefix + "_PORT", Value: url})
		}
		name := prefix + "_PORT_" + port + "_" + strings.ToUpper(p.Protocol)
		vars = append(vars, corev1.EnvVar{Name: name, Value: url}, corev1.EnvVar{Name: name + "_PROTO", Value: protocol},
			corev1.EnvVar{Name: name + "_PORT", Value: port}, corev1.EnvVar{Name: name + "_ADDR", Value: l.IP})
	}
	return vars
}

func variableName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
