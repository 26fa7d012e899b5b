package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// annOnly is a registry that lets ann alone pull, but for images with "public" in their
// names.
func annOnly(_ context.Context, ref, user string) error {
	if user == "ann" || strings.Contains(ref, "public") {
		return nil
	}
	return errors.New("401")
}

func recordIn(t *testing.T) (file string, with func(*Config)) {
	file = filepath.Join(t.TempDir(), "pulls.json")
	return file, func(c *Config) { c.RecordFile = file }
}

func mayUse(t *testing.T, p *Puller, id, name, user string) bool {
	t.Helper()
	may, err := p.MayUse(t.Context(), id, request(t, name, user))
	require.NoError(t, err)
	return may
}

const (
	private = "reg.example/team/app:1"
	public  = "reg.example/public:1"
)

// IM-6: an image that is on the node is given to those alone who could pull it, by this
// process and by the next.
func TestRecords_OfThisProcessAndTheNext(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered with a reference: %v", named), func(t *testing.T) {
			f := &fakeService{registry: annOnly, named: named}
			preloaded := f.preload("reg.example/preloaded:1")
			file, recorded := recordIn(t)
			p := f.puller(recorded)
			_, err := pullNow(t.Context(), p, request(t, private, "ann"))
			require.NoError(t, err)
			_, err = pullNow(t.Context(), p, request(t, public, "bob"))
			require.NoError(t, err)
			_, err = pullNow(t.Context(), p, request(t, public, ""))
			require.NoError(t, err)
			_, err = pullNow(t.Context(), p, request(t, "reg.example/preloaded:1", "bob"))
			require.Error(t, err, "a pull that fails changes nothing")
			id, publicID := f.images[private].GetId(), f.images[public].GetId()
			for range 2 {
				assert.True(t, mayUse(t, p, id, private, "ann"))
				assert.False(t, mayUse(t, p, id, private, "bob"))
				assert.False(t, mayUse(t, p, id, private, ""))
				assert.False(t, mayUse(t, p, id, "reg.example/other:1", "ann"), "the image under another name is another to pull")
				assert.True(t, mayUse(t, p, publicID, public, ""))
				assert.True(t, mayUse(t, p, publicID, public, "carol"))
				assert.True(t, mayUse(t, p, preloaded, "reg.example/preloaded:1", ""))
				p = f.puller(recorded)
			}
			info, err := os.Stat(file)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode())
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, secret := range []string{"ann", "hunter2"} {
				assert.NotContains(t, string(text), secret)
			}
		})
	}
}

// Exempt images need no records, not even readable ones.
func TestRecords_Exempt(t *testing.T) {
	f := &fakeService{}
	p := f.puller(func(c *Config) {
		c.RecordFile = t.TempDir() // is no file
		c.Exempt = func(repository string, preloaded bool) bool { return repository == "reg.example/team/app" }
	})
	assert.True(t, mayUse(t, p, "sha256:x", private, ""))
	_, err := p.MayUse(t.Context(), "sha256:x", request(t, public, ""))
	assert.Error(t, err)
	_, err = pullNow(t.Context(), p, request(t, private, "ann"))
	assert.ErrorContains(t, err, "pulled images")
	assert.Empty(t, f.pulled(), "what cannot be recorded is not pulled")
}

// Killed between a pull and its record, the agent does not take the image for preloaded.
func TestRecords_AfterACrash(t *testing.T) {
	f := &fakeService{registry: annOnly}
	_, recorded := recordIn(t)
	p := f.puller(recorded)
	auth := &v1.AuthConfig{Username: "ann", Password: "hunter2"}
	require.NoError(t, p.records.begin(t.Context(), request(t, private, "ann"), auth))
	require.NoError(t, p.records.begin(t.Context(), request(t, private, "ann"), auth))
	id := f.preload(private) // and then it was killed
	assert.False(t, mayUse(t, p, id, private, ""), "a pull is under way")

	f.err = errors.New("down")
	_, err := f.puller(recorded).MayUse(t.Context(), id, request(t, private, ""))
	require.Error(t, err, "nothing is known without the runtime")
	f.err = nil
	p = f.puller(recorded)
	assert.False(t, mayUse(t, p, id, private, ""))
	_, err = pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	assert.True(t, mayUse(t, p, id, private, "ann"))
	assert.Empty(t, p.records.state.Begun)
}

// IM-6: an image that a runtime brings after the agent was killed, and has begun again, does not count as preloaded,
// whichever pods have tried to pull it meanwhile.
func TestRecords_ArrivesAfterACrash(t *testing.T) {
	f := &fakeService{registry: annOnly}
	_, recorded := recordIn(t)
	require.NoError(t, f.puller(recorded).records.begin(t.Context(), request(t, private, "ann"), &v1.AuthConfig{Username: "ann"}))
	var p *Puller
	for range 2 {
		p = f.puller(recorded)
		for _, user := range []string{"", "bob"} {
			_, err := pullNow(t.Context(), p, request(t, private, user))
			require.Error(t, err)
		}
		assert.True(t, mayUse(t, p, f.preload(public), public, ""), "another image is preloaded")
	}
	id := f.preload(private)
	assert.False(t, mayUse(t, p, id, private, ""))
	assert.False(t, mayUse(t, p, id, private, "bob"))
	_, err := pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	assert.Empty(t, p.records.state.Begun)
	for range 2 {
		assert.True(t, mayUse(t, p, id, private, "ann"))
		assert.False(t, mayUse(t, p, id, private, "bob"))
		p = f.puller(recorded)
	}
}

// IM-6: nor does one of a tag that has moved, of which an earlier image is there.
func TestRecords_MovedTagArrivesAfterACrash(t *testing.T) {
	f := &fakeService{registry: annOnly}
	_, recorded := recordIn(t)
	p := f.puller(recorded)
	_, err := pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	id := f.images[private].GetId()
	require.NoError(t, p.records.begin(t.Context(), request(t, private, "ann"), &v1.AuthConfig{Username: "ann"}))
	p = f.puller(recorded)
	assert.True(t, mayUse(t, p, id, private, "ann"))
	assert.False(t, mayUse(t, p, "sha256:newer", private, "bob"))
	_, err = pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	assert.Empty(t, p.records.state.Begun)
}

// IM-6: records that were damaged and renamed are lost, also if what says so could not be written: the disk
// was full, or the agent was killed.
func TestRecords_LostBeforeACrash(t *testing.T) {
	f := &fakeService{registry: annOnly}
	file, recorded := recordIn(t)
	_, err := pullNow(t.Context(), f.puller(recorded), request(t, private, "ann"))
	require.NoError(t, err)
	id := f.images[private].GetId()
	require.NoError(t, os.Rename(file, file+".damaged"))
	for range 2 {
		p := f.puller(recorded)
		assert.False(t, mayUse(t, p, id, private, ""), "it does not count as preloaded")
		_, err = pullNow(t.Context(), p, request(t, private, "ann"))
		require.NoError(t, err)
		assert.True(t, mayUse(t, p, id, private, "ann"))
		require.NoError(t, os.RemoveAll(file+".damaged"), "it is noted in the new file")
	}
}

// IM-6: an image whose ID could not be found after its pull does not count as preloaded, in this process and the next.
func TestRecords_UnknownID(t *testing.T) {
	f := &fakeService{named: true}
	f.registry = func(context.Context, string, string) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.err = errors.New("restarting")
		return nil
	}
	_, recorded := recordIn(t)
	p := f.puller(recorded)
	_, err := pullNow(t.Context(), p, request(t, private, "ann"))
	require.ErrorContains(t, err, "find the image that was pulled: restarting")
	f.err, f.registry = nil, annOnly
	id := f.images[private].GetId()
	assert.False(t, mayUse(t, p, id, private, ""))
	p = f.puller(recorded)
	assert.False(t, mayUse(t, p, id, private, ""))
	_, err = pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	assert.True(t, mayUse(t, p, id, private, "ann"))
	assert.False(t, mayUse(t, p, id, private, "bob"))
}

// IM-6: an image whose pull was not answered does not count as preloaded, in this process and the next.
func TestRecords_LostAnswer(t *testing.T) {
	for name, err := range map[string]error{
		"the runtime went away": runtime.ErrUnavailable, "no answer in time": context.DeadlineExceeded, "no pod waits any more": context.Canceled,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := &fakeService{}
			f.registry = func(pull context.Context, ref, _ string) error {
				f.preload(ref)
				if errors.Is(err, context.Canceled) {
					cancel()
					<-pull.Done()
				}
				return err
			}
			_, recorded := recordIn(t)
			p := f.puller(recorded)
			_, got := pullNow(ctx, p, request(t, private, "ann"))
			require.ErrorIs(t, got, err)
			f.registry = annOnly
			id := f.images[private].GetId()
			for range 2 {
				assert.False(t, mayUse(t, p, id, private, ""))
				p = f.puller(recorded)
			}
			_, got = pullNow(t.Context(), p, request(t, private, "ann"))
			require.NoError(t, got)
			assert.True(t, mayUse(t, p, id, private, "ann"))
			assert.False(t, mayUse(t, p, id, private, "bob"))
		})
	}
}

// A pull that did not bring the image leaves no trace once it has ended.
func TestRecords_EndOfAFailedPull(t *testing.T) {
	f := &fakeService{registry: annOnly}
	_, recorded := recordIn(t)
	p := f.puller(recorded)
	_, err := pullNow(t.Context(), p, request(t, private, "bob"))
	require.Error(t, err)
	assert.Empty(t, p.records.state.Begun)
	id := f.preload(private)
	assert.True(t, mayUse(t, p, id, private, ""))
	assert.True(t, mayUse(t, f.puller(recorded), id, private, ""))
}

// Of records that cannot be read nothing is given away, for good.
func TestRecords_DamagedFile(t *testing.T) {
	for name, text := range map[string]string{"torn": `{"images":{`, "without a key": `{"images":{}}`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			file, recorded := recordIn(t)
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			f := &fakeService{registry: annOnly}
			id := f.preload(private)
			for range 2 {
				p := f.puller(recorded)
				assert.False(t, mayUse(t, p, id, private, ""))
			}
			aside, err := filepath.Glob(file + "*")
			require.NoError(t, err)
			assert.Len(t, aside, 2, "it is put aside")
		})
	}
	// What an older version wrote may lack parts.
	file, recorded := recordIn(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"key":"MDEyMw=="}`), 0o600))
	f := &fakeService{}
	id := f.preload(private)
	p := f.puller(recorded)
	assert.True(t, mayUse(t, p, id, private, ""))
	_, err := pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
}

// What is recorded of images that are gone is forgotten once it is too much.
func TestRecords_AreBounded(t *testing.T) {
	f := &fakeService{}
	p := f.puller()
	_, err := pullNow(t.Context(), p, request(t, private, "ann"))
	require.NoError(t, err)
	for i := range minPruneAt {
		p.records.state.Images[fmt.Sprint(i)] = map[string]pullRecord{}
	}
	f.err = errors.New("down")
	_, err = pullNow(t.Context(), p, request(t, public, ""))
	require.NoError(t, err)
	assert.Len(t, p.records.state.Images, minPruneAt+2, "what is present is not known")
	f.err = nil
	_, err = pullNow(t.Context(), p, request(t, public, ""))
	require.NoError(t, err)
	assert.Len(t, p.records.state.Images, 2)
	assert.Len(t, p.records.noted, 2)

	var s recordState
	s.reset()
	newest := grant{auth: &v1.AuthConfig{Username: "newest"}}
	for i := range maxLogins + 5 {
		assert.True(t, s.note("id", "repo", grant{auth: &v1.AuthConfig{Username: strings.Repeat("u", i+1)}}))
	}
	assert.True(t, s.note("id", "repo", newest))
	assert.False(t, s.note("id", "repo", newest))
	assert.Len(t, s.Images["id"]["repo"].Logins, maxLogins)
	assert.True(t, s.couldPull("id", "repo", []grant{newest}))
	assert.False(t, s.couldPull("id", "repo", []grant{{auth: &v1.AuthConfig{Username: "u"}}}), "the oldest are forgotten")
}
