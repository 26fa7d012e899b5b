package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/bootid"
	"github.com/sublet-dev/agent/internal/safe"
)

// Claims has the ResourceClaims of pods. *kube.Kube has those of a cluster, and *volume.Files
// those of manifests.
type Claims interface {
	// ResourceClaim returns a claim with its allocation, which is in its status. It may
	// block until ctx is done. The result is not changed.
	ResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
}

// Node lets the cluster know which drivers the node has. *kube.ResourceSlices removes what
// those that are gone have published.
type Node interface {
	// SetDrivers replaces the names of the drivers that can be reached. It does not block.
	SetDrivers(names []string)
}

// Config describes a Manager.
type Config struct {
	Claims Claims // required
	Node   Node   // default: none
	// RequireReservation rejects claims whose status is not reserved for the pod, as it is
	// in a cluster. Claims of manifests have no reservations.
	RequireReservation bool
	// StateFile is the absolute path of the file with the prepared claims. Required. Its
	// directory must exist when the Manager is used.
	StateFile string
	// CallTimeout bounds each call of a driver, and the search for a claim. Default: 45
	// seconds, as in the kubelet.
	CallTimeout time.Duration
	// BootID identifies the current boot of the node. What drivers prepared in another boot is
	// prepared again. Default: the id that the kernel has.
	BootID string
	Hooks  Hooks
	Logger *slog.Logger // default: discard
}

// Hooks observe a Manager. They are called without locks held and must not block. A panic in
// one is logged.
type Hooks struct {
	// Called is called after each call of a driver.
	Called func(Call)
	// RPCEnded is called after each gRPC call of a driver, with the full name of the method and the name of
	// the status code: OK also if the driver answered with an error for a claim. It is called before Called.
	RPCEnded func(driver, method, code string, duration time.Duration)
	// PodPrepared is called after claims of a pod were prepared, or could not be, and PodReleased after they were
	// released, or could not be. Duration includes the search for the claims.
	PodPrepared, PodReleased func(uid types.UID, duration time.Duration, err error)
	// StateLost is called if the file with the prepared claims could not be read. The
	// damaged file was renamed.
	StateLost func(err error)
}

// Call describes a call of a driver.
type Call struct {
	Driver          string
	Method          string // NodePrepareResources or NodeUnprepareResources
	Namespace, Name string // of the claim
	Duration        time.Duration
	Err             error
}

// Errors of Inject and Release.
var (
	// ErrNoDriver means that the driver of a claim is not registered.
	ErrNoDriver = errors.New("the DRA driver is not registered")
	// ErrNotAllocated means that no devices were chosen for the claim yet.
	ErrNotAllocated = errors.New("the ResourceClaim has no allocation")
)

func (cfg *Config) complete() error {
	var errs []error
	if cfg.Claims == nil {
		errs = append(errs, errors.New("dra: Config.Claims: required"))
	}
	if !filepath.IsAbs(cfg.StateFile) {
		errs = append(errs, fmt.Errorf("dra: Config.StateFile: %q must be an absolute path", cfg.StateFile))
	}
	if cfg.CallTimeout < 0 {
		errs = append(errs, fmt.Errorf("dra: Config.CallTimeout: %s must be at least 0", cfg.CallTimeout))
	}
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, 45*time.Second)
	if cfg.BootID == "" {
		cfg.BootID = bootid.Read()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{
		Called:      safe.Hook1(cfg.Logger, "Called", cfg.Hooks.Called),
		RPCEnded:    safe.Hook4(cfg.Logger, "RPCEnded", cfg.Hooks.RPCEnded),
		PodPrepared: safe.Hook3(cfg.Logger, "PodPrepared", cfg.Hooks.PodPrepared),
		PodReleased: safe.Hook3(cfg.Logger, "PodReleased", cfg.Hooks.PodReleased),
		StateLost:   safe.Hook1(cfg.Logger, "StateLost", cfg.Hooks.StateLost),
	}
	return errors.Join(errs...)
}

// SupportsField reports that a node with a Manager supports the fields of pods about claims.
func (*Manager) SupportsField(field string) bool {
	return field == "spec.resourceClaims" || strings.HasSuffix(field, ".resources.claims")
}

// podClaims returns the entries of a pod's claims. The one without a name is the claim that the scheduler has
// made for its extended resources, if these are devices of drivers on this node (KEP-5004).
func podClaims(pod *corev1.Pod) []corev1.PodResourceClaim {
	st := pod.Status.ExtendedResourceClaimStatus
	if st == nil {
		return pod.Spec.ResourceClaims
	}
	return append(slices.Clip(pod.Spec.ResourceClaims), corev1.PodResourceClaim{ResourceClaimName: &st.ResourceClaimName})
}

// containerClaims returns the claims of podClaims that a container uses, with their requests.
func containerClaims(pod *corev1.Pod, container *corev1.Container) []corev1.ResourceClaim {
	used := slices.Clip(container.Resources.Claims)
	if st := pod.Status.ExtendedResourceClaimStatus; st != nil {
		for _, m := range st.RequestMappings {
			if m.ContainerName == container.Name {
				used = append(used, corev1.ResourceClaim{Request: m.RequestName})
			}
		}
	}
	return used
}

// describe names an entry of podClaims in errors.
func describe(entry string) string {
	if entry == "" {
		return "resource claim for extended resources"
	}
	return "resource claim " + entry
}

// claimName returns the name of the claim that an entry of a pod's resourceClaims stands for.
// It is empty if the pod needs none.
func claimName(pod *corev1.Pod, entry *corev1.PodResourceClaim) (string, error) {
	if entry.ResourceClaimName != nil {
		return *entry.ResourceClaimName, nil
	}
	for _, st := range pod.Status.ResourceClaimStatuses {
		if st.Name != entry.Name {
			continue
		}
		if st.ResourceClaimName == nil {
			return "", nil
		}
		return *st.ResourceClaimName, nil
	}
	return "", fmt.Errorf("resource claim %s of the pod: no ResourceClaim was made from its template; name one with resourceClaimName", entry.Name)
}

// isFor returns an error if a claim cannot be used by the pod.
func (cfg *Config) isFor(claim *resourcev1.ResourceClaim, pod *corev1.Pod, entry *corev1.PodResourceClaim) error {
	if claim.Status.Allocation == nil {
		return fmt.Errorf("%w: it has to be in status.allocation", ErrNotAllocated)
	}
	if !cfg.RequireReservation {
		return nil
	}
	if entry.ResourceClaimTemplateName != nil && !metav1.IsControlledBy(claim, pod) {
		return errors.New("it was not made for the pod: one of a template must have the pod as its controller")
	}
	for _, r := range claim.Status.ReservedFor {
		if r.UID == pod.UID {
			return nil
		}
	}
	return errors.New("it is not reserved for the pod")
}
