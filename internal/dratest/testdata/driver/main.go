// Command driver is a DRA driver made with Kubernetes' own helper for drivers
// (k8s.io/dynamic-resource-allocation/kubeletplugin). Its devices are CDI devices that set the
// variable DRA_DEVICE. The claims are those of a file: there is no API server.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

func main() {
	name := flag.String("name", "dra.sublet.dev", "name of the driver")
	registry := flag.String("registry", "", "directory in which drivers register")
	data := flag.String("data", "", "directory of the driver's socket")
	cdi := flag.String("cdi", "/var/run/cdi", "directory of CDI specifications")
	claims := flag.String("claims", "", "JSON file of a list of ResourceClaims")
	calls := flag.String("calls", "", "file to which calls are appended")
	flag.Parse()
	if err := run(*name, *registry, *data, *cdi, *claims, *calls); err != nil {
		log.Fatal(err)
	}
}

func run(name, registry, data, cdi, claims, calls string) error {
	text, err := os.ReadFile(claims)
	if err != nil {
		return err
	}
	var list resourcev1.ResourceClaimList
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	helper, err := kubeletplugin.Start(ctx, &driver{name, cdi, calls},
		kubeletplugin.DriverName(name), kubeletplugin.NodeName("node"), kubeletplugin.KubeClient(fake.NewSimpleClientset(&list)),
		kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	<-ctx.Done()
	helper.Stop()
	return nil
}

// driver implements kubeletplugin.DRAPlugin.
type driver struct{ name, cdi, calls string }

func (d *driver) spec(uid types.UID) string {
	return filepath.Join(d.cdi, d.name+"-"+string(uid)+".json")
}

func (d *driver) log(call string, uid types.UID) error {
	f, err := os.OpenFile(d.calls, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, call, uid)
	return err
}

// PrepareResourceClaims writes a CDI specification for each claim.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		if err := d.log("prepare", c.UID); err != nil {
			return nil, err
		}
		var result kubeletplugin.PrepareResult
		var devices []map[string]any
		for _, r := range c.Status.Allocation.Devices.Results {
			id := string(c.UID) + "-" + r.Device
			devices = append(devices, map[string]any{"name": id, "containerEdits": map[string]any{"env": []string{"DRA_DEVICE=" + r.Device}}})
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{d.name + "/device=" + id},
			})
		}
		text, err := json.Marshal(map[string]any{"cdiVersion": "0.3.0", "kind": d.name + "/device", "devices": devices})
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(d.cdi, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(d.spec(c.UID)+".new", text, 0o644); err != nil {
			return nil, err
		}
		if err := os.Rename(d.spec(c.UID)+".new", d.spec(c.UID)); err != nil {
			return nil, err
		}
		out[c.UID] = result
	}
	return out, nil
}

// UnprepareResourceClaims removes the specifications.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		err := d.log("unprepare", c.UID)
		if err == nil {
			err = os.Remove(d.spec(c.UID))
		}
		if os.IsNotExist(err) {
			err = nil
		}
		out[c.UID] = err
	}
	return out, nil
}

// WatchHealthStatus reports nothing: the devices have no health.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError logs errors of the background.
func (d *driver) HandleError(_ context.Context, err error, msg string) { log.Println(msg, err) }
