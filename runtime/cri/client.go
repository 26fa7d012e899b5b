package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Recorder receives the events that a Client emits about pods. It must not block.
type Recorder interface {
	Record(*corev1.Event)
}

// Hooks observe a Client. They are called synchronously, from the goroutine that caused
// them, and must not block. Each may be nil.
type Hooks struct {
	// Call is called after every call to the runtime.
	Call func(rpc string, duration time.Duration, err error)
	// OperationStarted is called before each operation for a pod. The calls of the
	// operation get the context that it returns: ctx or one derived from it, for instance
	// with a trace span. Nil counts as ctx.
	OperationStarted func(ctx context.Context, op runtime.Operation) context.Context
	// OperationEnded is called after each operation, with the context that
	// OperationStarted returned. It is done if the operation was cancelled.
	OperationEnded func(ctx context.Context, op runtime.Operation, duration time.Duration, err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Call:             safe.Hook3(log, "CRI.Call", h.Call, next.Call),
		OperationStarted: safe.HookContext(log, "CRI.OperationStarted", h.OperationStarted, next.OperationStarted),
		OperationEnded:   safe.Hook4(log, "CRI.OperationEnded", h.OperationEnded, next.OperationEnded),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Call:             safe.Hook3(log, "Call", h.Call),
		OperationStarted: safe.HookContext(log, "OperationStarted", h.OperationStarted),
		OperationEnded:   safe.Hook4(log, "OperationEnded", h.OperationEnded),
	}
}

// Config configures a Client. The zero value works.
type Config struct {
	// Owner is the owner of the pods that the Client returns and changes. What it creates
	// has the id as runtime.LabelOwner; objects with another id are ignored. An agent
	// sets the owner of a Client without one, with SetOwner. All other Clients without
	// an Owner share the default: a program that shares a runtime with others of its
	// kind needs an id of its own, the same at each start.
	// [DefaultOwner]
	Owner string
	// AdoptSources has pods taken for the owner's that bear no owner at all, as
	// those of a kubelet, if the annotation kubernetes.io/config.source of their
	// sandbox is one of these: "file", "http" or "api" for a kubelet's. Labels
	// cannot be changed: the pods are the owner's for as long as this says so. [none]
	AdoptSources []string
	// Observer makes a Client that sees the pods of all owners, and of none. It
	// changes nothing and enters no container: calls that would fail with runtime.ErrNotOwner.
	Observer bool
	// DialContext connects to pods, for httpGet hooks and for Client.DialContext. [that
	// of the connection, if runtime.Capability finds runtime.PodDialer in it, as in that
	// to an embedded runtime; else a net.Dialer's]
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// HookTimeout bounds a postStart hook. A preStop hook has the grace period. [10 min]
	HookTimeout time.Duration
	// ImageConn is the connection for the image service; nil: the same as the
	// runtime's.
	ImageConn grpc.ClientConnInterface
	// Timeout bounds each call that has no better bound of its own. Making and
	// stopping sandboxes has twice the time. [2 min]
	Timeout time.Duration
	// StatusTimeout bounds Version and Status. [15 s]
	StatusTimeout time.Duration
	// PullTimeout bounds one image pull. [30 min]
	PullTimeout time.Duration

	// InitialParallelStarts is how many pods may be in the middle of their start at a
	// time, to begin with; from then on the number follows the throughput, up to
	// MaxParallelStarts. After a pause a third of them start until the first has started, but
	// at least one, for half a second at most and unless one has hung in the last ten minutes.
	// The last of many start twice as many at a time.
	// If more than ten times as many wait after the next ones, it is two thirds higher. [1.5 for each CPU, but 3 at least; 16 times InitialParallelStarts]
	InitialParallelStarts, MaxParallelStarts int
	// StartSlotTimeout is how long a start may hold up others at most; one that takes
	// four times as long as they do, or 2 s before there is any to compare with,
	// counts as hanging sooner. [10 s]
	StartSlotTimeout time.Duration

	// Pulls bounds image pulls.
	Pulls PullLimits
	// Credentials finds logins of the node for image pulls. [none: only pull secrets]
	Credentials CredentialProvider
	// ImageVerifier decides whether an image may be used. [all may]
	ImageVerifier ImageVerifier
	// ImageAccess says who may use images that are present.
	ImageAccess ImageAccess
	// Node is what translations need to know of the machine.
	Node Node
	// LogLinksDir is where each container that is started gets a link to its log, named
	// <pod>_<namespace>_<container>-<id>.log as in a kubelet's /var/log/containers. The
	// Client makes the directory and never removes a link. [none]
	LogLinksDir string

	Recorder Recorder     // nil: nothing is recorded
	Logger   *slog.Logger // nil: discard
	Hooks    Hooks
}

// Check returns all errors in the Config, joined. New does so too.
func (cfg Config) Check() error {
	if err := cfg.fill(); err != nil {
		return fmt.Errorf("cri: %w", err)
	}
	return nil
}

func (cfg *Config) fill() error {
	var errs []error
	positive := func(name string, d *time.Duration, def time.Duration) {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %v", name, *d))
		}
		if *d == 0 {
			*d = def
		}
	}
	positive("Timeout", &cfg.Timeout, 2*time.Minute)
	positive("StatusTimeout", &cfg.StatusTimeout, 15*time.Second)
	positive("PullTimeout", &cfg.PullTimeout, 30*time.Minute)
	positive("HookTimeout", &cfg.HookTimeout, 10*time.Minute)
	positive("StartSlotTimeout", &cfg.StartSlotTimeout, 10*time.Second)
	if cfg.InitialParallelStarts < 0 || cfg.MaxParallelStarts < 0 {
		errs = append(errs, fmt.Errorf("InitialParallelStarts or MaxParallelStarts is negative: %d, %d", cfg.InitialParallelStarts, cfg.MaxParallelStarts))
	}
	if cfg.InitialParallelStarts == 0 {
		cfg.InitialParallelStarts = max(3, 3*goruntime.NumCPU()/2)
	}
	if cfg.MaxParallelStarts == 0 {
		cfg.MaxParallelStarts = 16 * cfg.InitialParallelStarts
	}
	if cfg.Observer && (cfg.Owner != "" || len(cfg.AdoptSources) > 0) {
		errs = append(errs, errors.New("an Observer sees all pods: Owner and AdoptSources must be empty"))
	}
	errs = append(errs, cfg.Node.fill(), cfg.Pulls.fill(), cfg.ImageAccess.fill())
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	cfg.DialContext = safe.Dial(cfg.Logger, cfg.DialContext)
	return errors.Join(errs...)
}

// Client drives one CRI endpoint. Its methods may be called from any goroutine.
type Client struct {
	cfg     Config
	rs      v1.RuntimeServiceClient
	is      v1.ImageServiceClient
	facts   statusCache
	strings sharedStrings
	claim   atomic.Pointer[claim] // nil is that of DefaultOwner
	owned   ownedIDs
	starts  *limiter
	puller  *images.Puller
	hooked  idSet // containers whose preStop hooks came to their end, until they have exited
	stopped idSet // sandboxes that were stopped and not removed

	features atomic.Pointer[translate.Features] // nil before the first Status

	mostListed int // bytes of a streamed list

	// Set once a streamed list was answered Unimplemented: it is not asked for
	// again.
	noSandboxStream, noContainerStream, noImageStream, noStatsStream atomic.Bool
}

// DialContext connects to the address of a pod, as Config.DialContext does. It is the
// capability runtime.PodDialer.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return c.cfg.DialContext(ctx, network, address)
}

// New returns a Client over an open connection, which stays the caller's. It
// makes no call.
func New(cc grpc.ClientConnInterface, cfg Config) (*Client, error) {
	if cc == nil {
		return nil, errors.New("cri: no connection")
	}
	if cfg.DialContext == nil {
		cfg.DialContext = runtime.Dialer(cc)
	}
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("cri: %w", err)
	}
	imageConn := cfg.ImageConn
	if imageConn == nil {
		imageConn = cc
	}
	c := &Client{
		cfg: cfg, strings: newSharedStrings(), rs: v1.NewRuntimeServiceClient(cc), is: v1.NewImageServiceClient(imageConn),
		starts:     newLimiter(cfg.InitialParallelStarts, cfg.MaxParallelStarts, cfg.StartSlotTimeout),
		mostListed: maxMessage,
	}
	c.claim.Store(&claim{owner: cmp.Or(cfg.Owner, DefaultOwner), adopt: cfg.AdoptSources, all: cfg.Observer})
	c.puller = newPuller(c)
	return c, nil
}

// maxMessage bounds answers of a runtime. It is far above what gRPC takes by
// default, so that a node full of dead containers can still be listed and
// cleaned.
const maxMessage = 256 << 20

const unixScheme = "unix://"

// CheckEndpoint returns an error unless endpoint is written as Dial takes it,
// "unix:///path". It does not look whether anything is there.
func CheckEndpoint(endpoint string) error {
	path, isUnix := strings.CutPrefix(endpoint, unixScheme)
	switch {
	case !isUnix:
		return fmt.Errorf("endpoint %q must be unix:///path; only unix:// is supported", endpoint)
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("endpoint %q must have an absolute path, with three slashes: unix:///path", endpoint)
	}
	return nil
}

// Dial returns a connection to a runtime's socket, "unix:///path". It makes no
// call: a runtime that is down is connected to as soon as it is up, and until
// then calls fail with runtime.ErrUnavailable.
func Dial(endpoint string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	path, isUnix := strings.CutPrefix(endpoint, unixScheme)
	if err := CheckEndpoint(endpoint); err != nil && !strings.HasPrefix(endpoint, "passthrough:") {
		return nil, fmt.Errorf("dial: %w", err)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithIdleTimeout(0),
	}
	if isUnix {
		endpoint = "passthrough:///localhost"
		all = append(all, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	}
	cc, err := grpc.NewClient(endpoint, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", endpoint, err)
	}
	return cc, nil
}
