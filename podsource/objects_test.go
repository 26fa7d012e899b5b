package podsource_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// setSource is a source that always says the same.
type setSource podsource.Set

func (s setSource) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	deliver(podsource.Set(s))
	<-ctx.Done()
	return nil
}

func TestMux_EqualObjectsOfOneSource(t *testing.T) {
	object := func(value string) podspec.Object {
		return podspec.Object{
			Ref:  podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "cm"},
			Data: map[string][]byte{"key": []byte(value)},
		}
	}
	for name, tt := range map[string]struct {
		objects []podspec.Object
		faults  int
	}{
		"equal":  {[]podspec.Object{object("a"), object("a"), object("a")}, 0},
		"differ": {[]podspec.Object{object("a"), object("b")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := start(t, setSource{Objects: tt.objects})
				time.Sleep(time.Second)
				assert.Len(t, r.mux.Errors(), tt.faults)
				o, err := r.mux.Object(t.Context(), tt.objects[0].Ref)
				require.NoError(t, err)
				assert.Equal(t, "a", string(o.Data["key"]), "the first counts")
			})
		})
	}
}
