package podsource

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// content is what one file or answer stands for. It is read-only once made.
type content struct {
	pods    []*corev1.Pod
	objects []podspec.Object
	kept    []*corev1.Pod // those of pods that are from an older version
}

// parse reads the new version of what used to stand for last. With an error,
// everything of last that the new version does not name is still there: what
// cannot be read may be just that.
func parse(data []byte, opt podspec.DecodeOptions, last content) (content, error) {
	pods, objects, err := podspec.Decode(data, opt)
	now := content{pods: pods, objects: objects}
	if err != nil {
		now.objects = sound(objects, err)
		now = keep(last, now)
	}
	return now, err
}

// sound returns the objects of documents that have no fault. Part of a Secret is
// worse than its last good version, so that what a fault may be about is left out.
func sound(objects []podspec.Object, err error) []podspec.Object {
	faulty := map[string]bool{}
	lists := false
	for _, fault := range each(err) {
		if d, ok := errors.AsType[*podspec.DocumentError](fault); ok {
			faulty[d.Object] = true
			kind, _, _ := strings.Cut(d.Object, " ")
			lists = lists || strings.HasSuffix(kind, "List")
		}
	}
	return slices.DeleteFunc(slices.Clone(objects), func(o podspec.Object) bool {
		return lists || faulty[o.Kind+" "+o.Namespace+"/"+o.Name] ||
			o.Namespace == corev1.NamespaceDefault && faulty[o.Kind+" "+o.Name]
	})
}

// each returns the errors that were joined to err.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// keep returns now together with what of last it does not name.
func keep(last, now content) content {
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
			out.kept = append(out.kept, p)
		}
	}
	for _, o := range last.objects {
		if !objects[o.Ref] {
			out.objects = append(out.objects, o)
		}
	}
	return out
}

// all is c as it is when none of it could be read again.
func (c content) all() content {
	c.kept = c.pods
	return c
}

// only returns the pod that was kept if there is just one.
func (c content) only() *corev1.Pod {
	if len(c.kept) == 1 {
		return c.kept[0]
	}
	return nil
}

// nameInManifest is a pod's name as it stands in a manifest, where no namespace means
// the default one.
func nameInManifest(p *corev1.Pod) [2]string {
	if p.Namespace == "" {
		return [2]string{corev1.NamespaceDefault, p.Name}
	}
	return [2]string{p.Namespace, p.Name}
}
