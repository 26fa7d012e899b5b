package safe_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/safe"
)

func logger() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

func throws() { panic("no such luck") }

// AG-9
func TestCall(t *testing.T) {
	log, out := logger()
	failed := errors.New("failed")
	require.NoError(t, safe.Call(log, "ask", func() error { return nil }))
	require.ErrorIs(t, safe.Call(log, "ask", func() error { return failed }), failed)
	assert.Empty(t, out)

	err := safe.Call(log, "ask", func() error { throws(); return nil })
	require.ErrorIs(t, err, safe.ErrPanic)
	require.EqualError(t, err, "ask: panic: no such luck")
	for _, part := range []string{"level=ERROR", "call=ask", "no such luck", "safe_test.throws"} {
		assert.Contains(t, out.String(), part)
	}
}

func TestDo(t *testing.T) {
	log, out := logger()
	safe.Do(log, "tell", throws)
	assert.Contains(t, out.String(), "safe_test.throws")
}

// AG-9
func TestHooks(t *testing.T) {
	type hooks struct {
		Name   string
		Called func(n int, err error)
		Asked  func(n int) (int, error)
		Unset  func()
	}
	log, out := logger()
	var got []int
	sound := safe.Hooks(log, hooks{Name: "x", Called: func(n int, _ error) { got = append(got, n) }, Asked: func(n int) (int, error) { return n, nil }})
	sound.Called(1, nil)
	n, err := sound.Asked(2)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.Equal(t, []int{1}, got)
	assert.Equal(t, "x", sound.Name)
	assert.Nil(t, sound.Unset)
	assert.Empty(t, out)

	bad := safe.Hooks(log, hooks{Called: func(int, error) { throws() }, Asked: func(int) (int, error) { throws(); return 1, nil }})
	bad.Called(1, nil)
	n, err = bad.Asked(2)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Contains(t, out.String(), "hook Called")
	assert.Contains(t, out.String(), "hook Asked")
}

func ExampleCall() {
	err := safe.Call(slog.New(slog.DiscardHandler), "admit pod", func() error { panic("out of luck") })
	fmt.Println(err)
	// Output: admit pod: panic: out of luck
}

func BenchmarkHooks(b *testing.B) {
	type hooks struct{ Called func(int, error) }
	log, _ := logger()
	h := safe.Hooks(log, hooks{Called: func(int, error) {}})
	b.ReportAllocs()
	for b.Loop() {
		h.Called(1, nil)
	}
}
