package podspec

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const web = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: c
    image: busybox
`

func names(pods []*corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

// SR-2: several documents and lists, YAML and JSON.
func TestDecode_Forms(t *testing.T) {
	pod := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`, name)
	}
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"one YAML document":            {web, []string{"web"}},
		"documents with comments":      {"# hello\n\n---\n# a\n" + web + "---\n\n# nothing\n---\n" + strings.Replace(web, "web", "two", 1) + "...\n# end\n", []string{"web", "two"}},
		"Windows line ends":            {strings.ReplaceAll(web+"---\n"+web, "\n", "\r\n"), []string{"web", "web"}},
		"a byte order mark":            {"\xef\xbb\xbf" + web, []string{"web"}},
		"content on the marker's line": {"--- " + pod("a") + "\n--- # note\n" + web, []string{"a", "web"}},
		"a document after its end":     {web + "...\n" + web, []string{"web", "web"}},
		"a directive":                  {"%YAML 1.2\n---\n" + web, []string{"web"}},
		"YAML flow":                    {"{apiVersion: v1, kind: Pod, metadata: {name: flow}}", []string{"flow"}},
		"JSON":                         {pod("a"), []string{"a"}},
		"JSON values in a row":         {pod("a") + "\n\n" + pod("b") + pod("c"), []string{"a", "b", "c"}},
		"JSON between markers":         {pod("a") + "\n---\n" + pod("b"), []string{"a", "b"}},
		"a List":                       {`{"apiVersion":"v1","kind":"List","items":[` + pod("a") + "," + pod("b") + "]}", []string{"a", "b"}},
		"a PodList":                    {"apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: bare}\n- " + pod("full"), []string{"bare", "full"}},
		"a List in a List":             {`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + pod("a") + "]}]}", []string{"a"}},
		"an empty List":                {"apiVersion: v1\nkind: List\nitems: []", nil},
		"markers inside a scalar":      {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations:\n    a: |\n      ---\n      x\n", []string{"web"}},
		"anchors":                      {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: &n web\n  labels: {a: *n}\n", []string{"web"}},
	} {
		t.Run(name, func(t *testing.T) {
			pods, objects, err := Decode([]byte(tc.in), DecodeOptions{})
			require.NoError(t, err)
			assert.Empty(t, objects)
			assert.Equal(t, tc.want, names(pods))
			for _, p := range pods {
				assert.Equal(t, "v1 Pod", p.APIVersion+" "+p.Kind)
			}
		})
	}
}

func TestDecode_Objects(t *testing.T) {
	pods, objects, err := Decode([]byte(`
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: ns}
data: {a: "1"}
binaryData: {b: AAE=}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
data: {user: YWRtaW4=, pass: b2xk}
stringData: {pass: new}
---
apiVersion: v1
kind: SecretList
items:
- metadata: {name: in-list}
  type: kubernetes.io/tls
`), DecodeOptions{})
	require.NoError(t, err)
	assert.Empty(t, pods)
	require.Len(t, objects, 3)
	assert.Equal(t, Ref{ConfigMap, "ns", "c"}, objects[0].Ref)
	assert.Equal(t, map[string][]byte{"a": []byte("1"), "b": {0, 1}}, objects[0].Data)
	assert.Equal(t, map[string]bool{"b": true}, objects[0].BinaryKeys)
	assert.Equal(t, Ref{Secret, "default", "s"}, objects[1].Ref)
	assert.Equal(t, map[string][]byte{"user": []byte("admin"), "pass": []byte("new")}, objects[1].Data)
	assert.Equal(t, corev1.SecretTypeOpaque, objects[1].Type)
	assert.Equal(t, corev1.SecretTypeTLS, objects[2].Type)
}

func TestObject_VersionDependsOnContent(t *testing.T) {
	of := func(data map[string]string) string {
		return FromConfigMap(&corev1.ConfigMap{Data: data}).Version
	}
	assert.Equal(t, of(map[string]string{"a": "1", "b": "2"}), of(map[string]string{"b": "2", "a": "1"}))
	versions := map[string]bool{}
	for _, data := range []map[string]string{nil, {"a": "1"}, {"a": "12"}, {"a1": "2"}, {"a": "1", "b": ""}, {"a": "", "b": "1"}} {
		assert.False(t, versions[of(data)], "%v has the version of another", data)
		versions[of(data)] = true
	}
	binary := FromConfigMap(&corev1.ConfigMap{BinaryData: map[string][]byte{"a": []byte("1")}})
	assert.False(t, versions[binary.Version], "text can be binary data")
	both := FromConfigMap(&corev1.ConfigMap{Data: map[string]string{"a": "1"}, BinaryData: map[string][]byte{"a": []byte("2")}})
	assert.Equal(t, of(map[string]string{"a": "1"}), both.Version, "the data counts")
}

// SP-2, SR-4: every error has its location, and other documents are decoded.
func TestDecode_InvalidDocuments(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want []string // all of it in the error
		pods int
	}{
		"unknown fields, all of them": {
			web + "    imagee: x\n    portz: []\n  restartPolice: Never\n",
			[]string{"document 1 (line 1, Pod web)", `unknown field "spec.containers[0].imagee"`, `unknown field "spec.containers[0].portz"`, `unknown field "spec.restartPolice"`},
			0,
		},
		"the case of a field":  {strings.Replace(web, "containers", "Containers", 1), []string{`unknown field "spec.Containers"`}, 0},
		"a repeated key":       {web + "kind: Pod\n", []string{"document 1 (line 1)", "line 9", `"kind" already set`}, 0},
		"a repeated JSON key":  {`{"apiVersion":"v1","kind":"Pod","kind":"Pod"}`, []string{`duplicate field "kind"`}, 0},
		"one of three is bad":  {web + "---\n\n# x\nkind: [\n---\n" + web, []string{"document 2 (line 12)"}, 2},
		"a wrong type":         {strings.Replace(web, "name: web", "name: [s3cret]", 1), []string{"metadata.name: want string, is array"}, 0},
		"another kind":         {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}", []string{"document 1 (line 1, Deployment d)", "kind Deployment of apps/v1"}, 0},
		"another v1 kind":      {"apiVersion: v1\nkind: Service\nmetadata: {name: d, namespace: nn}", []string{"Service nn/d", "kind Service of v1"}, 0},
		"no kind":              {"apiVersion: v1\nmetadata: {name: d}", []string{"kind: required"}, 0},
		"no apiVersion":        {"kind: Pod", []string{"apiVersion: required"}, 0},
		"a scalar":             {"hello", []string{"not a Kubernetes object"}, 0},
		"a list":               {"- a\n- b", []string{"not a Kubernetes object"}, 0},
		"half of a JSON file":  {`{"apiVersion":"v1","kind":"Pod","metadata":{"na`, []string{"document 1 (line 1)"}, 0},
		"rubbish after JSON":   {"{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}\n\n}", []string{"document 2 (line 3)"}, 1},
		"members of a list":    {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: v1, kind: Node, metadata: {name: nn}}\n- 7\n", []string{"items[1] Node nn: unsupported kind Node", "items[2]", "not a Kubernetes object"}, 1},
		"a bad quantity":       {web + "    resources: {limits: {cpu: lots}}\n", []string{"quantities must match"}, 0},
		"base64 that is none":  {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: '%%%'}", []string{"Secret s", "illegal base64"}, 0},
		"an object's bad name": {"apiVersion: v1\nkind: Secret\nmetadata: {name: ../s}\nstringData: {a/b: c}", []string{"metadata.name", "data[a/b]"}, 0},
		"a tab":                {"apiVersion: v1\n\tkind: Pod", []string{"line 2", "document 1 (line 1)"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pods, _, err := Decode([]byte(tc.in), DecodeOptions{})
			require.Error(t, err)
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
			assert.NotContains(t, err.Error(), "s3cret")
			assert.Len(t, pods, tc.pods)
			_, ok := errors.AsType[*DocumentError](err)
			assert.True(t, ok, "no DocumentError: %v", err)
		})
	}
}

func TestDecode_Lenient(t *testing.T) {
	pods, _, err := Decode([]byte(web+"    new: 1\nkind: Pod\n"), DecodeOptions{Lenient: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"web"}, names(pods))
}

func TestDecode_NoDocument(t *testing.T) {
	for _, in := range []string{"", "\n \n", "# only words\n", "---\n---\n", "\xef\xbb\xbf", "...\n"} {
		_, _, err := Decode([]byte(in), DecodeOptions{})
		assert.ErrorIs(t, err, ErrNoDocument, "%q", in)
	}
}

// Input made to hurt is refused, and soon.
func TestDecode_HostileInput(t *testing.T) {
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 9; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	fat := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a, ", 99) + "*a]\n"
	for name, tc := range map[string]struct {
		in   []byte
		want string
		is   error
	}{
		"more bytes than allowed":    {bytes.Repeat([]byte("#"), DefaultMaxBytes+1), "10485761 bytes", ErrTooLarge},
		"a program":                  {[]byte("\x7fELF\x02\x00\x00"), "zero byte at offset 5", nil},
		"UTF-16":                     {[]byte("a\x00p\x00i\x00"), "zero byte", nil},
		"Latin 1":                    {[]byte("a: \xe9"), "UTF-8", nil},
		"aliases of aliases":         {[]byte(bomb), "expanded aliases", ErrTooLarge},
		"aliases of one long scalar": {[]byte(fat), "expanded aliases", ErrTooLarge},
		"an anchor in itself":        {[]byte("a: &a [*a]"), "contains itself", nil},
		"documents without end":      {bytes.Repeat([]byte("---\nx\n"), 20_000), "more than 10000 documents", nil},
		"deep nesting":               {bytes.Repeat([]byte("["), 1<<20), "depth", nil},
		"deep JSON":                  {append([]byte(`{"a":`), bytes.Repeat([]byte("["), 1<<20)...), "depth", nil},
		"deep lists":                 {[]byte(strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 20) + strings.Repeat("]}", 20)), "lists in lists", ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Decode(tc.in, DecodeOptions{})
			require.Error(t, err)
			assert.Contains(t, err.Error()[max(0, len(err.Error())-4000):]+err.Error()[:min(4000, len(err.Error()))], tc.want)
			assert.Less(t, len(err.Error()), 1<<14)
			if tc.is != nil {
				assert.ErrorIs(t, err, tc.is)
			}
		})
	}
	_, _, err := Decode([]byte("01234"), DecodeOptions{MaxBytes: 4})
	assert.ErrorIs(t, err, ErrTooLarge)
}
