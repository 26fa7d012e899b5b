package podsource

import (
	"slices"

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
		now = keep(last, now)
	}
	return now, err
}

// keep returns now together with what of last it does not name.
func keep(last, now content) content {
	pods := make(map[[2]string]bool, len(now.pods))
	for _, p := range now.pods {
		pods[written(p)] = true
	}
	objects := make(map[podspec.Ref]bool, len(now.objects))
	for i := range now.objects {
		objects[now.objects[i].Ref] = true
	}
	out := content{pods: slices.Clip(now.pods), objects: slices.Clip(now.objects)}
	for _, p := range last.pods {
		if !pods[written(p)] {
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

// written is a pod's name as it stands in a manifest, where no namespace means
// the default one.
func written(p *corev1.Pod) [2]string {
	if p.Namespace == "" {
		return [2]string{corev1.NamespaceDefault, p.Name}
	}
	return [2]string{p.Namespace, p.Name}
}
