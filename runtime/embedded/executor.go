package embedded

import (
	"context"
	"io"
	"net"
	"syscall"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container describes one container to an Executor. It is read-only, and is the same
// pointer in every call for the container.
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
// An Executor may have capabilities: Checker, Opener, SandboxPreparer, PullPreparer,
// PodIPAllocator, FeatureReporter, Dialer, io.Closer. A decorator keeps those of the
// decorated value by a method Unwrap() any that returns it.
type Executor interface {
	// Create checks that the container can be started here and prepares for
	// it. An error fails the creation; a gRPC status keeps its code.
	Create(ctx context.Context, c *Container) error
	// Start starts the container and returns once it runs. It may block; ctx ends
	// when the caller gives up or the container is killed. After a nil
	// error exited is called exactly once, from any goroutine, even before
	// Start returns. After an error it is never called.
	Start(ctx context.Context, c *Container, sio IO, exited func(Exit)) (Process, error)
	// Remove releases what Create made. The container has exited or never ran.
	Remove(c *Container)
}

// Process is a started container. Its methods may be called from any goroutine,
// also after it has exited.
//
// A Process may have capabilities: ResourceUpdater, TerminalResizer, Identified. A
// decorator keeps those of the decorated value by a method Unwrap() any that returns it.
type Process interface {
	// Signal sends sig to the container. Its number is that of Linux on every system, as
	// in the CRI. SIGKILL must end all of it. Signalling
	// an exited container is not an error.
	Signal(sig syscall.Signal) error
	// Exec runs a command in the container and returns its exit code. When ctx
	// ends, the command is killed and ctx's error returned.
	Exec(ctx context.Context, e Exec) (int32, error)
	// Usage measures the resource use of the container.
	Usage() Usage
}

// Checker is an Executor whose configuration can be invalid. New returns the error.
type Checker interface {
	Check() error
}

// Opener is an Executor that cleans up what a killed process has left, also if no pod is
// created any more.
type Opener interface {
	// Open is called once, by the first Dial or Run. An error is logged: Create reports its
	// own.
	Open() error
}

// SandboxPreparer is an Executor that prepares a pod before its containers are
// created.
type SandboxPreparer interface {
	// Sandbox is called once when a sandbox is created. It may block; ctx ends when
	// the caller gives up. An error fails the creation; a gRPC status keeps its code.
	Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error
}

// PullPreparer is an Executor that delays or fails pulls.
type PullPreparer interface {
	// Pull is called for each pull of an image, by any of its names, for a pod: nil if the
	// caller names none. It may block; ctx ends when the caller gives up. An error fails
	// the pull; a gRPC status keeps its code.
	Pull(ctx context.Context, ref string, pod *v1.PodSandboxConfig) error
}

// Identified is a Process of this machine. Its PID is in the verbose status of the
// container.
type Identified interface {
	PID() int
}

// PodIPAllocator is an Executor that allocates the addresses of pods. Without it the
// Runtime allocates them from Config.PodCIDR.
type PodIPAllocator interface {
	// PodIPs returns the addresses of a new pod, primary first.
	PodIPs(pod *v1.PodSandboxConfig) []string
}

// FeatureReporter is an Executor that reports features in Status. Without it no
// feature is reported.
type FeatureReporter interface {
	// Features returns the features of each runtime handler. It is called for each
	// response.
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

// Dialer is an Executor that connects to the ports of pods.
type Dialer interface {
	DialPod(ctx context.Context, pod *v1.PodSandboxConfig, port int32) (net.Conn, error)
}

// IO has the streams of a container or command.
type IO struct {
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer // with TTY all output goes to Stdout
	TTY            bool
	Log            LogFile // of a container; nil for a command
}

// LogFile is the log file to which a Runtime writes the output of a container. Without
// any call the first output creates it, and it stays open until the container exits.
type LogFile interface {
	// Create creates the file before the first output, for clients that follow the log
	// of a silent container.
	Create() error
	// Release closes the file until the next output, so that an idle container keeps no
	// descriptor open.
	Release()
	// Drain says that the container has exited and that what is still written is the rest
	// of its output. Writes no longer wait for attached clients, who get it nevertheless,
	// so that one that does not read costs neither the log nor others the end.
	Drain()
}

// Exec is a command to run in a container.
type Exec struct {
	Cmd []string
	IO
	Resize <-chan TerminalSize // nil: never resized
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Width, Height uint16 }

// Exit is the result of a container.
type Exit struct {
	Code    int32
	Reason  string // "" gives Completed or Error by Code
	Message string
	At      time.Time // zero: now
}

// Reasons of an Exit that clients interpret.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
)

// Usage is one measurement of a container. Unknown values are zero.
type Usage struct {
	CPU        time.Duration // used since its start
	NanoCores  uint64        // used now; clients compute it from CPU if it is zero
	WorkingSet uint64        // bytes of memory
	RSS        uint64
	Disk       uint64 // bytes of the writable layer
	Inodes     uint64
	Processes  uint64
	RxBytes    uint64 // of the pod's network, where the container has a share
	TxBytes    uint64
}
