package runtimetest

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The registry of private images of the equipment.
const (
	privateRef      = "example.com/private/app:1"
	privateUser     = "reader"
	privatePassword = "correct horse"
)

// equipment gives the embedded runtime what it or this machine lacks, so that mutants can
// lack it one by one: checkpoints, a registry that demands credentials, CDI devices, AppArmor,
// SELinux, cgroup v2 and user namespaces. It answers the commands by which cases look.
type equipment struct {
	grpc.ClientConnInterface
	mu         sync.Mutex
	containers map[string]*v1.ContainerConfig // by id
}

func newEquipment(to grpc.ClientConnInterface) *equipment {
	return &equipment{ClientConnInterface: to, containers: map[string]*v1.ContainerConfig{}}
}

func (e *equipment) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	next := func() error { return e.ClientConnInterface.Invoke(ctx, method, req, resp, opts...) }
	switch r := req.(type) {
	case *v1.CheckpointContainerRequest:
		return e.checkpoint(ctx, r)
	case *v1.StatusRequest:
		err := next()
		allFeatures(resp.(*v1.StatusResponse))
		return err
	case *v1.PullImageRequest:
		if r.GetImage().GetImage() == privateRef && !permitted(r.GetAuth()) {
			return status.Error(codes.Unauthenticated, "pull access denied")
		}
	case *v1.CreateContainerRequest:
		if err := e.reject(r.GetConfig()); err != nil {
			return err
		}
		err := next()
		if created, ok := resp.(*v1.CreateContainerResponse); ok && err == nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.containers[created.GetContainerId()] = r.GetConfig()
		}
		return err
	case *v1.ExecSyncRequest:
		e.mu.Lock()
		cfg := e.containers[r.GetContainerId()]
		e.mu.Unlock()
		if out, ok := observedIn(cfg, strings.Join(r.GetCmd(), " ")); ok {
			resp.(*v1.ExecSyncResponse).Stdout = []byte(out + "\n")
			return nil
		}
	}
	return next()
}

// checkpoint makes a checkpoint of a container that is there.
func (e *equipment) checkpoint(ctx context.Context, r *v1.CheckpointContainerRequest) error {
	_, err := v1.NewRuntimeServiceClient(e.ClientConnInterface).ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: r.GetContainerId()})
	if err != nil {
		return err
	}
	return os.WriteFile(path.Clean(r.GetLocation()), []byte("checkpoint"), 0o600)
}

// permitted reports whether the credentials are those of the registry.
func permitted(a *v1.AuthConfig) bool {
	pair := a.GetUsername() + ":" + a.GetPassword()
	if a.GetAuth() != "" {
		decoded, _ := base64.StdEncoding.DecodeString(a.GetAuth()) // an error is no pair
		pair = string(decoded)
	}
	return pair == privateUser+":"+privatePassword
}

// reject returns an error for what a runtime must not ignore.
func (e *equipment) reject(cfg *v1.ContainerConfig) error {
	for _, d := range cfg.GetCDIDevices() {
		if !strings.HasSuffix(d.GetName(), "=one") {
			return status.Error(codes.InvalidArgument, "unresolvable CDI devices "+d.GetName())
		}
	}
	if p := cfg.GetLinux().GetSecurityContext().GetApparmor(); p.GetProfileType() == v1.SecurityProfile_Localhost && p.GetLocalhostRef() != "" {
		return status.Error(codes.InvalidArgument, "apparmor profile not found "+p.GetLocalhostRef())
	}
	return nil
}

// observedIn returns what a command prints in a container of that configuration, if it looks at
// what the equipment has.
func observedIn(cfg *v1.ContainerConfig, cmd string) (string, bool) {
	sc, resources, mount := cfg.GetLinux().GetSecurityContext(), cfg.GetLinux().GetResources(), &v1.Mount{}
	if len(cfg.GetMounts()) > 0 {
		mount = cfg.GetMounts()[0]
	}
	choose := func(yes bool, one, other string) (string, bool) {
		if yes {
			return one, true
		}
		return other, true
	}
	switch {
	case strings.HasSuffix(cmd, securityLabel) && sc.GetSelinuxOptions() != nil:
		o := sc.GetSelinuxOptions()
		return strings.Join([]string{o.GetUser(), o.GetRole(), o.GetType(), o.GetLevel()}, ":") + "\x00", true
	case strings.HasSuffix(cmd, securityLabel):
		return choose(sc.GetApparmor().GetProfileType() == v1.SecurityProfile_RuntimeDefault && sc.GetApparmor() != nil, "default (enforce)", "unconfined")
	case cmd == "cat /data/file":
		return choose(mount.GetSelinuxRelabel(), "from the host", "")
	case strings.Contains(cmd, "memory.high"):
		return choose(resources.GetUnified()["memory.high"] != "", resources.GetUnified()["memory.high"], "max")
	case strings.Contains(cmd, "hugetlb"):
		limits := resources.GetHugepageLimits()
		if len(limits) == 0 {
			return "max", true
		}
		return strconv.FormatUint(limits[0].GetLimit(), 10), true
	case strings.Contains(cmd, "ls -ln /data/file"):
		return choose(len(mount.GetUidMappings()) > 0 && len(mount.GetGidMappings()) > 0, fmt.Sprint(os.Geteuid(), " ", os.Getegid()), "65534 65534")
	case strings.Contains(cmd, "SUBLET_TEST_DEVICE"):
		return choose(len(cfg.GetCDIDevices()) > 0, "one", "")
	case strings.Contains(cmd, "sublet-test-cdi"):
		return choose(len(cfg.GetCDIDevices()) > 0, "there", "missing")
	}
	return "", false
}

func mutantsOfEquipment() []mutant {
	const checkpoint, pulls, denied, labels, apparmor, devices, unknown, owners = "a checkpoint leaves the container running",
		"a private image is pulled with its credentials", "a private image is not pulled without its credentials", "a container has its SELinux label",
		"a container has its AppArmor profile", "a container has its CDI devices", "a container of an unknown CDI device is refused",
		"a mount in a user namespace has mapped owners"
	onAuth := func(mutate func(*v1.AuthConfig)) func(any) {
		return onRequest(func(r *v1.PullImageRequest) {
			if r.GetAuth() != nil {
				mutate(r.Auth)
			}
		})
	}
	return []mutant{
		{
			defect: "a checkpoint ends the container", caseName: checkpoint, report: "state in the status is CONTAINER_EXITED",
			call: onCalls("CheckpointContainer", func(c rpcCall) error {
				id := c.req.(*v1.CheckpointContainerRequest).GetContainerId()
				_, err := v1.NewRuntimeServiceClient(c.conn).StopContainer(c.ctx, &v1.StopContainerRequest{ContainerId: id})
				if err != nil {
					return err
				}
				return c.next()
			}),
		},
		{
			defect: "a checkpoint is not written", caseName: checkpoint, report: "there is nothing at its location",
			call: doesNothing("CheckpointContainer"),
		},
		{
			defect: "a checkpoint fails", caseName: checkpoint, report: "CheckpointContainer: rpc error",
			call: onCalls("CheckpointContainer", func(rpcCall) error { return status.Error(codes.Unknown, "criu failed: type NOTIFY errno 0") }),
		},
		{
			defect: "a checkpoint of an unknown container succeeds", caseName: "checkpoints of what is not there are refused", report: "checkpoint of an unknown container: succeeded",
			call: losesErrors("CheckpointContainer"),
		},
		{
			defect: "credentials of pulls are ignored", caseName: pulls, report: "pull of a private image with username and password",
			request: onRequest(func(r *v1.PullImageRequest) { r.Auth = nil }),
		},
		{
			defect: "auth of credentials is ignored", caseName: pulls, report: "pull of a private image with auth",
			request: onAuth(func(a *v1.AuthConfig) { a.Auth = "" }),
		},
		{
			defect: "credentials with server_address are ignored", caseName: pulls, report: "with server_address, username and password",
			request: onAuth(func(a *v1.AuthConfig) {
				if a.GetServerAddress() != "" {
					a.Username, a.Password = "", ""
				}
			}),
		},
		{
			defect: "a pull that is denied is reported as done", caseName: denied, report: "pull of a private image without credentials: succeeded",
			call: losesErrors("PullImage"),
		},
		{
			defect: "any password is right", caseName: denied, report: "pull of a private image with a wrong password: succeeded",
			request: onAuth(func(a *v1.AuthConfig) { a.Password = privatePassword }),
		},
		{
			defect: "passwords are in the errors of pulls", caseName: denied, report: "has the password in it",
			call: onCalls("PullImage", func(c rpcCall) error {
				err := c.next()
				if err != nil {
					return status.Error(status.Code(err), err.Error()+c.req.(*v1.PullImageRequest).GetAuth().GetPassword())
				}
				return nil
			}),
		},
		{
			defect: "credentials are kept for the next pull", caseName: "credentials of one pull are not those of the next", report: "after one with them: succeeded",
			request: func() func(any) {
				var last *v1.AuthConfig
				return onRequest(func(r *v1.PullImageRequest) {
					if r.GetAuth() == nil {
						r.Auth = last
					}
					last = r.GetAuth()
				})
			}(),
		},
		{
			defect: "host ports are ignored", caseName: "a host port reaches its pod", report: "host_port", runs: hostProcesses,
			request: onRequest(func(r *v1.RunPodSandboxRequest) {
				for _, m := range r.GetConfig().GetPortMappings() {
					m.HostPort = 0
				}
			}),
		},
		{
			defect: "host ports outlive the stop of their pod", caseName: "a host port reaches its pod", report: "is served after its pod was stopped", runs: hostProcesses,
			call: doesNothing("StopPodSandbox"),
		},
		{
			defect: "CDI devices are ignored", caseName: devices, report: "CDI_devices: variable of the device",
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.CDIDevices = nil }),
		},
		{
			defect: "unknown CDI devices are ignored", caseName: unknown, report: "a container with an unknown device: succeeded",
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.CDIDevices = nil }),
		},
		{
			defect: "AppArmor profiles are ignored", caseName: apparmor, report: "apparmor RuntimeDefault: profile in the container",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.Apparmor = nil }),
		},
		{
			defect: "AppArmor cannot be turned off", caseName: apparmor, report: "apparmor Unconfined: profile in the container",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetApparmor() != nil && sc.Apparmor.GetProfileType() == v1.SecurityProfile_Unconfined {
					sc.Apparmor.ProfileType = v1.SecurityProfile_RuntimeDefault
				}
			}),
		},
		{
			defect: "AppArmor profiles that are not loaded are ignored", caseName: apparmor, report: "apparmor Localhost: a container with a profile that is not loaded: succeeded",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetApparmor().GetLocalhostRef() != "" {
					sc.Apparmor = nil
				}
			}),
		},
		{
			defect: "the SELinux level is ignored", caseName: labels, report: "selinux_options: label of the container",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetSelinuxOptions() != nil {
					sc.SelinuxOptions.Level = "s0"
				}
			}),
		},
		{
			defect: "selinux_relabel is ignored", caseName: labels, report: "selinux_relabel: content of a file",
			request: onMounts(func(m *v1.Mount) { m.SelinuxRelabel = false }),
		},
		{
			defect: "settings of cgroup v2 are ignored", caseName: "settings of cgroup v2 are passed on", report: "unified memory.high",
			request: onResources(func(r *v1.LinuxContainerResources) { r.Unified = nil }),
		},
		{
			defect: "limits of huge pages are ignored", caseName: "a limit of huge pages is in the cgroup", report: "hugepage_limits 2MB",
			request: onResources(func(r *v1.LinuxContainerResources) { r.HugepageLimits = nil }),
		},
		{
			defect: "mapped ids of mounts are ignored", caseName: owners, report: "uidMappings and gidMappings: owner",
			request: onMounts(func(m *v1.Mount) { m.UidMappings, m.GidMappings = nil, nil }),
		},
	}
}
