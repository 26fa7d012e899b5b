package podspec_test

import (
	"fmt"

	"github.com/sublet-dev/agent/podspec"
)

// The way of a manifest: read, given its identity and its defaults, checked.
func Example() {
	pods, _, err := podspec.Decode([]byte(`
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: nginx
    image: nginx:1
    resources: {limits: {cpu: 500m, memory: 64Mi}}
`), podspec.DecodeOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := pods[0]
	podspec.AssignStaticIdentity(pod, "edge-1", "file", "/etc/sublet/manifests/web.yaml")
	podspec.Default(pod)
	fmt.Println(podspec.FullName(pod), podspec.QOS(pod), podspec.Validate(pod))

	pod.Spec.Containers[0].Name = "No_Label"
	pod.Spec.RestartPolicy = "Sometimes"
	fmt.Println(podspec.Validate(pod) != nil)
	// Output:
	// web-edge-1_default Guaranteed <nil>
	// true
}

func ExampleExpand() {
	env := map[string]string{"PORT": "8080"}
	fmt.Println(podspec.Expand("--listen=:$(PORT) $$(PORT) $(HOST)", func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}))
	// Output: --listen=:8080 $(PORT) $(HOST)
}
