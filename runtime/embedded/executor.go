package embedded

import (
	"context"
	"io"
	"net"
	"syscall"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container is what an Executor is told of one container. It is read-only, and
// one container is the same pointer in every call.
//
// Image is the record that the container's image was resolved to. Its Ref is
// normalized, as clients name images by several names and often by id:
// docker.io/library/job:latest for an image that the pod calls job. What the pod
// itself says is in Config.Image.UserSpecifiedImage, if the client passes it on, as
// kubelets do.
type Container struct {
	ID        string
	SandboxID string
	Pod       *v1.PodSandboxConfig
	Config    *v1.ContainerConfig
	Image     *Image
}

// Executor runs the containers of a Runtime. All methods may be called from any
// goroutine, for different containers at the same time; for one container
// Create, Start and Remove are called in this order, each at most once.
//
// An Executor may have capabilities besides: Checker, SandboxPreparer, Addresser,
// Featured, Dialer, io.Closer. A decorator keeps those of what it decorates by a
// method Unwrap() any that returns it.
type Executor interface {
	// Create checks that the container can be started here and prepares for
	// it. An error refuses the container; a gRPC status keeps its code.
	Create(ctx context.Context, c *Container) error
	// Start runs the container and returns once it runs. It may take long; ctx
	// ends when the caller has gone or the container must go. After a nil
	// error exited is called exactly once, from any goroutine, even before
	// Start returns. After an error it is never called.
	Start(ctx context.Context, c *Container, sio IO, exited func(Exit)) (Process, error)
	// Remove frees what Create made. The container has ended or never ran.
	Remove(c *Container)
}

// Process is a started container. Its methods may be called from any goroutine,
// also after it has ended.
//
// A Process may have capabilities besides: Updater, Resizer, Identified. A decorator
// keeps those of what it decorates by a method Unwrap() any that returns it.
type Process interface {
	// Signal sends sig to the container. SIGKILL must end all of it. Signalling
	// an ended container is not an error.
	Signal(sig syscall.Signal) error
	// Exec runs a command in the container and returns its exit code. When ctx
	// ends, the command is killed and ctx's error returned.
	Exec(ctx context.Context, e Exec) (int32, error)
	// Usage measures the container now.
	Usage() Usage
}

// Checker is an Executor whose configuration can be wrong. New returns the error.
type Checker interface {
	Check() error
}

// SandboxPreparer is an Executor that does something for a pod before any of its
// containers.
type SandboxPreparer interface {
	// Sandbox is called once when a sandbox is made. It may take long; ctx ends when
	// the caller has gone. An error refuses the sandbox; a gRPC status keeps its code.
	Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error
}

// Identified is a Process that is one of this machine. Its number is told in a
// verbose container status.
type Identified interface {
	PID() int
}

// PodIPAllocator is an Executor that gives pods addresses of its own. Without it the
// Runtime hands out addresses of Config.PodCIDR.
type PodIPAllocator interface {
	// PodIPs returns the addresses of a new pod, primary first.
	PodIPs(pod *v1.PodSandboxConfig) []string
}

// FeatureReporter is an Executor that can do some of what clients ask Status for. Without
// it all of that is told to be missing.
type FeatureReporter interface {
	// Features is what each runtime handler can do. It is called for each answer.
	Features() *v1.RuntimeHandlerFeatures
}

// ResourceUpdater is a Process whose resources can be changed while it runs.
type ResourceUpdater interface {
	Update(r *v1.LinuxContainerResources) error
}

// TerminalResizer is a Process with a terminal.
type TerminalResizer interface {
	Resize(width, height uint16) error
}

// Dialer is an Executor through which a pod's ports are reached.
type Dialer interface {
	DialPod(ctx context.Context, pod *v1.PodSandboxConfig, port int32) (net.Conn, error)
}

// IO is what a container reads and writes.
type IO struct {
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer // with TTY all output goes to Stdout
	TTY            bool
}

// Exec is a command to run in a container.
type Exec struct {
	Cmd []string
	IO
	Resize <-chan TerminalSize // nil: never resized
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Width, Height uint16 }

// Exit is how a container ended.
type Exit struct {
	Code    int32
	Reason  string // "" gives Completed or Error by Code
	Message string
	At      time.Time // zero: now
}

// Reasons of an Exit that clients know.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
)

// Usage is one measurement of a container. What is not known is zero.
type Usage struct {
	CPU        time.Duration // used since its start
	NanoCores  uint64        // used now; clients that get none work it out from CPU
	WorkingSet uint64        // bytes of memory
	RSS        uint64
	Disk       uint64 // bytes of the writable layer
	Inodes     uint64
	Processes  uint64
	RxBytes    uint64 // of the pod's network, where the container has a share
	TxBytes    uint64
}
