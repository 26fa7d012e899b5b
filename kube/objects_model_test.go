package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// objectsModel knows which content of a Secret a pod may get.
type objectsModel struct {
	*objectsBench
	rand     *rand.Rand
	versions map[string][]secretVersion // by name, in the order of time; the last one is current
	pods     []*modelPod
	made     int       // versions and pods
	awayTo   time.Time // end of the last time without answers
	back     func()
}

// secretVersion is the content of a Secret for some time, or that there is none.
type secretVersion struct {
	text      string // "": there is none
	immutable bool
	from, to  time.Time // to is zero for the current one
}

type modelPod struct {
	uid     types.UID
	names   []string // of Secrets
	madeAt  time.Time
	hasDone bool
}

var modelNames = []string{"s0", "s1", "s2"}

func (m *objectsModel) current(name string) *secretVersion {
	versions := m.versions[name]
	return &versions[len(versions)-1]
}

func (m *objectsModel) setVersion(name, text string, immutable bool) {
	now := time.Now()
	m.current(name).to = now
	m.versions[name] = append(m.versions[name], secretVersion{text: text, immutable: immutable, from: now})
}

// publish tells the objects which pods there are.
func (m *objectsModel) publish() {
	var pods []*corev1.Pod
	for _, p := range m.pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(p.uid), UID: p.uid}}
		for _, name := range p.names {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
		}
		if p.hasDone {
			pod.Status.Phase = corev1.PodSucceeded
		}
		pods = append(pods, pod)
	}
	m.setPods(pods...)
}

// changeServer creates, updates or deletes a Secret.
func (m *objectsModel) changeServer(name string) {
	secrets := m.client.CoreV1().Secrets("default")
	m.made++
	text, immutable := fmt.Sprint("v", m.made), m.rand.IntN(2) == 0
	secret := newSecret(text)
	secret.Name, secret.Immutable = name, &immutable
	var err error
	switch c := m.current(name); {
	case m.back != nil:
		return // the fake server rejects it
	case c.text == "":
		_, err = secrets.Create(m.t.Context(), secret, metav1.CreateOptions{})
	case c.immutable || m.rand.IntN(3) == 0:
		err, text, immutable = secrets.Delete(m.t.Context(), name, metav1.DeleteOptions{}), "", false
	default:
		_, err = secrets.Update(m.t.Context(), secret, metav1.UpdateOptions{})
	}
	require.NoError(m.t, err)
	m.setVersion(name, text, immutable)
}

// ask has a pod get one of its Secrets.
func (m *objectsModel) ask(p *modelPod) {
	name := p.names[m.rand.IntN(len(p.names))]
	o, err := m.objects.Object(m.t.Context(), podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: name})
	if err != nil && !errors.Is(err, podspec.ErrObjectNotFound) {
		require.False(m.t, m.isStrict(), "%s: %v", name, err)
		return
	}
	text := string(o.Data["k"])
	for _, v := range m.versions[name] {
		if v.text == text && m.mayHave(name, &v) {
			return
		}
	}
	require.Fail(m.t, "content of another time", "%s gets %q of %s, which has %+v; pods %+v", p.uid, text, name, m.versions[name], m.podTexts())
}

func (m *objectsModel) podTexts() (texts []string) {
	for _, p := range m.pods {
		texts = append(texts, fmt.Sprintf("%+v", *p))
	}
	return texts
}

// isStrict reports whether the API server has answered for long.
func (m *objectsModel) isStrict() bool {
	return m.back == nil && (m.awayTo.IsZero() || time.Since(m.awayTo) > 2*maxFollowBackOff)
}

// mayHave reports whether a pod may get that version now.
func (m *objectsModel) mayHave(name string, v *secretVersion) bool {
	switch {
	case !m.isStrict(), v.to.IsZero(), time.Since(v.to) < time.Second:
		return true
	case !v.immutable:
		return false
	}
	return slices.ContainsFunc(m.pods, func(p *modelPod) bool { // which pods have it is noted once a second
		return !p.hasDone && slices.Contains(p.names, name) && p.madeAt.Before(v.to.Add(objectsPeriod))
	})
}

func (m *objectsModel) step() {
	running := slices.DeleteFunc(slices.Clone(m.pods), func(p *modelPod) bool { return p.hasDone })
	switch n := m.rand.IntN(20); {
	case n < 4:
		m.changeServer(modelNames[m.rand.IntN(len(modelNames))])
	case n < 8 && len(m.pods) < 6:
		m.made++
		names := slices.DeleteFunc(slices.Clone(modelNames), func(string) bool { return m.rand.IntN(2) == 0 })
		if len(names) == 0 {
			names = modelNames[:1]
		}
		m.pods = append(m.pods, &modelPod{uid: types.UID(fmt.Sprint("p", m.made)), names: names, madeAt: time.Now()})
	case n < 10 && len(running) > 0:
		running[m.rand.IntN(len(running))].hasDone = true
	case n < 12 && len(m.pods) > 0:
		i := m.rand.IntN(len(m.pods))
		m.pods = slices.Delete(m.pods, i, i+1)
	case n == 12 && m.back == nil:
		m.back = m.unreachable()
	case n < 15 && m.back != nil:
		m.back()
		m.back, m.awayTo = nil, time.Now()
	case len(running) > 0:
		m.ask(running[m.rand.IntN(len(running))])
	}
	m.publish()
	m.wait([]time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, time.Minute, 5 * time.Minute}[m.rand.IntN(6)])
}

// Whatever happens to Secrets and pods, a pod gets what the API server has, or what pods have that run since before an
// immutable Secret was made once more.
func TestObjects_AsTheServerHasThem(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := ""
				if seed%2 == 0 {
					dir = t.TempDir()
				}
				m := &objectsModel{objectsBench: startObjects(t, dir), rand: rand.New(rand.NewPCG(seed, 0)), versions: map[string][]secretVersion{}} //nolint:gosec // a test
				for _, name := range modelNames {
					m.versions[name] = []secretVersion{{from: time.Now()}}
				}
				m.run()
				for range 80 {
					m.step()
				}
				for _, p := range m.pods {
					p.hasDone = true
				}
				m.publish()
				m.wait(time.Minute)
				assert.Empty(t, m.objects.followed)
			})
		})
	}
}
