package podsource

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// content is the content of one file or response. It is read-only once made.
type content struct {
	pods     []*corev1.Pod
	objects  []podspec.Object
	retained []*corev1.Pod // those of pods that are from an older version
}

// parse decodes the new version of a manifest whose previous content is last. With an
// error, the result contains everything of last that the new version does not name,
// because the undecodable part may contain it.
func parse(data []byte, opt podspec.DecodeOptions, last content) (content, error) {
	pods, objects, err := podspec.Decode(data, opt)
	now := content{pods: pods, objects: objects}
	if err != nil {
		now.objects = validObjects(objects, err)
		now = retain(last, now)
	}
	return now, err
}

// validObjects returns the objects of documents without errors. Objects that an error
// may be about are left out: the last valid version of a Secret is better than a part
// of it.
func validObjects(objects []podspec.Object, err error) []podspec.Object {
	invalid := map[string]bool{}
	lists := false
	for _, e := range unjoin(err) {
		if d, ok := errors.AsType[*podspec.DocumentError](e); ok {
			invalid[d.Object] = true
			kind, _, _ := strings.Cut(d.Object, " ")
			lists = lists || strings.HasSuffix(kind, "List")
		}
	}
	return slices.DeleteFunc(slices.Clone(objects), func(o podspec.Object) bool {
		return lists || invalid[o.Kind+" "+o.Namespace+"/"+o.Name] ||
			o.Namespace == corev1.NamespaceDefault && invalid[o.Kind+" "+o.Name]
	})
}

// unjoin returns the errors that are joined in err.
func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// retain returns now with the pods and objects of last that it does not contain.
func retain(last, now content) content {
	pods := make(map[[2]string]bool, len(now.pods))
	for _, p := range now.pods {
		pods[nameInManifest(p)] = true
	}
	objects := make(map[podspec.Ref]bool, len(now.objects))
	for i := range now.objects {
		objects[now.objects[i].Ref] = true
	}
	out := content{pods: slices.Clip(now.pods), objects: slices.Clip(now.objects)}
	for _, p := range last.pods {
		if !pods[nameInManifest(p)] {
			out.pods = append(out.pods, p)
			out.retained = append(out.retained, p)
		}
	}
	for _, o := range last.objects {
		if !objects[o.Ref] {
			out.objects = append(out.objects, o)
		}
	}
	return out
}

// allRetained returns c with all pods marked as retained.
func (c content) allRetained() content {
	c.retained = c.pods
	return c
}

// onlyRetained returns the retained pod if there is exactly one.
func (c content) onlyRetained() *corev1.Pod {
	if len(c.retained) == 1 {
		return c.retained[0]
	}
	return nil
}

// nameInManifest returns namespace and name of a pod from a manifest, in which an empty
// namespace is the default one.
func nameInManifest(p *corev1.Pod) [2]string {
	if p.Namespace == "" {
		return [2]string{corev1.NamespaceDefault, p.Name}
	}
	return [2]string{p.Namespace, p.Name}
}
