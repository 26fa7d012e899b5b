package volume

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// An API server accepts what can never be mounted.
func TestMount_Impossible(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("here", 0o700))
	for source, want := range map[string]string{
		"hostPath: {path: here}":                         `hostPath: "here" must be absolute`,
		"hostPath: {path: new, type: DirectoryOrCreate}": `hostPath: "new" must be absolute`,
		"emptyDir: {medium: Floppy}":                     "emptyDir: unsupported medium Floppy",
		"downwardAPI: {items: [{path: a, resourceFieldRef: {containerName: z, resource: limits.cpu}}]}": `container "z" not found`,
	} {
		_, err := manager(t, nil).Mount(t.Context(), pod(t, "u", "  - {name: v, "+source+"}\n"), nil)
		require.ErrorContains(t, err, want, source)
	}
	require.NoDirExists(t, "new")
}
