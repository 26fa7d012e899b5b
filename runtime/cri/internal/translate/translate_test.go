package translate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// quotaPeriod is the default of a node, in µs.
const quotaPeriod = 100_000

var rewrite = flag.Bool("update", false, "rewrite the golden files")

// fixture is one file of testdata: a pod and what it comes to.
type fixture struct {
	About    string
	Node     Node
	Features *Features
	Options  runtime.RunOptions
	Objects  []struct {
		Kind, Name string
		Data       map[string]string
	}
	Volumes  map[string]runtime.Volume
	SubPaths bool
	ImageIDs map[string]string
	IPs      []string
	Image    struct {
		UID      *int64
		Username string
	}
	Attempt uint32
	Step    int
	Target  string
	Pod     corev1.Pod
}

// objects are the objects of a fixture.
type objects map[podspec.Ref]podspec.Object

func (o objects) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	if got, ok := o[ref]; ok {
		return got, nil
	}
	return podspec.Object{}, podspec.ErrObjectNotFound
}

func (f *fixture) translator(t *testing.T) *Translator {
	f.Node.CPUQuotaPeriod = cmp.Or(f.Node.CPUQuotaPeriod, quotaPeriod*time.Microsecond)
	f.Node.SeccompRoot = cmp.Or(f.Node.SeccompRoot, "/var/lib/kubelet/seccomp")
	if f.Node.MemoryCapacity == 0 {
		f.Node.MemoryCapacity = 4 << 30
	}
	f.Pod.Name, f.Pod.Namespace, f.Pod.UID = "web", "shop", "uid-1"
	podspec.Default(&f.Pod)
	m := f.Options
	m.NodeName, m.HostIPs, m.Volumes = "edge-1", []string{"192.0.2.1", "2001:db8::1"}, f.Volumes
	m.Allocatable = corev1.ResourceList{"memory": resource.MustParse("4Gi"), "cpu": resource.MustParse("2"), "ephemeral-storage": resource.MustParse("9.5Gi")}
	all := objects{}
	for _, o := range f.Objects {
		ref := podspec.Ref{Kind: o.Kind, Namespace: "shop", Name: o.Name}
		data := map[string][]byte{}
		for k, v := range o.Data {
			data[k] = []byte(v)
		}
		all[ref] = podspec.Object{Ref: ref, Data: data}
	}
	m.Objects = all
	if f.SubPaths {
		m.SubPath = func(_ context.Context, container string, index int, vm corev1.VolumeMount) (string, error) {
			return fmt.Sprintf("/safe/%s/%d/%s", container, index, vm.SubPath), nil
		}
	}
	return &Translator{Node: f.Node, Features: f.Features, Pod: &f.Pod, Options: m, Owner: "node-1"}
}

// translate returns each field of the messages by its path.
func (f *fixture) translate(t *testing.T) map[string]any {
	out := map[string]any{}
	tr := f.translator(t)
	sandbox, err := tr.Sandbox(0)
	flatten(t, out, "sandbox", sandbox, err)
	for ct := range podspec.Containers(&f.Pod) {
		cfg, err := f.container(t.Context(), tr, ct)
		flatten(t, out, "container["+ct.Name+"]", cfg, err)
	}
	return out
}

func (f *fixture) container(ctx context.Context, tr *Translator, ct *corev1.Container) (*v1.ContainerConfig, error) {
	env, err := tr.Environment(ctx, ct, f.IPs)
	if err != nil {
		return nil, err
	}
	mounts, err := tr.Mounts(ctx, ct, env, f.ImageIDs)
	if err != nil {
		return nil, err
	}
	image := &v1.Image{Id: "sha256:busybox", Username: f.Image.Username, Uid: int64Value(f.Image.UID)}
	in := ContainerInput{Spec: ct, Attempt: f.Attempt, Image: image, Env: env, Mounts: mounts}
	in.Action = runtime.Action{Type: runtime.StartContainer, Container: ct.Name, BackOffStep: f.Step, ContainerType: kindOfContainer(&f.Pod, ct.Name)}
	if in.Action.ContainerType == runtime.Ephemeral {
		in.TargetID = f.Target
	}
	return tr.Container(in)
}

func kindOfContainer(pod *corev1.Pod, name string) runtime.ContainerType {
	for i := range pod.Spec.InitContainers {
		if ct := &pod.Spec.InitContainers[i]; ct.Name == name {
			if podspec.IsSidecar(ct) {
				return runtime.Sidecar
			}
			return runtime.Init
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return runtime.Ephemeral
		}
	}
	return runtime.Regular
}

func flatten(t *testing.T, out map[string]any, at string, msg proto.Message, err error) {
	if err != nil {
		out[at+" error"] = err.Error()
		return
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(msg)
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal(text, &tree))
	walk(out, at, tree)
}

func walk(out map[string]any, at string, node any) {
	switch n := node.(type) {
	case map[string]any:
		if len(n) == 0 {
			out[at] = n
		}
		for key, v := range n {
			walk(out, at+"/"+key, v)
		}
	case []any:
		// A list is one field, but for those of mounts, which are of interest
		// one by one. Bytes of env values are shown as text.
		for i, v := range n {
			if kv, ok := v.(map[string]any); ok {
				if strings.HasSuffix(at, "/envs") {
					kv["value"] = decoded(kv["value"])
				}
				walk(out, fmt.Sprintf("%s[%d]", at, i), kv)
				continue
			}
			out[at] = n
		}
	default:
		out[at] = n
	}
}

func decoded(v any) any {
	var raw []byte
	text, _ := json.Marshal(v)
	_ = json.Unmarshal(text, &raw)
	return string(raw)
}

// RT-11: each fixture's golden file tells in what its messages differ from
// those of the plain pod, field by field; null is a field that is not there.
func TestTranslation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 60)
	plain := read(t, "testdata/plain.yaml").translate(t)
	plain["container[main]/annotations/"+runtime.AnnotationHash] = "(hash)"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			got := read(t, file).translate(t)
			// The hash follows every field; its own test is elsewhere.
			for key := range got {
				if strings.HasSuffix(key, runtime.AnnotationHash) {
					got[key] = "(hash)"
				}
			}
			if filepath.Base(file) != "plain.yaml" {
				got = difference(plain, got)
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".golden.json", got)
		})
	}
}

func read(t *testing.T, file string) *fixture {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	f := new(fixture)
	require.NoError(t, yaml.UnmarshalStrict(text, f))
	return f
}

// difference holds each container against the plain pod's only one.
func difference(plain, got map[string]any) map[string]any {
	out := map[string]any{}
	messages := map[string]bool{}
	for key, v := range got {
		message, field, _ := strings.Cut(key, "/")
		messages[message] = true
		if was, ok := plain[plainName(message)+"/"+field]; !ok || !reflect.DeepEqual(was, v) {
			out[key] = v
		}
	}
	for key := range plain {
		name, field, _ := strings.Cut(key, "/")
		for message := range messages {
			if _, ok := got[message+"/"+field]; !ok && plainName(message) == name {
				out[message+"/"+field] = nil
			}
		}
	}
	return out
}

func plainName(message string) string {
	if strings.HasPrefix(message, "container[") && strings.HasSuffix(message, "]") {
		return "container[main]"
	}
	return message
}

func compareGolden(t *testing.T, file string, got map[string]any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(got))
	if *rewrite {
		require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), b.String())
}

// A group alone is of the image's user, or of root as under a kubelet: runtimes
// refuse a group without a user.
func TestTranslator_GroupWithoutUser(t *testing.T) {
	for name, tc := range map[string]struct {
		image    *v1.Image
		uid      *v1.Int64Value
		username string
	}{
		"the image has no user":      {&v1.Image{}, &v1.Int64Value{}, ""},
		"the image's user is known":  {&v1.Image{Uid: &v1.Int64Value{Value: 7}}, &v1.Int64Value{Value: 7}, ""},
		"the image's user is a name": {&v1.Image{Username: "app"}, nil, "app"},
		"the image is unknown":       {nil, &v1.Int64Value{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{
				SecurityContext: &corev1.PodSecurityContext{RunAsGroup: new(int64(1234))}, Containers: []corev1.Container{{Name: "main"}},
			}}
			sc, err := (&Translator{Pod: pod}).containerSecurity(&pod.Spec.Containers[0], tc.image, "")
			require.NoError(t, err)
			assert.Equal(t, int64(1234), sc.GetRunAsGroup().GetValue())
			assert.Equal(t, tc.uid, sc.GetRunAsUser())
			assert.Equal(t, tc.username, sc.GetRunAsUsername())
		})
	}
}
