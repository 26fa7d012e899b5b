package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/node"
)

// Version is the kubelet version that a Node reports: that of the Kubernetes API that
// this module is built with. Schedulers and clients compare it with theirs.
const Version = "v1.37.2+sublet"

// Default periods, as with a kubelet.
const (
	defaultStatusPeriod  = 10 * time.Second
	defaultReportPeriod  = 5 * time.Minute
	defaultLeaseDuration = 40 * time.Second
	conditionPeriod      = time.Second      // of looking for transitions, which are sent at once
	callTimeout          = 10 * time.Second // of one API call
	reporterTimeout      = 10 * time.Second // of finding out the status
	minNodeBackOff       = 100 * time.Millisecond
	maxNodeBackOff       = 7 * time.Second
)

// ErrNodeNameInUse is wrapped by the message of the condition Ready while another agent
// reports as the same node.
var ErrNodeNameInUse = errors.New("another agent renews the lease of this node; stop one of them or give it another node name")

// NodeReporter reports the status of the node. *node.Status is one.
type NodeReporter interface {
	// At returns the status. The error is about what is left out of it.
	At(ctx context.Context, now time.Time) (corev1.NodeStatus, error)
	// Conditions returns the conditions. It does no I/O.
	Conditions() []corev1.NodeCondition
}

// NodeConfig describes the Node object of this node.
type NodeConfig struct {
	Reporter NodeReporter // required by Node; NodeOptions has that of the agent as default
	// Labels besides those of name, system and architecture. They are set when the agent
	// starts and when the Node is registered; later changes by others are kept.
	// NodeRestriction reserves the domains kubernetes.io and k8s.io, with few exceptions.
	Labels      map[string]string
	Annotations map[string]string // as Labels
	// Taints are set when the Node is registered. The API server lets no node change them
	// later.
	Taints        []corev1.Taint
	ProviderID    string // set when the Node is registered
	Unschedulable bool   // registered as cordoned
	// ExternalCloudProvider leaves the addresses of the Node to the cloud controller manager of the cluster, as a kubelet with
	// --cloud-provider=external does: the Node keeps those that it has, and is registered with the taint on which that
	// manager initializes it. Kube.NodeAddresses has them. Default: the addresses are those of Reporter.
	ExternalCloudProvider bool
	// NodeIPs are those that the operator gives (--node-ip of a kubelet). With ExternalCloudProvider they are a hint for the
	// cloud, and the addresses of Reporter are those of the Node until the cloud gives others; without any, the Node has only
	// its host name until then.
	NodeIPs  []string
	Hostname string // of the label kubernetes.io/hostname. Default: the name of the node
	// NoRegistration leaves the creation of the Node to others.
	NoRegistration bool

	// VolumesInUse returns the volumes that must not be detached from the node, or nil if it does
	// not know: those of the Node stay then. It must not block. Default: those of Reporter.
	VolumesInUse func() []corev1.UniqueVolumeName
	// KnownVolumesInUse returns some of them while VolumesInUse does not know all: they are added to
	// those of the Node, so that new ones can be attached. It must not block. Default: none.
	KnownVolumesInUse func() []corev1.UniqueVolumeName

	// ResetExtendedResources reports whether the extended resources that the Node has from before, and the agent
	// does not report, are set to 0 when the agent starts: pods would be scheduled for devices of a machine that was
	// installed again, and whose device plugins have not registered. devices.Manager.IsNew says so. It must not block for
	// long. Default: they are kept, as those of an administrator.
	ResetExtendedResources func() bool

	// UpdatePodCIDRs passes the pod CIDRs that the cluster has given the Node to the runtime, as
	// runtime.PodCIDRUpdater does. Default: with NodeOptions that of the runtime, if it has one.
	UpdatePodCIDRs func(ctx context.Context, cidrs []string) error

	Version       string        // reported as the kubelet's. Default: Version
	StatusPeriod  time.Duration // of comparing the status. Default: 10 s
	ReportPeriod  time.Duration // of sending it without a change. Default: 5 min
	LeaseDuration time.Duration // the lease is renewed four times in it. Default: 40 s

	// Objects are those of the pods, for NodeOptions. Default: Objects in a directory beside
	// that of the pods.
	Objects *Objects
	// Recorder records events of the node. Default: none, for NodeOptions Kube.Events.
	Recorder interface{ Record(event *corev1.Event) }
}

func (c *NodeConfig) complete(name string) error {
	var errs []error
	if c.Reporter == nil {
		errs = append(errs, errors.New("kube: NodeConfig.Reporter: required"))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(c.Labels[key])...)
		for _, message := range bad {
			errs = append(errs, fmt.Errorf("kube: NodeConfig.Labels: invalid label %s=%q: %s", key, c.Labels[key], message))
		}
		if len(bad) == 0 && isReservedLabel(key) {
			errs = append(errs, fmt.Errorf("kube: NodeConfig.Labels: label %q is reserved by NodeRestriction; use another domain or node.kubernetes.io", key))
		}
	}
	for _, d := range []time.Duration{c.StatusPeriod, c.ReportPeriod, c.LeaseDuration} {
		if d < 0 || d > 0 && d < time.Second {
			errs = append(errs, fmt.Errorf("kube: NodeConfig: period %v must be at least 1s", d))
		}
	}
	setDefault(&c.StatusPeriod, defaultStatusPeriod)
	setDefault(&c.ReportPeriod, defaultReportPeriod)
	setDefault(&c.LeaseDuration, defaultLeaseDuration)
	setDefault(&c.Hostname, name)
	setDefault(&c.Version, Version)
	labels := map[string]string{
		corev1.LabelHostname: c.Hostname, corev1.LabelOSStable: goruntime.GOOS, corev1.LabelArchStable: goruntime.GOARCH,
		"beta.kubernetes.io/os": goruntime.GOOS, "beta.kubernetes.io/arch": goruntime.GOARCH,
	}
	maps.Copy(labels, c.Labels)
	annotations := map[string]string{controllerAttaches: "true"}
	maps.Copy(annotations, c.Annotations)
	c.Labels, c.Annotations, c.Taints = labels, annotations, slices.Clone(c.Taints)
	return errors.Join(errs...)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Node keeps the Node object of this node and its lease. Run does the work; the other
// methods may be called from any goroutine.
//
//   - The Node is registered if it does not exist, also when it is deleted later: a
//     node that runs is a node. Its labels are repaired.
//   - A change of a condition is sent within a second, any other change within
//     StatusPeriod, and an unchanged status every ReportPeriod. Conditions, capacities,
//     labels and annotations of others are kept.
//   - The lease is renewed in time with a time that never goes back, whatever the wall
//     clock does, because the node controller takes an older one for none.
//   - While the API server does not answer, calls are made with back-off and nothing on
//     the node changes.
//   - While another agent renews the same lease both nodes are not Ready, so that no pod
//     is bound to them. What runs is left alone.
type Node struct {
	kube  *Kube
	cfg   NodeConfig
	log   *slog.Logger
	lease *lease

	dir         objectDir                // of nodeFile; "": it is not kept
	kept        func() map[string]string // loadLabels, once
	labelsNoted chan struct{}            // one slot: lastLabels was set

	mu         sync.Mutex // guards the fields below
	current    *corev1.Node
	lastLabels map[string]string // of the last Node that was known; nil: there was none

	// The fields below belong to the loop.
	started    bool      // the first registration succeeded
	cordoned   bool      // as the last event says
	reportedAt time.Time // when a status was last sent
	reported   []corev1.NodeCondition
	knownInUse []corev1.UniqueVolumeName
	rejected   *corev1.NodeStatus // the last one, if the API server made something else of it
	answer     *corev1.NodeStatus // what that was, the second time
	lastErr    string             // last error of the reporter, so that it is logged once
}

// Node returns the keeper of the Node object. It validates cfg and does no I/O.
func (k *Kube) Node(cfg NodeConfig) (*Node, error) {
	if err := cfg.complete(k.cfg.NodeName); err != nil {
		return nil, err
	}
	n := &Node{kube: k, cfg: cfg, log: k.cfg.Logger, labelsNoted: make(chan struct{}, 1)}
	n.kept = sync.OnceValue(n.loadLabels)
	n.lease = &lease{
		client: k.cfg.LeaseClient.CoordinationV1().Leases(corev1.NamespaceNodeLease), name: k.cfg.NodeName,
		duration: cfg.LeaseDuration, log: k.cfg.Logger, owner: n.Current,
	}
	return n, nil
}

// Current returns the Node object as the API server has it, or nil while it is not
// known. It is read-only.
func (n *Node) Current() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

// Labels returns the labels of the Node object. While it is not known they are those that it had
// last, also in a previous process if NodeOptions has a directory, or else those of the configuration.
// They are read-only.
func (n *Node) Labels() map[string]string {
	n.mu.Lock()
	last := n.lastLabels
	n.mu.Unlock()
	if last != nil {
		return last
	}
	return n.kept()
}

// Check returns ErrNodeNameInUse while another agent renews the lease of this node.
func (n *Node) Check() error {
	if n.lease.isContended(time.Now()) {
		return ErrNodeNameInUse
	}
	return nil
}

// Run keeps the Node and its lease until ctx is done, and returns nil then.
func (n *Node) Run(ctx context.Context) error {
	n.record(corev1.EventTypeNormal, "Starting", "Starting kubelet.", time.Now()) // clients look for the kubelet's
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.watch(ctx) })
	wg.Go(func() { n.lease.run(ctx) })
	wg.Go(func() { n.passPodCIDRs(ctx) })
	wg.Go(func() { n.keepLabels(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // when the status is compared next
	var backOff time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(due) || backOff == 0 && n.hasTransition() {
			err := n.sync(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				backOff = min(max(2*backOff, minNodeBackOff), maxNodeBackOff)
				due = time.Now().Add(jitter(backOff))
				n.log.Warn("node status not updated", logattr.Err(explain(err)), slog.Duration("backOff", backOff))
			default:
				backOff, due = 0, time.Now().Add(n.cfg.StatusPeriod)
			}
		}
		timer.Reset(min(conditionPeriod, max(time.Until(due), time.Millisecond)))
	}
}

// jitter returns d, or up to half of it less, so that nodes do not call in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) } //nolint:gosec // no secret

// hasTransition reports whether a condition has another status than was last sent.
func (n *Node) hasTransition() bool {
	conditions := n.withCheck(n.conditions())
	return !slices.EqualFunc(conditions, n.reported, func(a, b corev1.NodeCondition) bool { return a.Type == b.Type && a.Status == b.Status })
}

func (n *Node) conditions() (conditions []corev1.NodeCondition) {
	safe.Do(n.log, "node conditions", func() { conditions = n.cfg.Reporter.Conditions() })
	return conditions
}

// withCheck makes the node not Ready while Check fails.
func (n *Node) withCheck(conditions []corev1.NodeCondition) []corev1.NodeCondition {
	err := n.Check()
	if err == nil {
		return conditions
	}
	conditions = slices.Clone(conditions)
	for i := range conditions {
		if c := &conditions[i]; c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			bad := node.Ready(err)
			bad.LastHeartbeatTime, bad.LastTransitionTime = c.LastHeartbeatTime, c.LastHeartbeatTime
			*c = bad
		}
	}
	return conditions
}
