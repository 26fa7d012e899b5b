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

func ExampleCall() {
	err := safe.Call(slog.New(slog.DiscardHandler), "admit pod", func() error { panic("out of luck") })
	fmt.Println(err)
	// Output: admit pod: panic: out of luck
}
