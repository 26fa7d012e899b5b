package podspec_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podspec"
)

type place struct {
	version string
	err     error
}

func (p place) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	return podspec.Object{Ref: ref, Version: p.version}, p.err
}

// The first place that has an object decides, and so does one that cannot tell: a later
// one might have an older object of the same name.
func TestFirstObjects(t *testing.T) {
	missing := place{err: fmt.Errorf("get: %w", podspec.ErrObjectNotFound)}
	away := place{err: errors.New("connection refused")}
	for name, tc := range map[string]struct {
		places  []podspec.Objects
		version string
		err     error
	}{
		"first has it":      {[]podspec.Objects{place{version: "1"}, place{version: "2"}}, "1", nil},
		"second has it":     {[]podspec.Objects{missing, place{version: "2"}}, "2", nil},
		"first cannot tell": {[]podspec.Objects{away, place{version: "2"}}, "", away.err},
		"none has it":       {[]podspec.Objects{missing, missing}, "", podspec.ErrObjectNotFound},
		"no place":          {nil, "", podspec.ErrObjectNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := podspec.FirstObjects(tc.places...).Object(t.Context(), podspec.Ref{Name: "x"})
			require.ErrorIs(t, err, tc.err)
			if tc.err == nil {
				assert.Equal(t, tc.version, o.Version)
			}
		})
	}
}
