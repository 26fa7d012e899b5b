package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sublet-dev/agent"

// allowedImports lists, for each package, the packages of this module that it may
// import. It is the architecture: change it on purpose, and say why in
// RATIONALE.md. Only the root and the examples know all.
var allowedImports = map[string][]string{
	"podspec":                    {},
	"kubeletconfig":              {"cgroup", "cpumanager", "eviction", "imagegc", "logrotate", "node", "nodeshutdown", "podspec", "podsync", "podworkers", "runtime", "runtime/cri", "topology"},
	"runtime":                    {"internal/capability", "internal/monotonic", "podspec"},
	"runtime/cri":                {"internal/bootid", "internal/crilog", "internal/hugepages", "internal/podnet", "internal/safe", "podspec", "runtime", "runtime/cri/internal/images", "runtime/cri/internal/translate"},
	"runtime/provider":           {"internal/safe", "podspec", "podstream", "runtime", "runtime/internal/cristream"},
	"runtime/embedded":           {"internal/capability", "internal/safe", "runtime/embedded/internal/reference", "runtime/embedded/internal/signals"},
	"runtime/embedded/stream":    {"runtime/embedded", "runtime/internal/cristream"},
	"runtime/runtimetest":        {"internal/hugepages", "internal/mounts"},
	"internal/bootid":            {},
	"internal/podinput":          {"runtime"},
	"podsource":                  {"internal/atomicfile", "internal/fileversion", "internal/safe", "internal/text", "podspec"},
	"podcache":                   {"runtime"},
	"pleg":                       {"internal/monotonic", "internal/safe", "runtime"},
	"podworkers":                 {"internal/monotonic", "internal/safe", "podspec", "runtime"},
	"podsync":                    {"internal/atomicfile", "internal/fileversion", "internal/mkdir", "internal/monotonic", "internal/mounts", "internal/owner", "internal/pathname", "internal/podinput", "internal/safe", "podspec", "runtime"},
	"syncloop":                   {"internal/safe", "pleg", "podsource", "podspec", "podworkers", "probe", "runtime", "runtimestate"},
	"status":                     {"internal/podinput", "internal/safe", "internal/text", "podspec", "runtime"},
	"probe":                      {"internal/monotonic", "internal/podnet", "internal/safe", "podspec", "runtime"},
	"probe/grpchealth":           {},
	"admission":                  {"internal/nodeselector", "podspec"},
	"userns":                     {"internal/pathname", "runtime"},
	"volume":                     {"internal/diskusage", "internal/fileversion", "internal/fsgroup", "internal/mkdir", "internal/mounts", "internal/nodeselector", "internal/pathname", "internal/safe", "podspec", "runtime"},
	"csi":                        {"internal/atomicfile", "internal/bootid", "internal/csiname", "internal/fsgroup", "internal/mounts", "internal/pathname", "internal/safe", "internal/selinux", "pluginregistry", "podspec", "runtime", "volume"},
	"internal/csitest":           {},
	"internal/csiname":           {},
	"internal/fsgroup":           {},
	"internal/selinux":           {},
	"cgroup":                     {"internal/hugepages", "internal/safe", "podspec", "runtime"},
	"node":                       {"cgroup", "internal/hugepages", "internal/safe", "podspec", "runtime"}, // cgroup for the type of its driver
	"oomwatch":                   {"internal/safe", "podspec", "runtime"},
	"systemd":                    {},
	"pageout":                    {},
	"nodeshutdown":               {"internal/atomicfile", "internal/safe", "podspec", "runtime"},
	"nodeshutdown/logind":        {"nodeshutdown"},
	"stats":                      {"internal/diskusage", "internal/monotonic", "internal/mounts", "podspec", "runtime"},
	"topology":                   {"internal/hugepages", "internal/safe", "podspec"},
	"cpumanager":                 {"internal/safe", "internal/statefile", "podspec", "runtime", "topology"},
	"dra":                        {"internal/bootid", "internal/safe", "internal/statefile", "internal/text", "pluginregistry", "podspec", "runtime"},
	"devices":                    {"internal/safe", "internal/statefile", "podspec", "runtime", "topology"},
	"devices/deviceplugin":       {"devices", "internal/grpcsocket", "internal/pathname", "internal/safe", "internal/selinux", "internal/text", "internal/unixsocket", "pluginregistry", "runtime"},
	"devices/podresources":       {"devices", "internal/grpcsocket", "internal/safe", "internal/unixsocket", "podspec", "topology"},
	"pluginregistry":             {"internal/safe", "internal/selinux", "internal/text"},
	"eviction":                   {"internal/safe", "podspec", "runtime"},
	"imagegc":                    {"internal/atomicfile", "internal/diskusage", "internal/monotonic", "internal/safe", "podspec", "runtime"},
	"containergc":                {"internal/fileversion", "internal/fserr", "internal/logpath", "internal/owner", "internal/safe", "podspec", "runtime"},
	"podops":                     {"podlogs", "podspec", "podstream", "runtime"},
	"podwatch":                   {},
	"podstream":                  {},
	"podlogs":                    {"internal/crilog", "internal/logpath", "runtime"},
	"logrotate":                  {"internal/diskusage", "internal/fserr", "internal/logpath", "internal/mkdir", "internal/safe", "runtime"},
	"server":                     {"internal/loglimit", "internal/logoptions", "internal/safe", "internal/unixsocket", "runtime"},
	"server/kubeapi":             {"internal/atomicfile", "internal/loglimit", "internal/logoptions", "internal/safe", "podops", "podsource", "podspec", "podwatch", "runtime", "server", "stats"},
	"server/kubeauth":            {"internal/safe"},
	"server/podsapi":             {"internal/grpcsocket", "internal/safe", "internal/unixsocket", "podwatch"},
	"server/ui":                  {"timeline"},
	"e2e":                        {},
	"test/bench":                 {},
	"test/bench/table":           {},
	"test/conformance":           {},
	"test/kubelet":               {},
	"test/scenario":              {},
	"docs":                       {},
	"internal/atomicfile":        {},
	"internal/crilog":            {},
	"internal/needtest":          {"runtime"},
	"internal/diskusage":         {"runtime"},
	"internal/fileversion":       {},
	"internal/fserr":             {},
	"internal/grpcsocket":        {"internal/safe", "internal/unixsocket"},
	"internal/logpath":           {"runtime"},
	"internal/run":               {},
	"internal/clocktest":         {},
	"internal/dirlock":           {},
	"internal/mkdir":             {},
	"internal/monotonic":         {},
	"internal/capability":        {},
	"internal/owner":             {"internal/atomicfile", "internal/fserr", "internal/mounts"},
	"internal/mounts":            {},
	"internal/nodeselector":      {},
	"internal/safe":              {},
	"internal/pathname":          {},
	"internal/unixsocket":        {},
	"runtime/internal/cristream": {},
	"internal/podnet":            {"internal/safe"},
	"internal/events":            {"internal/text"},
	"internal/hooktest":          {},
	"internal/kubelettest":       {},
	"internal/leaktest":          {},
	"internal/logattr":           {},
	"internal/loglimit":          {},
	"internal/logoptions":        {},
	"internal/logtest":           {},
	"internal/notify":            {},
	"internal/lazycri":           {"runtime", "runtime/cri", "runtime/embedded", "runtime/embedded/simulated"},
	"internal/priority":          {},
	"internal/settings":          {},
	"internal/hugepages":         {},
	"internal/sleep":             {},
	"internal/text":              {},
	"internal/statefile":         {"internal/atomicfile"},
	"internal/systest":           {},
	"internal/mutate":            {},
	"internal/typecheck":         {},
	"runtimestate":               {"runtime"},

	"runtime/cri/credentialprovider":         {"runtime/cri", "runtime/cri/internal/images"},
	"runtime/provider/providertest":          {"podspec", "runtime", "runtime/provider"},
	"runtime/cri/internal/images":            {"internal/atomicfile", "podspec", "runtime"},
	"runtime/cri/internal/translate":         {"internal/hugepages", "podspec", "runtime"},
	"runtime/embedded/simulated":             {"runtime/embedded", "runtime/embedded/internal/reference", "runtime/embedded/internal/signals"},
	"runtime/embedded/hostprocess":           {"internal/diskusage", "internal/mkdir", "internal/mounts", "runtime", "runtime/embedded", "runtime/embedded/internal/signals"},
	"runtime/embedded/internal/embeddedtest": {"runtime/embedded"},
	"runtime/embedded/internal/reference":    {},
	"runtime/embedded/internal/signals":      {},
}

// sharedImports may be imported by every package of the module.
var sharedImports = []string{"internal/logattr", "internal/notify", "internal/priority", "internal/sleep"}

// adapters and test kits may import any package of the module, and are imported by users and tests
// alone.
var adapters = []string{"prom", "otel", "timeline", "kube", "internal/kubetest", "internal/agenttest", "internal/browsertest", "internal/containerdtest", "internal/vmtest", "test/bench/agentprocess"}

func TestImports_OnlyAllowed(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg, ok := strings.CutPrefix(f[0], module+"/")
		if !ok || strings.HasPrefix(pkg, "examples/") || slices.ContainsFunc(adapters, func(e string) bool { return pkg == e || strings.HasPrefix(pkg, e+"/") }) {
			continue
		}
		may, ok := allowedImports[pkg]
		if !ok {
			t.Errorf("%s is not in allowedImports", pkg)
			continue
		}
		for _, imported := range f[1:] {
			if imported == module {
				t.Errorf("%s imports the root", pkg)
			}
			if to, ours := strings.CutPrefix(imported, module+"/"); ours && !slices.Contains(may, to) && !slices.Contains(sharedImports, to) {
				t.Errorf("%s imports %s, which allowedImports does not list", pkg, to)
			}
		}
	}
}

// The root only connects components: what does not fit into six files and these lines,
// comments included, belongs to a package of its own or to that of a component.
func TestImports_RootStaysSmall(t *testing.T) {
	const maxFiles, maxLines = 6, 1360
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	lines := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		lines += strings.Count(string(text), "\n")
	}
	require.LessOrEqual(t, len(files), maxFiles, files)
	require.LessOrEqual(t, lines, maxLines)
}

// Each package has a package comment.
func TestImports_EachPackageIsDocumented(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{if .GoFiles}}{{.ImportPath}}: {{.Doc}}{{end}}", "./...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		pkg, doc, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if pkg != "" && doc == "" && !strings.Contains(pkg, "/testdata/") {
			t.Errorf("%s has no package comment", pkg)
		}
	}
}

// RT-1: models and components do not depend on gRPC, so a user with another kind of
// runtime does not link it.
func TestImports_ModelsAndComponentsWithoutGRPC(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./runtime", "./podspec", "./podsource", "./podsync", "./podworkers", "./syncloop",
		"./pleg", "./podcache", "./status", "./probe", "./node", "./userns", "./volume", "./devices", "./admission", "./imagegc", "./containergc", "./logrotate", "./podlogs").Output()
	require.NoError(t, err)
	for pkg := range strings.Lines(string(out)) {
		if strings.HasPrefix(pkg, "google.golang.org/grpc") || strings.HasPrefix(pkg, "k8s.io/cri-api") {
			t.Errorf("a model or component depends on %s", strings.TrimSpace(pkg))
		}
	}
}

// client-go is linked by those who import kube, and by no others: neither by the root
// nor by a component.
func TestImports_OnlyKubeDependsOnClientGo(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		pkg, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		pkg = strings.TrimPrefix(pkg, module+"/")
		if pkg == "kube" || strings.HasPrefix(pkg, "kube/") || strings.HasPrefix(pkg, "examples/") || pkg == "internal/kubetest" {
			continue
		}
		for _, foreign := range []string{"k8s.io/client-go", "k8s.io/kubelet", "k8s.io/kubernetes", module + "/kube"} {
			if (strings.HasPrefix(pkg, "devices/") || slices.Contains([]string{"runtime/cri/credentialprovider", "kubeletconfig", "pluginregistry", "csi", "dra", "internal/csitest", "e2e", "server/podsapi"}, pkg)) && foreign == "k8s.io/kubelet" {
				continue // the APIs of its plugins
			}
			if strings.Contains(" "+deps, " "+foreign+"/") || slices.Contains(strings.Fields(deps), foreign) {
				t.Errorf("%s depends on %s", pkg, foreign)
			}
		}
	}
}

// The linker drops methods that are never called only from a program without templates, whose text can
// name any method. docs/embed.md promises that the agent and its adapters bring none.
func TestImports_NoTemplates(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", ".", "./kube", "./prom", "./otel", "./server/kubeapi").Output()
	require.NoError(t, err)
	for pkg := range strings.Lines(string(out)) {
		require.NotContains(t, []string{"text/template", "html/template"}, strings.TrimSpace(pkg))
	}
}
