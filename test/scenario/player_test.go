package scenario

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// player plays a scenario on a node.
type player struct {
	*agenttest.Harness
	t      *testing.T
	sc     *scenario
	faults *agenttest.FaultPlan // in addition to those of the scenario
}

// newPlayer makes a node with the options of the scenario. configure can change them.
func newPlayer(t *testing.T, sc *scenario, configure func(*agenttest.Config)) *player {
	t.Helper()
	config := agenttest.Config{Images: sc.images(t)}
	if grain, ok := sc.option("grain"); ok {
		config.Grain = duration(t, grain[0])
	}
	_, config.NotStatic = sc.option("not-static")
	_, config.CollectExited = sc.option("collect")
	_, config.NoWarnings = sc.option("no-warnings")
	if n, ok := sc.option("max-pods"); ok {
		var err error
		config.Node.MaxPods, err = strconv.Atoi(n[0])
		require.NoError(t, err)
	}
	if d, ok := sc.option("drain"); ok {
		config.Options = append(config.Options, agent.WithConfig(podworkers.DrainConfig{Timeout: duration(t, d[0])}))
	}
	if configure != nil {
		configure(&config)
	}
	p := &player{Harness: agenttest.New(t, config), t: t, sc: sc, faults: config.Faults}
	if rules, ok := sc.option("fault"); ok {
		p.addFaults(rules)
	}
	if _, ok := sc.option("no-events"); ok {
		p.addFaults([]string{"fault=fail,rpc=GetContainerEvents,code=Unimplemented"})
	}
	return p
}

// images returns the images of the config, lines "image NAME key=value…".
func (s *scenario) images(t *testing.T) (all []embedded.Image) {
	t.Helper()
	for _, c := range s.config {
		if c.args[0] != "image" {
			continue
		}
		image := embedded.Image{Ref: c.args[1]}
		for _, entry := range c.args[2:] {
			key, value, _ := strings.Cut(entry, "=")
			var err error
			switch key {
			case "pull-time":
				image.PullTime, err = time.ParseDuration(value)
			case "pull-error":
				image.PullError = value
			case "pull-failures":
				image.PullFailures, err = strconv.Atoi(value)
			case "present":
				image.Preloaded = true
			default:
				err = errors.New("unknown key")
			}
			require.NoError(t, err, "config: %s", c.line)
		}
		all = append(all, image)
	}
	return all
}

// play runs a script. before is called with each of its commands.
func (p *player) play(script []step, before func(command string)) {
	p.t.Helper()
	if _, ok := p.sc.option("no-agent"); !ok {
		p.Start()
	}
	start := time.Now()
	for _, s := range script {
		time.Sleep(s.at - time.Since(start))
		if s.args[0] == "end" {
			break
		}
		before(s.line)
		p.run(s)
	}
	synctest.Wait()
}

// run runs one command.
func (p *player) run(s step) {
	p.t.Helper()
	arg := func(i int) string {
		require.Greater(p.t, len(s.args), i, "%s: too few arguments", s.line)
		return s.args[i]
	}
	switch s.args[0] {
	case "put":
		p.Memory.Put(p.decode(arg(1))...)
	case "delete":
		require.True(p.t, p.Memory.Delete("default", arg(1)), s.line)
	case "mark":
		p.mark(arg(1), duration(p.t, arg(2)))
	case "write":
		require.NoError(p.t, p.Manifests.Write(arg(1), p.sc.files[arg(1)]))
	case "copy":
		require.NoError(p.t, p.Manifests.Write(arg(2), p.sc.files[arg(1)]))
	case "remove":
		require.NoError(p.t, p.Manifests.Remove(arg(1)))
	case "kill":
		p.stopContainer(arg(1), arg(2))
	case "stop-sandbox":
		p.stopContainer(arg(1), "")
	case "fault":
		p.addFaults(s.args[1:])
	case "no-faults":
		p.SetFaults()
	case "trap":
		p.AddBreakpoint(p.breakpoint(arg(1), arg(2), arg(3), arg(4), arg(5)))
	case "listing-takes":
		p.SetListDelay(duration(p.t, arg(1)))
	case "sink":
		p.SetSinkError(map[string]error{"fails": errors.New("on purpose"), "works": nil}[arg(1)])
	case "runtime":
		p.runtime(arg(1))
	default:
		p.runAgent(s.args[0])
	}
}

func (p *player) runAgent(command string) {
	p.t.Helper()
	switch command {
	case "stop-agent":
		p.Stop()
	case "kill-agent":
		p.Kill()
	case "start-agent":
		p.Start()
	case "restart-agent":
		p.Kill()
		p.Start()
	default:
		p.t.Fatalf("unknown command %s", command)
	}
}

func (p *player) runtime(command string) {
	p.t.Helper()
	switch command {
	case "down":
		p.Down()
	case "up":
		p.Up()
	case "reboot":
		p.ShutDown()
		p.Boot()
	default:
		p.t.Fatalf("unknown command runtime %s", command)
	}
}

// end stops the agent and the runtime.
func (p *player) end() {
	p.t.Helper()
	p.Stop()
	p.ShutDown()
}

func (p *player) addFaults(rules []string) {
	p.t.Helper()
	all := p.Faults()
	for _, r := range rules {
		rule, err := runtimetest.ParseRule(r)
		require.NoError(p.t, err)
		all = append(all, rule)
	}
	p.SetFaults(all...)
}

func (p *player) breakpoint(rpc, count, moment, action, d string) agenttest.Breakpoint {
	p.t.Helper()
	n, err := strconv.Atoi(count)
	require.NoError(p.t, err)
	require.Contains(p.t, []agenttest.Moment{agenttest.Before, agenttest.After}, agenttest.Moment(moment))
	require.Contains(p.t, []agenttest.BreakAction{agenttest.RestartRuntime, agenttest.KillAgent}, agenttest.BreakAction(action))
	return agenttest.Breakpoint{
		RPC: rpc, Count: n, Moment: agenttest.Moment(moment), Action: agenttest.BreakAction(action), For: duration(p.t, d),
	}
}

// mark sets the deletion timestamp of a pod, which stays in its source.
func (p *player) mark(name string, grace time.Duration) {
	p.t.Helper()
	for _, file := range p.sc.names {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		pods := p.decode(file)
		if i := slices.IndexFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name }); i >= 0 {
			pods[i].DeletionTimestamp = new(metav1.NewTime(time.Now().Add(grace)))
			pods[i].DeletionGracePeriodSeconds = new(int64(grace / time.Second))
			p.Memory.Put(pods[i])
			return
		}
	}
	p.t.Fatalf("no pod %s in the scenario", name)
}

func (p *player) stopContainer(pod, container string) {
	p.t.Helper()
	if !p.StopContainer(pod, container) && p.faults == nil { // with faults it may not have started yet
		p.t.Errorf("pod %s has no running container %s", pod, container)
	}
}

// decode returns the pods in a file of the scenario.
func (p *player) decode(name string) []*corev1.Pod {
	p.t.Helper()
	text, ok := p.sc.files[name]
	require.True(p.t, ok, "no file %s in the scenario", name)
	pods, objects, err := podspec.Decode([]byte(text), podspec.DecodeOptions{})
	require.NoError(p.t, err, name)
	require.Empty(p.t, objects, "%s: only pods are supported", name)
	return pods
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}
