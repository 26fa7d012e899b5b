package podspec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// Quantities with which arithmetic would not end are rejected before they are parsed. Text that looks like one is not.
func TestDecode_HugeQuantities(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{"a":"1e99999"}},"spec":{%s,` +
		`"containers":[{"name":"c","image":"i","args":["1e99999"],"env":[{"name":"N","value":"1e99999"}%s],"resources":{%s}}],"volumes":[{"name":"v",%s}]}}`
	const volume = `"emptyDir":{"sizeLimit":"1Gi"}`
	decode := func(spec, env, resources, volume string) error {
		_, _, err := podspec.Decode(fmt.Appendf(nil, pod, spec, env, resources, volume), podspec.DecodeOptions{})
		return err
	}
	require.NoError(t, decode(`"hostname":"h"`, "", `"limits":{"cpu":"1e3","memory":1e6}`, volume))
	for _, number := range []string{`"1e99999"`, `"1E+99999"`, `"-1.5e-99999"`, `1e99999`, `"` + strings.Repeat("9", 200) + `"`} {
		for at, err := range map[string]error{
			"spec.containers[0].resources.limits.cpu":                      decode(`"hostname":"h"`, "", `"limits":{"cpu":`+number+`}`, volume),
			"spec.containers[0].resources.requests.cpu":                    decode(`"hostname":"h"`, "", `"requests":{"cpu":`+number+`}`, volume),
			"spec.containers[0].env[1].valueFrom.resourceFieldRef.divisor": decode(`"hostname":"h"`, `,{"name":"D","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":`+number+`}}}`, "", volume),
			"spec.overhead.cpu":                  decode(`"overhead":{"cpu":`+number+`}`, "", "", volume),
			"spec.resources.limits.cpu":          decode(`"resources":{"limits":{"cpu":`+number+`}}`, "", "", volume),
			"spec.volumes[0].emptyDir.sizeLimit": decode(`"hostname":"h"`, "", "", `"emptyDir":{"sizeLimit":`+number+`}`),
			"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage": decode(`"hostname":"h"`, "", "", `"ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":`+number+`}}}}}`),
		} {
			require.ErrorContains(t, err, at+": must be a quantity of less than 100 digits", number)
			assert.NotContains(t, err.Error(), "99999", "it may be long")
		}
	}
	_, _, err := podspec.Decode([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {divisor: 1e99999}\n"), podspec.DecodeOptions{})
	require.NoError(t, err)
	_, _, err = podspec.Decode([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {cpu: 1e99999}}}]}\n"), podspec.DecodeOptions{})
	require.ErrorContains(t, err, "spec.containers[0].resources.limits.cpu: ")
}

// So are those of pods that were made in Go.
func TestValidate_HugeQuantities(t *testing.T) {
	huge := resource.MustParse("1e99999")
	for at, change := range map[string]func(*corev1.Pod){
		"spec.containers[c].resources.limits[cpu]": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": huge}, Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		},
		"spec.containers[c].resources.limits[hugepages-1e-99999]": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-1e-99999": resource.MustParse("1")}
		},
		"spec.containers[c].env[0].valueFrom.resourceFieldRef.divisor": func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: huge}}}}
		},
		"spec.resources.requests[cpu]": func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": huge}}
		},
		"spec.overhead[cpu]": func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": huge} },
		"spec.volumes[0].emptyDir.sizeLimit": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &huge}}}}
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		pod.Name, pod.Namespace = "p", "default"
		podspec.Default(pod)
		change(pod)
		require.EqualError(t, podspec.Validate(pod), at+": Invalid value: must be a quantity of less than 100 digits and an exponent of at most three")
	}
}
