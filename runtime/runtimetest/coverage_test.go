package runtimetest

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var update = flag.Bool("update", false, "write docs/cri-coverage.md and docs/cri-mutants.md")

const coverageFile = "../../docs/cri-coverage.md"

// field is one field of a message, Message.name, or an RPC.
type field string

// coverage is which cases set a field in a request, or have one in a response.
type coverage struct {
	mu    sync.Mutex
	cases map[field]map[string]bool
}

func (x *coverage) add(rpc, caseName string, m proto.Message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mark(field(rpc), caseName)
	visit(m.ProtoReflect(), func(m protoreflect.Message) {
		m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			x.mark(fieldOf(fd), caseName)
			return true
		})
	})
}

func (x *coverage) mark(f field, caseName string) {
	if x.cases[f] == nil {
		x.cases[f] = map[string]bool{}
	}
	x.cases[f][caseName] = true
}

func fieldOf(fd protoreflect.FieldDescriptor) field {
	return field(string(fd.Parent().Name()) + "." + string(fd.Name()))
}

// visit calls each for a message and those in it.
func visit(m protoreflect.Message, each func(protoreflect.Message)) {
	each(m)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				visit(v.List().Get(i).Message(), each)
			}
		default:
			visit(v.Message(), each)
		}
		return true
	})
}

// messages returns a message and those in it, each once, in the order of their fields.
func messages(d protoreflect.MessageDescriptor, known map[protoreflect.FullName]bool) []protoreflect.MessageDescriptor {
	if known[d.FullName()] {
		return nil
	}
	known[d.FullName()] = true
	out := []protoreflect.MessageDescriptor{d}
	for i := range d.Fields().Len() {
		if fd := d.Fields().Get(i); fd.Message() != nil && !fd.IsMap() {
			out = append(out, messages(fd.Message(), known)...)
		}
	}
	return out
}

// rpcs returns the methods of both services of the CRI.
func rpcs() []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	services := (&v1.VersionRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			out = append(out, methods.Get(j))
		}
	}
	return out
}

// byMessage returns the RPC that a request belongs to.
func byMessage() map[protoreflect.FullName]string {
	out := map[protoreflect.FullName]string{}
	for _, m := range rpcs() {
		out[m.Input().FullName()] = string(m.Name())
	}
	return out
}

// record runs all cases on simulated processes, whatever they need, and returns what they
// set in requests and get in responses. Cases that would fail there set their fields
// nevertheless: all their containers exit, so that none waits for an end.
func record(t *testing.T) (requests, responses *coverage) {
	requests, responses = &coverage{cases: map[field]map[string]bool{}}, &coverage{cases: map[field]map[string]bool{}}
	names := byMessage()
	t.Run("record", func(t *testing.T) {
		for _, tc := range cases() {
			exits := tc.needs&(processes|isolation|confinement|limits) != 0
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				m := mutant{
					request: func(req any) {
						if msg, ok := req.(proto.Message); ok {
							requests.add(names[msg.ProtoReflect().Descriptor().FullName()], tc.name, msg)
						}
					},
					response: func(rpc string, msg proto.Message) {
						responses.add(rpc, tc.name, msg)
						allFeatures(msg)
					},
				}
				synctest.Test(t, func(t *testing.T) {
					s := m.suite(t)
					if exits {
						s.edit = func(cfg *v1.PodSandboxConfig) { cfg.Annotations["sim.sublet.dev/run-for"] = "1s" }
					}
					s.execute(t.Context(), tc)
				})
			})
		}
	})
	return requests, responses
}

// allFeatures makes a runtime report the features that cases depend on.
func allFeatures(m proto.Message) {
	if r, ok := m.(*v1.StatusResponse); ok {
		for _, h := range r.GetRuntimeHandlers() {
			h.Features = &v1.RuntimeHandlerFeatures{UserNamespaces: true, RecursiveReadOnlyMounts: true}
		}
		r.Features = &v1.RuntimeFeatures{SupplementalGroupsPolicy: true}
	}
}

// without returns a mutation that clears a field of the messages in responses.
func without(f field) func(string, proto.Message) {
	return func(_ string, m proto.Message) {
		visit(m.ProtoReflect(), func(m protoreflect.Message) {
			name, found := strings.CutPrefix(string(f), string(m.Descriptor().Name())+".")
			if fd := m.Descriptor().Fields().ByName(protoreflect.Name(name)); found && fd != nil {
				m.Clear(fd)
			}
		})
	}
}

// runsOn returns what a case can be run on here to find what it needs of responses:
// simulated processes cost no time.
func runsOn(tc testCase) (kind executorKind, ok bool) {
	switch {
	case tc.needs&(confinement|limits) != 0:
		return 0, false
	case tc.needs&isolation != 0:
		return isolatedProcesses, os.Geteuid() == 0
	case tc.needs&processes != 0:
		return hostProcesses, true
	}
	return simulation, true
}

// passing is the cases that pass on a runtime without a defect, each run once.
type passing struct{ results sync.Map }

func (x *passing) has(t *testing.T, kind executorKind, tc testCase) bool {
	run, _ := x.results.LoadOrStore(tc.name, sync.OnceValue(func() bool {
		c := mutant{runs: kind}.run(t, tc)
		return len(c.failures) == 0 && c.skip == ""
	}))
	return run.(func() bool)()
}

// misses reports whether a case fails when a field of a response is missing, and only then. That the cases of the
// table pass otherwise is what TestRuntime_FindsNoDefectsInTheMutantsHarness says.
func misses(t *testing.T, f field, tc testCase, passing *passing) bool {
	kind, ok := runsOn(tc)
	if !ok {
		return false
	}
	c := mutant{runs: kind, response: without(f)}.run(t, tc)
	return len(c.failures) > 0 && (!*update || passing.has(t, kind, tc))
}

// observers returns a case for each field of a response that fails when the field is
// missing: that of the table if there is one, or with -update the first one found.
func observers(t *testing.T, responses *coverage, table map[field]string) map[field]string {
	var mu sync.Mutex
	found := map[field]string{}
	var passing passing
	t.Run("responses", func(t *testing.T) {
		known := map[protoreflect.FullName]bool{}
		for _, m := range rpcs() {
			for _, d := range messages(m.Output(), known) {
				for i := range d.Fields().Len() {
					f := fieldOf(d.Fields().Get(i))
					t.Run(string(f), func(t *testing.T) {
						t.Parallel()
						if name := observer(t, f, responses.cases[f], table, &passing); name != "" {
							mu.Lock()
							defer mu.Unlock()
							found[f] = name
						}
					})
				}
			}
		}
	})
	return found
}

// observer returns the case of one field, or "".
func observer(t *testing.T, f field, has map[string]bool, table map[field]string, passing *passing) string {
	if tc, ok := find(table[f]); ok {
		if _, ok := runsOn(tc); !ok && tc.needs&(confinement|limits) == 0 {
			return tc.name // an ordinary user cannot run it
		}
		if has[tc.name] && misses(t, f, tc, passing) {
			return tc.name
		}
	}
	if !*update {
		return ""
	}
	_, reasoned := reasonFor("response", f)
	for _, tc := range cheapestFirst() {
		if kind, _ := runsOn(tc); reasoned && kind != simulation {
			continue // a field that may be missing is worth no time
		}
		if has[tc.name] && misses(t, f, tc, passing) {
			return tc.name
		}
	}
	return ""
}

// cheapestFirst returns the cases with those first that run on simulated processes.
func cheapestFirst() []testCase {
	all := cases()
	slices.SortStableFunc(all, func(a, b testCase) int {
		one, _ := runsOn(a)
		other, _ := runsOn(b)
		return int(one - other)
	})
	return all
}

// The table says for each field of the CRI which case sets it or needs it, or why none
// does. A field of a newer cri-api fails this test until it has either.
func TestDocs_Coverage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute with the race detector, and is the same for all users")
	}
	committed, err := os.ReadFile(coverageFile)
	if !*update {
		require.NoError(t, err)
	}
	requests, responses := record(t)
	observed := observers(t, responses, parseCoverage(string(committed)))
	text, missing := coverageTable(requests, observed)
	assert.Empty(t, missing, "fields without a case or a reason: write a case, or a reason in coverage_reasons_test.go")
	if *update {
		require.NoError(t, os.WriteFile(coverageFile, []byte(text), 0o644)) //nolint:gosec // a document
		return
	}
	assert.Equal(t, text, string(committed), "run go test ./runtime/runtimetest -run TestDocs -update")
}

// parseCoverage returns the cases of the response fields in a table.
func parseCoverage(text string) map[field]string {
	out := map[field]string{}
	row := regexp.MustCompile("^\\| response `([A-Za-z_0-9.]+)` \\| (.*) \\|$")
	for line := range strings.Lines(text) {
		if m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			out[field(m[1])] = m[2]
		}
	}
	return out
}

// table is the document in the making.
type table struct {
	strings.Builder
	fields, covered int
	missing         []field // neither case nor reason
}

func (b *table) row(kind string, f field, caseName string) {
	b.fields++
	if caseName != "" {
		b.covered++
	} else if text, ok := reasonFor(kind, f); ok {
		caseName = "– " + text
	} else {
		b.missing = append(b.missing, field(kind)+" "+f)
	}
	fmt.Fprintf(b, "| %s `%s` | %s |\n", kind, f, caseName)
}

// coverageTable returns the document, and the fields that have neither case nor reason.
func coverageTable(requests *coverage, observed map[field]string) (text string, missing []field) {
	b := &table{}
	in, out := map[protoreflect.FullName]bool{}, map[protoreflect.FullName]bool{}
	for _, m := range rpcs() {
		caseName := firstCase(requests.cases[field(m.Name())])
		fmt.Fprintf(b, "\n## %s\n\nFirst called by: %s.\n\n", m.Name(), caseName)
		if caseName == "" {
			b.missing = append(b.missing, field(m.Name()))
		}
		asked, answered := messages(m.Input(), in), messages(m.Output(), out)
		rows := 0
		for _, d := range slices.Concat(asked, answered) {
			rows += d.Fields().Len()
		}
		if rows == 0 {
			continue
		}
		b.WriteString("| field | case, or why there is none |\n|---|---|\n")
		for _, d := range asked {
			for i := range d.Fields().Len() {
				f := fieldOf(d.Fields().Get(i))
				b.row("request", f, firstCase(requests.cases[f]))
			}
		}
		for _, d := range answered {
			for i := range d.Fields().Len() {
				f := fieldOf(d.Fields().Get(i))
				b.row("response", f, observed[f])
			}
		}
	}
	head := fmt.Sprintf(`# What the conformance suite looks at

Each RPC of the CRI, with the fields of its messages: a case of `+"`runtime/runtimetest`"+` that sets the field in a request, or that fails when it is missing
from responses. A message is listed with the first RPC that has it. Other cases may use a field too. Of %d fields, %d have a case; for the rest the table
says why not. It is made from recorded calls by `+"`go test ./runtime/runtimetest -run TestDocs -update`"+`; a test fails when a field of a newer
cri-api has neither.
`, b.fields, b.covered)
	return head + b.String(), b.missing
}

// firstCase returns the first of some cases in the order of the suite, or "".
func firstCase(names map[string]bool) string {
	all := cases()
	if i := slices.IndexFunc(all, func(tc testCase) bool { return names[tc.name] }); i >= 0 {
		return all[i].name
	}
	return ""
}
