package podsource_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// fileSourceEnv is a Mux with a file source, whose notifier the test triggers.
type fileSourceEnv struct {
	*muxEnv
	dir *files
	k   *fakeNotifier
}

func play(t *testing.T, content map[string]string, opts ...podsource.FileOption) *fileSourceEnv {
	t.Helper()
	s := &fileSourceEnv{dir: manifestDir(content), k: newFakeNotifier()}
	opts = append([]podsource.FileOption{podsource.FileFS(s.dir), podsource.FileNotifier(s.k)}, opts...)
	s.muxEnv = start(t, podsource.File("m", opts...))
	return s
}

// after waits until a change is processed and returns the delivered changes.
func (s *fileSourceEnv) after() []string {
	s.k.notify()
	time.Sleep(100 * time.Millisecond) // SR-5
	return s.delivered()
}

// SR-2: only files with the suffix of a manifest are read.
func TestFile_SelectsManifests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, map[string]string{
			"a.yaml":       manifest("a", "1") + "---\n" + manifest("b", "1"),
			"c.yml":        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: c, image: '1'}]}}\n",
			"d.json":       `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d"},"spec":{"containers":[{"name":"c","image":"1"}]}}`,
			".hidden.yaml": manifest("hidden", "1"),
			"notes.txt":    "nothing",
			"backup.yaml~": manifest("backup", "1"),
			"yaml":         manifest("withoutPath", "1"),
			"sub/e.yaml":   manifest("e", "1"),
			"f.yaml/g":     "a manifestDir with such a name",
		})
		assert.Equal(t, []string{"ADD a a-n1=1 b-n1=1 c-n1=1 d-n1=1"}, s.delivered())
		assert.Empty(t, s.errors())
		assert.True(t, s.mux.HasSynced("a"))
	})
}

// SR-2: the path may be one file of any name.
func TestFile_SingleFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(map[string]string{"pods": manifest("x", "1"), "other.yaml": manifest("y", "1")}), newFakeNotifier()
		s := fileSourceEnv{start(t, podsource.File("m/pods", podsource.FileFS(dir), podsource.FileNotifier(k))), dir, k}
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.delivered())
		dir.write("pods", manifest("x", "2"))
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, s.after())
		dir.remove("pods")
		assert.Equal(t, []string{"REMOVE a x-n1=2"}, s.after(), "gone from a manifestDir that is there")
		assert.Contains(t, s.errors(), "m/pods: manifest path not found")
		dir.write("pods", manifest("x", "2"))
		assert.Equal(t, []string{"ADD a x-n1=2"}, s.after())
		assert.Empty(t, s.errors())
	})
}

// SR-4: whatever a manifest turns into, its pods run on until it is well or gone.
func TestFile_KeepsLastGoodVersion(t *testing.T) {
	five := `apiVersion: v1
kind: Pod
metadata: {name: Bad_Name}
spec:
  restartPolicy: Sometimes
  containers:
  - {name: c, image: "", ports: [{containerPort: 70000}], volumeMounts: [{name: nowhere, mountPath: /x}]}
`
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for _, c := range "bcdefghi" {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "*" + string(c-1) + "]\n"
	}
	for name, tc := range map[string]struct {
		data string
		want []string // in the error
	}{
		"empty":           {"", []string{"input contains no document"}},
		"only comments":   {"# nothing yet\n", []string{"input contains no document"}},
		"binary":          {"\x7fELF\x00\x00\x01", []string{"zero byte"}},
		"half written":    {manifest("x", "2")[:40], nil},
		"a half token":    {manifest("x", "2") + "    ima", []string{"document 1 (line 1"}},
		"another kind":    {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n", []string{"kind Deployment of apps/v1"}},
		"a long kind":     {"apiVersion: v1\nkind: " + strings.Repeat("é", 1000) + "\n", []string{"unsupported kind é"}},
		"a longer kind":   {"apiVersion: v1\nkind: x" + strings.Repeat("é", 1000) + "\n", []string{"unsupported kind xé"}},
		"unknown fields":  {manifest("x", "2") + "    imagee: y\n", []string{"imagee"}},
		"a YAML bomb":     {bomb, []string{"input too large"}},
		"too large":       {strings.Repeat("#", podsource.DefaultMaxBytes+1), []string{"manifest exceeds 10485760 bytes", "split or shorten"}},
		"invalid in five": {five, []string{"metadata.name", "spec.restartPolicy", "containers[0].image", "ports[0].containerPort", "volumeMounts[0].name"}},
		"what needs an API server": {
			strings.Replace(manifest("x", "2"), "spec:\n", "spec:\n  serviceAccountName: robot\n", 1),
			[]string{"serviceAccountName"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := play(t, map[string]string{"x.yaml": manifest("x", "1"), "y.yaml": manifest("y", "1")})
				s.delivered()
				s.dir.write("x.yaml", tc.data)
				assert.Empty(t, s.after())
				assert.Equal(t, []string{"x-n1=1", "y-n1=1"}, sorted(s.desired()))
				faults := s.mux.Errors()
				require.Len(t, faults, 1)
				assert.Equal(t, "m/x.yaml", faults[0].Location)
				require.NotNil(t, faults[0].RetainedPod)
				assert.Equal(t, "x-n1", faults[0].RetainedPod.Name)
				for _, want := range tc.want {
					assert.ErrorContains(t, faults[0], want)
				}
				require.Len(t, s.events, 1)
				assert.Equal(t, "x-n1", s.events[0].InvolvedObject.Name)
				assert.LessOrEqual(t, len(s.events[0].Message), 1024)
				assert.True(t, utf8.ValidString(s.events[0].Message), "not cut within a character")
				assert.True(t, s.mux.HasSynced("a"))

				s.dir.write("y.yaml", manifest("y", "2"))
				assert.Equal(t, []string{"REMOVE a y-n1=1", "ADD a y-n1=2"}, s.after(), "others are untouched")
				s.dir.write("x.yaml", manifest("x", "3"))
				assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=3"}, s.after(), "a good version")
				assert.Empty(t, s.errors())
				s.dir.write("x.yaml", tc.data)
				assert.Empty(t, s.after())
				s.dir.remove("x.yaml")
				assert.Equal(t, []string{"REMOVE a x-n1=3"}, s.after(), "gone for good")
			})
		})
	}
}

func sorted(names []string) []string {
	out := append([]string(nil), names...)
	for i := range out {
		for j := i; j > 0 && out[j] < out[j-1]; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

// SR-4 within one file: good documents count, broken ones keep what they may
// have described, and a document that is gone from a good file ends its pod.
func TestFile_InvalidDocumentAmongValidOnes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		doc := func(parts ...string) string { return strings.Join(parts, "---\n") }
		s := play(t, map[string]string{"all.yaml": doc(manifest("x", "1"), manifest("y", "1"), manifest("z", "1"))})
		s.delivered()
		s.dir.write("all.yaml", doc(manifest("x", "2"), "kind: [\n", manifest("z", "1")))
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, s.after())
		assert.Contains(t, s.errors(), "document 2")
		assert.Equal(t, "y-n1", s.mux.Errors()[0].RetainedPod.Name)

		s.dir.write("all.yaml", doc(manifest("x", "2"), "kind: ["))
		assert.Empty(t, s.after(), "z may have been in what is broken")
		s.dir.write("all.yaml", doc(manifest("x", "2"), manifest("y", "")))
		assert.Empty(t, s.after(), "and in what is invalid")
		s.dir.write("all.yaml", doc(manifest("x", "2"), manifest("y", "1")))
		assert.Equal(t, []string{"REMOVE a z-n1=1"}, s.after())
		assert.Empty(t, s.errors())
	})
}

// SR-4, SR-8: a manifest that is bad when the agent starts has no good version,
// but a pod of it may run from before. It must not be taken for an orphan.
func TestFile_InvalidFromTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, map[string]string{"x.yaml": "kind: [", "y.yaml": manifest("y", "1")})
		assert.Equal(t, []string{"ADD a y-n1=1"}, s.delivered())
		assert.False(t, s.mux.HasSynced("a"))
		assert.True(t, s.mux.MayBeDesired("a", "default", "x-n1"))
		assert.False(t, s.mux.MayBeDesired("a", "default", "y-n1"), "an older version of y is not what x describes")
		assert.Equal(t, "Node", s.events[0].InvolvedObject.Kind)

		s.dir.write("x.yaml", manifest("x", ""))
		assert.Empty(t, s.after())
		assert.True(t, s.mux.MayBeDesired("a", "default", "x-n1"), "now its name is known")
		assert.False(t, s.mux.MayBeDesired("a", "default", "stray-n1"))
		assert.False(t, s.mux.HasSynced("a"))

		s.dir.write("x.yaml", manifest("x", "1"))
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.after())
		assert.True(t, s.mux.HasSynced("a"))
		assert.False(t, s.mux.MayBeDesired("a", "default", "x-n1"))

		s.dir.write("new.yaml", "kind: [")
		s.after()
		assert.True(t, s.mux.HasSynced("a"), "what was never good since then never ran")
	})
}

// The manifest directory is missing, unreadable, not a directory, or removed and
// created again.
func TestFile_UnreadableDirectory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(nil), newFakeNotifier()
		dir.change(func(m fstest.MapFS) { delete(m, "m") })
		s := fileSourceEnv{start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k))), dir, k}
		assert.Empty(t, s.delivered())
		assert.Contains(t, s.errors(), "m: manifest path not found; create it")
		assert.False(t, s.mux.HasSynced("a"))
		assert.True(t, s.mux.MayBeDesired("a", "default", "x-n1"))

		dir.change(func(m fstest.MapFS) { m["m"] = &fstest.MapFile{Mode: fs.ModeNamedPipe} })
		s.after()
		assert.Contains(t, s.errors(), "manifest path is a named pipe; it must be a directory")

		dir.change(func(m fstest.MapFS) { m["m"] = &fstest.MapFile{Mode: fs.ModeDir} })
		dir.write("x.yaml", manifest("x", "1"))
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.after())
		assert.Empty(t, s.errors())
		assert.True(t, s.mux.HasSynced("a"))

		dir.fail("m", fs.ErrPermission)
		assert.Empty(t, s.after())
		assert.Contains(t, s.errors(), "permission denied; check its permissions")
		dir.fail("m", nil)

		dir.change(func(m fstest.MapFS) { clear(m) })
		assert.Empty(t, s.after(), "nothing that runs is harmed by a manifestDir that is missing")
		assert.Equal(t, []string{"x-n1=1"}, s.desired())
		assert.Contains(t, s.errors(), "manifest path not found")
		dir.change(func(m fstest.MapFS) { m["m"] = &fstest.MapFile{Mode: fs.ModeDir} })
		dir.write("y.yaml", manifest("y", "1"))
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a y-n1=1"}, s.after())
		assert.Empty(t, s.errors())
	})
}

// Files that are no files, cannot be read, or vanish under the reader.
func TestFile_UnreadableFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, map[string]string{"x.yaml": manifest("x", "1"), "y.yaml": manifest("y", "1"), "z.yaml": manifest("z", "1")})
		s.delivered()
		s.dir.change(func(m fstest.MapFS) { m["m/pipe.yaml"] = &fstest.MapFile{Mode: fs.ModeNamedPipe} })
		s.dir.change(func(m fstest.MapFS) { m["m/zero.json"] = &fstest.MapFile{Mode: fs.ModeDevice} })
		s.dir.fail("m/x.yaml", errors.New("input/output error"))
		s.dir.fail("m/y.yaml", fs.ErrPermission)
		assert.Empty(t, s.after())
		faults := s.errors()
		for _, want := range []string{
			"m/pipe.yaml: not a regular file but a named pipe", "m/zero.json: not a regular file but a device",
			"m/x.yaml: open: input/output error", "m/y.yaml: open: permission denied",
		} {
			assert.Contains(t, faults, want)
		}
		s.dir.fail("m/z.yaml", fs.ErrNotExist)
		assert.Equal(t, []string{"REMOVE a z-n1=1"}, s.after(), "listed, and gone when it was opened")
		for _, name := range []string{"x", "y", "z"} {
			s.dir.fail("m/"+name+".yaml", nil)
		}
		s.dir.remove("pipe.yaml")
		s.dir.remove("zero.json")
		assert.Equal(t, []string{"ADD a z-n1=1"}, s.after())
		assert.Empty(t, s.errors())
	})
}

// SR-5: without any notice a change is found by the rescan.
func TestFile_Rescan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := manifestDir(map[string]string{"x.yaml": manifest("x", "1")})
		broken := notifierFunc(func(context.Context, string, func()) error { return errors.New("too many watches") })
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(broken)))
		r.delivered()
		dir.write("x.yaml", manifest("x", "2"))
		time.Sleep(19 * time.Second)
		assert.Empty(t, r.delivered())
		time.Sleep(time.Second)
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, r.delivered())
	})
}

type notifierFunc func(ctx context.Context, path string, notify func()) error

func (f notifierFunc) Notify(ctx context.Context, path string, notify func()) error {
	return f(ctx, path, notify)
}

// ConfigMaps and Secrets lie beside the pods that use them.
func TestFile_Objects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		conf := func(v string) string {
			return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {k: '" + v + "'}\n"
		}
		user := manifest("x", "1") + "    envFrom:\n    - configMapRef: {name: conf}\n"
		s := play(t, map[string]string{"x.yaml": user, "conf.yaml": conf("1"), "y.yaml": manifest("y", "1")})
		s.delivered()
		value := func() string {
			o, err := s.mux.Object(t.Context(), podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "conf"})
			if err != nil {
				return err.Error()
			}
			return string(o.Data["k"])
		}
		assert.Equal(t, "1", value())
		s.dir.write("conf.yaml", conf("2"))
		assert.Equal(t, []string{"REFRESH a x-n1=1"}, s.after())
		assert.Equal(t, "2", value())

		s.dir.write("a.yaml", conf("3"))
		assert.Empty(t, s.after(), "the first stays")
		assert.Equal(t, "2", value())
		assert.Contains(t, s.errors(), "m/a.yaml: ConfigMap default/conf rejected: already defined in m/conf.yaml")

		s.dir.write("conf.yaml", "apiVersion: v1\nkind: Conf")
		assert.Empty(t, s.after(), "a broken manifest keeps its objects too")
		assert.Equal(t, "2", value())

		s.dir.remove("conf.yaml")
		assert.Equal(t, []string{"REFRESH a x-n1=1"}, s.after())
		assert.Equal(t, "3", value())
		s.dir.remove("a.yaml")
		assert.Equal(t, []string{"REFRESH a x-n1=1"}, s.after())
		assert.Equal(t, "get configmap default/conf: object not found", value())
	})
}

// A manifest cannot pass itself off as another's pod.
func TestFile_IdentityIgnoresManifest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, map[string]string{"x.yaml": strings.Replace(manifest("x", "1"), "spec:", `  uid: mine
  annotations:
    kubernetes.io/config.mirror: "1"
    kubernetes.io/config.source: api
    kubernetes.io/config.seen: never
spec:`, 1)})
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.delivered())
		got := s.mux.Pods()[0]
		assert.NotEqual(t, "mine", string(got.UID))
		assert.False(t, podspec.IsMirror(got))
		assert.Equal(t, "a", got.Annotations[podspec.AnnotationSource])
		assert.NotEqual(t, "never", got.Annotations[podspec.AnnotationFirstSeen])
	})
}

func TestFile_Lenient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, map[string]string{"x.yaml": manifest("x", "1") + "    imagee: y\n"}, podsource.FileLenient())
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.delivered())
	})
}

// moving is a file that is never left alone: each look finds it changed.
type moving struct {
	fs.File
	opened *int
}

type movedInfo struct {
	fs.FileInfo
	at time.Time
}

func (m movedInfo) ModTime() time.Time { return m.at }

func (m moving) Stat() (fs.FileInfo, error) {
	info, err := m.File.Stat()
	return movedInfo{info, time.Unix(int64(*m.opened), 0)}, err
}

type movingFS struct {
	*files
	opened int
}

func (m *movingFS) Open(name string) (fs.File, error) {
	f, err := m.files.Open(name)
	if err == nil && strings.HasSuffix(name, ".yaml") {
		m.opened++
		f = moving{f, &m.opened}
	}
	return f, err
}

// A file that changes while it is read is read again, and taken as it is when
// that does not end.
func TestFile_ReadsFileThatKeepsChanging(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := &movingFS{files: manifestDir(map[string]string{"x.yaml": manifest("x", "1")})}
		r := start(t, podsource.File("m", podsource.FileFS(dir)))
		assert.Empty(t, r.delivered())
		assert.False(t, r.mux.HasSynced("a"))
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		assert.True(t, r.mux.HasSynced("a"))
		reads := dir.opened
		time.Sleep(19 * time.Second)
		assert.Equal(t, reads, dir.opened, "no more until the rescan")
	})
}

func TestFile_Options(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := manifestDir(map[string]string{"x.yaml": manifest("x", "1"), "y.yaml": manifest("yy", "1")})
		var logged strings.Builder
		broken := notifierFunc(func(context.Context, string, func()) error { return errors.New("too many watches") })
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(broken), podsource.FileRescan(time.Minute),
			podsource.FileMaxBytes(len(manifest("x", "1"))), podsource.FileLogger(slog.New(slog.NewTextHandler(&logged, nil)))))
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		assert.ErrorIs(t, r.mux.Errors()[0], podspec.ErrTooLarge)
		dir.remove("x.yaml")
		time.Sleep(59 * time.Second)
		assert.Empty(t, r.delivered())
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"REMOVE a x-n1=1"}, r.delivered())
		assert.Equal(t, 1, strings.Count(logged.String(), "too many watches"), "told once")
	})
}
