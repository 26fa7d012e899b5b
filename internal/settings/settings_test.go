package settings_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/settings"
)

type (
	sink   interface{ send() }
	stdout struct{}
	inner  struct {
		Policy, File string
		Names        []string
	}
	closed struct{ secret int }
	config struct {
		Name    string
		Size    int
		Strict  bool
		Sinks   []sink
		Labels  map[string]string
		OnEvent func()
		Sink    sink
		Inner   inner
		Closed  closed
		Any     any
		Pointer *int
		Names   []string
		Funcs   []func()
	}
	checked struct{ N int }
	other   struct{ Name string }
)

func (stdout) send() {}

var errNegative = errors.New("negative")

func (c checked) Check() error {
	if c.N < 0 {
		return errNegative
	}
	return nil
}

func TestAdd_MergesFields(t *testing.T) {
	var s settings.Store
	require.NoError(t, settings.Add(&s, "WithSink", config{Sinks: []sink{stdout{}}}))
	require.NoError(t, settings.Add(&s, "WithSink", config{Sinks: []sink{stdout{}}, Name: "a"}))
	require.NoError(t, settings.Add(&s, "WithName", config{Name: "a", Inner: inner{Policy: "strict", Names: []string{"x"}}}), "the same again")
	require.NoError(t, settings.Add(&s, "WithFile", config{Size: 1, Inner: inner{File: "f", Names: []string{"y"}}}))
	require.NoError(t, settings.Add(&s, "WithSize", config{Size: 1, Strict: true}))
	c, given := settings.Get[config](&s)
	assert.True(t, given)
	assert.Equal(t, config{
		Name: "a", Size: 1, Strict: true, Sinks: []sink{stdout{}, stdout{}}, Inner: inner{Policy: "strict", File: "f", Names: []string{"x", "y"}},
	}, c)
}

func TestAdd_OverwritesNothing(t *testing.T) {
	one := new(int)
	for want, pair := range map[string][2]config{
		`WithX: set to "a" and to "b"`: {{Name: "a"}, {Name: "b"}},
		"WithX: set twice":             {{Size: 1}, {Size: 2}},
		"WithX: set twice ":            {{OnEvent: func() {}}, {OnEvent: func() {}}},
		"WithX: set twice  ":           {{Sink: stdout{}}, {Sink: stdout{}}},
		"WithX: set twice   ":          {{Labels: map[string]string{"a": "b"}}, {Labels: map[string]string{"c": "d"}}},
		"WithX: set twice    ":         {{Closed: closed{1}}, {Closed: closed{2}}},
		"WithX: set twice     ":        {{Any: 1}, {Any: 1}},
		"WithX: set twice      ":       {{Pointer: one}, {Pointer: one}},
		`WithX: set to "p" and to "q"`: {{Inner: inner{Policy: "p"}}, {Inner: inner{Policy: "q"}}},
	} {
		var s settings.Store
		require.NoError(t, settings.Add(&s, "WithX", pair[0]), want)
		err := settings.Add(&s, "WithX", pair[1])
		require.Error(t, err, want)
		assert.Contains(t, want, err.Error())
	}
}

func TestAdd_RejectsNil(t *testing.T) {
	var s settings.Store
	require.EqualError(t, settings.Add(&s, "WithSink", config{Sinks: []sink{stdout{}, nil}}), "WithSink: nil or empty")
	require.EqualError(t, settings.Add(&s, "WithName", config{}), "WithName: nil or empty")
	require.EqualError(t, settings.Add(&s, "WithFunc", config{Funcs: []func(){nil}}), "WithFunc: nil or empty")
	require.NoError(t, settings.Add(new(settings.Store), "WithNames", config{Names: []string{""}}))
	require.NoError(t, settings.Add(&s, "WithNames", config{Inner: inner{Names: []string{""}}}))
	require.False(t, settings.Has[other](&s))
}

func TestAdd_Checks(t *testing.T) {
	var s settings.Store
	require.ErrorIs(t, settings.Add(&s, "WithN", checked{-1}), errNegative)
	require.ErrorIs(t, settings.Set(new(settings.Store), "WithN", checked{-1}), errNegative)
	require.NoError(t, settings.Set(new(settings.Store), "WithN", checked{}))
}

// What a caller changes later changes no option.
func TestAdd_Copies(t *testing.T) {
	var s settings.Store
	given := config{Sinks: []sink{stdout{}}, Labels: map[string]string{"a": "b"}, Inner: inner{Names: []string{"x"}}}
	require.NoError(t, settings.Add(&s, "WithX", given))
	given.Sinks[0], given.Labels["a"], given.Inner.Names[0] = nil, "c", "y"
	c, _ := settings.Get[config](&s)
	assert.Equal(t, config{Sinks: []sink{stdout{}}, Labels: map[string]string{"a": "b"}, Inner: inner{Names: []string{"x"}}}, c)
}

func TestSet_Once(t *testing.T) {
	var s settings.Store
	require.NoError(t, settings.Set(&s, "WithConfig", config{}))
	require.EqualError(t, settings.Set(&s, "WithConfig", config{Size: 1}), "WithConfig: set twice")
	require.NoError(t, settings.Add(&s, "WithName", config{Name: "a"}), "another option for the type")
	require.NoError(t, settings.Add(&s, "WithOther", other{Name: "a"}))
	require.NoError(t, settings.Set(&s, "WithOtherConfig", other{}), "another option for the type")
}

func TestSet_EmptyListIsAValue(t *testing.T) {
	var s settings.Store
	require.NoError(t, settings.Set(&s, "WithConfig", config{Sinks: []sink{}}))
	c, _ := settings.Get[config](&s)
	assert.NotNil(t, c.Sinks)
}

func TestComplete_AddsToTheOwn(t *testing.T) {
	var s settings.Store
	own := config{Name: "own", Sinks: []sink{stdout{}}, Inner: inner{File: "f"}}
	got, err := settings.Complete(&s, own)
	require.NoError(t, err)
	assert.Equal(t, own, got, "nothing given")
	require.NoError(t, settings.Add(&s, "WithX", config{Size: 1, Sinks: []sink{stdout{}}, Inner: inner{Policy: "p"}}))
	got, err = settings.Complete(&s, own)
	require.NoError(t, err)
	assert.Equal(t, config{Name: "own", Size: 1, Sinks: []sink{stdout{}, stdout{}}, Inner: inner{Policy: "p", File: "f"}}, got)
	assert.Empty(t, s.Unused())
	require.NoError(t, settings.Add(&s, "WithClosed", config{Closed: closed{1}}))
	_, err = settings.Complete(&s, config{Closed: closed{2}})
	require.EqualError(t, err, "settings_test.config.Closed: the agent sets it; remove it")
	_, err = settings.Complete(&s, config{Size: 2, Inner: inner{Policy: "q"}})
	require.EqualError(t, err, "settings_test.config.Size: the agent sets it; remove it\nsettings_test.config.Inner.Policy: the agent sets it; remove it")
}

func TestStore_UnusedAndEach(t *testing.T) {
	var s settings.Store
	require.NoError(t, settings.Add(&s, "WithName", config{Name: "a"}))
	require.NoError(t, settings.Add(&s, "WithName", config{Name: "a"}))
	require.NoError(t, settings.Add(&s, "WithOther", other{Name: "b"}))
	require.NoError(t, settings.Add(&s, "AnotherName", config{Name: "a"}))
	c, given := settings.Peek[config](&s)
	assert.True(t, given)
	assert.Equal(t, "a", c.Name)
	assert.True(t, settings.Has[other](&s))
	assert.Equal(t, []string{"AnotherName", "WithName", "WithOther"}, s.Unused())
	_, given = settings.Get[checked](&s)
	assert.False(t, given)
	_, _ = settings.Get[config](&s)
	assert.Equal(t, []string{"WithOther"}, s.Unused())

	var visited []any
	err := s.Each(func(options []string, v any) error {
		visited = append(visited, options, v)
		return errors.New(options[0])
	})
	require.EqualError(t, err, "WithName\nWithOther")
	assert.Equal(t, []any{[]string{"WithName", "WithName", "AnotherName"}, config{Name: "a"}, []string{"WithOther"}, other{Name: "b"}}, visited)
}
