package simulated

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestCompile(t *testing.T) {
	seven := int32(7)
	tests := map[string]struct {
		cmd  []string
		want Script
		not  bool
	}{
		"sleep":       {cmd: []string{"/bin/sleep", "1.5"}, want: Script{RunFor: 1500 * time.Millisecond, ExitCodes: []int32{0}}},
		"sleep unit":  {cmd: []string{"sleep", "2m"}, want: Script{RunFor: 2 * time.Minute, ExitCodes: []int32{0}}},
		"exit code":   {cmd: []string{"sh", "-c", "exit 3; echo never"}, want: Script{RunFor: 1, ExitCodes: []int32{3}}},
		"last status": {cmd: []string{"sh", "-c", "true; false"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"output": {cmd: []string{"sh", "-c", `echo "a b" 'c;d'; sleep 1; echo e >&2`}, want: Script{
			RunFor: time.Second, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "a b c;d"}, {At: time.Second, Stderr: true, Text: "e"}},
		}},
		"no newline":       {cmd: []string{"echo", "-n", "hello"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "hello", Open: true}}}},
		"ignored":          {cmd: []string{"sh", "-c", "trap '' TERM; sleep 5"}, want: Script{RunFor: 5 * time.Second, ExitCodes: []int32{0}, IgnoreTERM: true}},
		"handled":          {cmd: []string{"sh", "-c", "trap 'exit 7' TERM; sleep 5 & wait"}, want: Script{RunFor: 5 * time.Second, ExitCodes: []int32{0}, TermExitCode: &seven}},
		"exec":             {cmd: []string{"sh", "-c", "exec sleep 3"}, want: Script{RunFor: 3 * time.Second, ExitCodes: []int32{0}}},
		"exec of nothing":  {cmd: []string{"sh", "-c", "false; exec"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"an empty text":    {cmd: []string{"bash", "-c", ""}, want: Script{RunFor: 1, ExitCodes: []int32{0}}},
		"a good end":       {cmd: []string{"sh", "-c", "false; :"}, want: Script{RunFor: 1, ExitCodes: []int32{0}}},
		"exit alone":       {cmd: []string{"sh", "-c", "exit"}, want: Script{RunFor: 1, ExitCodes: []int32{0}}},
		"lines":            {cmd: []string{"sh", "-c", "true\nfalse"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"and":              {cmd: []string{"sh", "-c", "true&&false"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"and, failed":      {cmd: []string{"sh", "-c", "false && sleep 5 && unknown &&\nexit 3; echo a"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "a"}}}},
		"and, at the end":  {cmd: []string{"sh", "-c", "true && false && exit 3"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"beside":           {cmd: []string{"sh", "-c", "true&false"}, want: Script{RunFor: 1, ExitCodes: []int32{1}}},
		"two sleeps":       {cmd: []string{"sh", "-c", "sleep 1; sleep 1"}, want: Script{RunFor: 2 * time.Second, ExitCodes: []int32{0}}},
		"no sleep":         {cmd: []string{"sleep", "0"}, want: Script{RunFor: 1, ExitCodes: []int32{0}}},
		"no sleep, unit":   {cmd: []string{"sleep", "0m"}, want: Script{RunFor: 1, ExitCodes: []int32{0}}},
		"without end":      {cmd: []string{"sh", "-c", "sleep inf; echo never"}, want: Script{RunFor: forever, ExitCodes: []int32{0}}},
		"also without end": {cmd: []string{"sleep", "infinity"}, want: Script{RunFor: forever, ExitCodes: []int32{0}}},
		"too long":         {cmd: []string{"sh", "-c", "sleep 1ns; sleep 9223372036854775806ns; echo never"}, want: Script{RunFor: forever, ExitCodes: []int32{0}}},
		"a long sleep":     {cmd: []string{"sleep", "999999999"}, want: Script{RunFor: 999999999 * time.Second, ExitCodes: []int32{0}}},
		"an empty line":    {cmd: []string{"echo"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{}}}},
		"no line":          {cmd: []string{"echo", "-n"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Open: true}}}},
		"an error":         {cmd: []string{"echo", "a", "1>&2"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "a", Stderr: true}}}},
		"an empty error":   {cmd: []string{"sh", "-c", "echo>&2"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Stderr: true}}}},
		"a number first":   {cmd: []string{"sh", "-c", "echo\ta1>&2"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "a1", Stderr: true}}}},
		"a file handle":    {cmd: []string{"sh", "-c", "echo 1 1>&2"}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: "1", Stderr: true}}}},
		"an apostrophe":    {cmd: []string{"sh", "-c", `echo "it's" '"$x"' ''`}, want: Script{RunFor: 1, ExitCodes: []int32{0}, Output: []OutputLine{{Text: `it's "$x" `}}}},
		"no text":          {cmd: []string{"sh", "-c"}, not: true},
		"another flag":     {cmd: []string{"sh", "-x", "true"}, not: true},
		"two exit codes":   {cmd: []string{"sh", "-c", "exit 1 2"}, not: true},
		"two times":        {cmd: []string{"sleep", "1", "2"}, not: true},
		"a negative time":  {cmd: []string{"sleep", "-1"}, not: true},
		"a negative unit":  {cmd: []string{"sleep", "-1s"}, not: true},
		"too many seconds": {cmd: []string{"sleep", "1e9"}, not: true},
		"no time":          {cmd: []string{"sleep", "x"}, not: true},
		"another signal":   {cmd: []string{"sh", "-c", "trap '' INT"}, not: true},
		"two signals":      {cmd: []string{"sh", "-c", "trap '' TERM INT"}, not: true},
		"no trap":          {cmd: []string{"sh", "-c", "rap '' TERM"}, not: true},
		"a trap of a code": {cmd: []string{"sh", "-c", "trap 7 TERM; sleep 1"}, not: true},
		"a quoted name":    {cmd: []string{"sh", "-c", `echo "$HOME"`}, not: true},
		"a file":           {cmd: []string{"sh", "-c", "echo >x"}, not: true},
		"no shell":         {cmd: []string{"sh"}, not: true},
		"variables":        {cmd: []string{"sh", "-c", "echo $HOME"}, not: true},
		"pipes":            {cmd: []string{"sh", "-c", "echo a | cat"}, not: true},
		"loops":            {cmd: []string{"sh", "-c", "while true; do sleep 1; done"}, not: true},
		"another trap":     {cmd: []string{"sh", "-c", "trap 'rm x' TERM; sleep 1"}, not: true},
		"anything else":    {cmd: []string{"nginx"}, not: true},
		"an open quote":    {cmd: []string{"sh", "-c", "echo 'a"}, not: true},
		"nothing":          {not: true},
		"a code too large": {cmd: []string{"sh", "-c", "exit 256"}, not: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := compile(tc.cmd)
			assert.Equal(t, !tc.not, ok)
			if ok {
				assert.Equal(t, tc.want, got)
			}
		})
	}
}

// Whatever the annotations of a pod say, its script is valid or refused.
func FuzzScript_Apply(f *testing.F) {
	for key, value := range map[string]string{
		"run-for": "30s", "exit-code": "1,1,0", "memory": "0s=10Mi,1m=100Mi", "cpu": "250m", "ports": "none", "http-status": "503,200",
		"grpc-status": "NOT_SERVING", "term-exit-code": "", "output": "a\nb", "disk": "-1", "ignore-term": "yes",
	} {
		f.Add(key, value, int64(time.Minute), uint64(50<<20))
	}
	f.Fuzz(func(t *testing.T, key, value string, after int64, limit uint64) {
		s, err := Script{}.apply("main", map[string]string{ScriptPrefix + key: value})
		if err != nil {
			return
		}
		require.NoError(t, s.check())
		for _, points := range [][]UsagePoint{s.Memory, s.Disk, curve(s.CPU)} {
			at(points, time.Duration(after))
			reaches(points, limit)
		}
		byAttempt(s.ExitCodes, int(after))
		require.GreaterOrEqual(t, processorTime(s.CPU, time.Duration(after)), time.Duration(0))
	})
}

func FuzzCompile(f *testing.F) {
	f.Add("sleep 2562047h; sleep 2562047h")
	f.Add("trap '' TERM; echo a; sleep 0.5 && exit 3")
	f.Add("echo \"x y\" >&2 & wait")
	f.Fuzz(func(t *testing.T, text string) {
		s, ok := compile([]string{"sh", "-c", text})
		if !ok {
			return
		}
		require.NoError(t, s.check())
		require.Positive(t, s.RunFor)
		for _, l := range s.Output {
			require.GreaterOrEqual(t, s.RunFor, l.At)
		}
	})
}

func TestScript_HasAKeyForEachField(t *testing.T) {
	code := int32(9)
	for key, tc := range map[string]struct {
		value string
		want  Script
	}{
		"output-every": {"2s", Script{OutputEvery: 2 * time.Second}}, "termination-message": {"m", Script{Message: "m"}},
		"oom-after": {"3s", Script{OOMAfter: 3 * time.Second}}, "ignore-term": {"true", Script{IgnoreTERM: true}},
		"stop-after": {"4s", Script{StopAfter: 4 * time.Second}}, "term-exit-code": {"9", Script{TermExitCode: &code}},
		"create-error": {"e", Script{CreateError: "e"}}, "start-error": {"e", Script{StartError: "e"}},
		"start-delay": {"5s", Script{StartDelay: 5 * time.Second}}, "start-hang": {"true", Script{StartHang: true}},
		"sandbox-delay": {"6s", Script{SandboxDelay: 6 * time.Second}}, "sandbox-error": {"e", Script{SandboxError: "e"}},
		"pull-delay": {"7s", Script{PullDelay: 7 * time.Second}}, "pull-error": {"e", Script{PullError: "e"}}, "pull-failures": {"8", Script{PullFailures: 8}},
		"exec-exit-code": {"1,0", Script{ExecExitCodes: []int32{1, 0}}}, "exec-output": {"o", Script{ExecOutput: "o"}}, "exec-delay": {"9s", Script{ExecDelay: 9 * time.Second}},
		"ports": {"80, 81", Script{Ports: []int32{80, 81}}}, "listen-after": {"1s", Script{ListenAfter: time.Second}}, "answer-delay": {"2s", Script{AnswerDelay: 2 * time.Second}},
		"http-status": {"100,599", Script{HTTPStatus: []int32{100, 599}}},
	} {
		got, err := Script{}.apply("c", map[string]string{"sim.sublet.dev/" + key: tc.value})
		require.NoError(t, err, key)
		assert.Equal(t, tc.want, got, key)
	}
	for key, value := range map[string]string{
		"start-delay": "x", "start-hang": "x", "exec-delay": "x", "stop-after": "x", "ignore-term": "x", "http-status": "600", "pull-failures": "x", "else": "x",
	} {
		_, err := Script{}.apply("c", map[string]string{"sim.sublet.dev/" + key: value})
		assert.ErrorContains(t, err, "annotation sim.sublet.dev/"+key, key)
	}
	for _, value := range []string{"99", "600", "x"} {
		_, err := httpStatus(value)
		assert.Error(t, err, value)
	}
	assert.ErrorContains(t, (&Script{Memory: []UsagePoint{{At: 2}, {At: 1}}}).check(), "in order of time")
}

func TestScript_IsSetByAnnotations(t *testing.T) {
	two := int32(2)
	got, err := Script{}.apply("c", map[string]string{
		"sim.sublet.dev/run-for": "1m", "sim.sublet.dev/exit-code": "1, 2", "sim.sublet.dev/output": "a\nb",
		"sim.sublet.dev/memory": "0s=1Ki,10s=3Ki", "sim.sublet.dev/cpu": "250m", "c.sim.sublet.dev/run-for": "2m",
		"sim.sublet.dev/term-exit-code": "2", "other.sim.sublet.dev/run-for": "9m", "example.com/else": "x",
	})
	require.NoError(t, err)
	assert.Equal(t, Script{
		RunFor: 2 * time.Minute, ExitCodes: []int32{1, 2}, Output: []OutputLine{{Text: "a"}, {Text: "b"}},
		Memory: []UsagePoint{{0, 1024}, {10 * time.Second, 3072}}, CPU: []CPUPoint{{0, 250}}, TermExitCode: &two,
	}, got)
	assert.Equal(t, uint64(2048), at(got.Memory, 5*time.Second))
	hit, ok := reaches(got.Memory, 2048)
	assert.True(t, ok)
	assert.Equal(t, 5*time.Second, hit)

	_, err = Script{}.apply("c", map[string]string{"sim.sublet.dev/runfor": "1m", "sim.sublet.dev/memory": "x", "sim.sublet.dev/exit-code": ""})
	for _, want := range []string{"runfor: unknown key", "memory", "exit-code"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestScript_Failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		_, err := g.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("a", "sim.sublet.dev/sandbox-error: no network")})
		assert.ErrorContains(t, err, "no network")
		begin := time.Now()
		sb := g.RunPod(t, embeddedtest.PodConfig("b", "sim.sublet.dev/sandbox-delay: 3s", "sim.sublet.dev/create-error: no room", "d.sim.sublet.dev/create-error: ", "d.sim.sublet.dev/start-error: no entry"))
		assert.Equal(t, 3*time.Second, time.Since(begin))
		_, err = g.Create(t, sb, nil)
		assert.ErrorContains(t, err, "no room")
		id, err := g.Create(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Name = "d" })
		require.NoError(t, err)
		_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		assert.ErrorContains(t, err, "no entry")
		_, err = g.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("e", "sim.sublet.dev/exit-code: many")})
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
	})
}

func TestScript_ExecAndOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p", "sim.sublet.dev/exec-exit-code: 1,0", "sim.sublet.dev/exec-output: sick",
			"sim.sublet.dev/output: tick", "sim.sublet.dev/output-every: 1s", "sim.sublet.dev/run-for: 3500ms"))
		id := g.Start(t, g.RunPod(t, cfg), nil)
		for _, want := range []int32{1, 0, 0} {
			r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"check"}})
			require.NoError(t, err)
			assert.Equal(t, want, r.GetExitCode())
			assert.Equal(t, "sick\n", string(r.GetStdout()))
		}
		time.Sleep(4 * time.Second)
		assert.Equal(t, []string{"stdout F tick", "stdout F tick", "stdout F tick", "stdout F tick"}, embeddedtest.ReadLog(t, path))
	})
}

func TestScript_WritesTerminationMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		file := filepath.Join(t.TempDir(), "m")
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/termination-message: bye", "sim.sublet.dev/run-for: 1s")), func(c *v1.ContainerConfig) {
			c.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}
			c.Mounts = []*v1.Mount{{ContainerPath: "/dev/termination-log", HostPath: file}}
		})
		time.Sleep(2 * time.Second)
		require.Equal(t, v1.ContainerState_CONTAINER_EXITED, g.Inspect(t, id).GetState())
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, "bye", string(b))
	})
}

// docs/simulate.md has every key.
func TestScript_KeysAreDocumented(t *testing.T) {
	source, err := os.ReadFile("script.go")
	require.NoError(t, err)
	doc, err := os.ReadFile("../../../docs/simulate.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(doc), "| key |")
	require.True(t, ok)
	keys := regexp.MustCompile(`case "([a-z-]+)":`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(keys), 25)
	for _, key := range keys {
		assert.Contains(t, table, "`"+key[1]+"`")
		s := Script{}
		if err := s.set(key[1], "1"); err != nil {
			assert.NotContains(t, err.Error(), "unknown key", key[1])
		}
	}
}
