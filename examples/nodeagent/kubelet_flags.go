package main

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sublet-dev/agent/kubeletconfig"
)

// kubeletAliases are flags of a kubelet that have another name here.
func kubeletAliases() map[string]string {
	return map[string]string{
		"container-runtime-endpoint": "runtime-endpoint",
		"image-service-endpoint":     "image-endpoint",
		"pod-manifest-path":          "manifests",
		"hostname-override":          "node-name",
		"logging-format":             "log-format",
	}
}

// unsupportedFlag is a flag of a kubelet that has no equivalent here.
type unsupportedFlag struct {
	name   string
	isBool bool
	advice string // what to do instead
	given  *[]string
}

// String implements flag.Value.
func (u *unsupportedFlag) String() string { return "" }

// Set implements flag.Value.
func (u *unsupportedFlag) Set(string) error {
	if !slices.Contains(*u.given, u.name) {
		*u.given = append(*u.given, u.name)
	}
	return nil
}

// IsBoolFlag tells package flag whether a value follows.
func (u *unsupportedFlag) IsBoolFlag() bool { return u.isBool }

// unsupportedFlags lists the names by what to do instead. Names that end in ! are
// booleans.
func unsupportedFlags() map[string]string {
	const (
		useListen = "use -listen-https host:port for the kubelet's API, -listen host:port or unix:///path for reading; an empty -listen serves nothing"
		useAuth   = "remove it; no client is anonymous. With -kubeconfig the cluster decides who clients are and what they may do, unless -config says otherwise; without, those of -client-ca-file or -token-auth-file may use everything"
		noEvents  = "remove it; events are aggregated and have a limit of their own"
	)
	return map[string]string{
		"rotate-certificates!":        "remove it; a certificate that was requested with -bootstrap-kubeconfig is renewed",
		"rotate-server-certificates!": "remove it; with -kubeconfig and without -tls-cert-file, the certificate of the server is requested from the cluster and renewed",
		"pod-cidr":                    "remove it; the agent behaves as a kubelet without it",
		"address port read-only-port healthz-port healthz-bind-address enable-server!": useListen,
		"anonymous-auth! authorization-mode authentication-token-webhook!":             useAuth,
		"event-qps event-burst": noEvents,
		"fail-swap-on!":         "remove it; the agent starts on a node with swap",
		"system-cgroups kube-reserved-cgroup system-reserved-cgroup runtime-cgroups kubelet-cgroups": "remove it; only the cgroups of pods are changed",
		"container-runtime":                  "remove it; every runtime is a CRI runtime",
		"vmodule log-flush-frequency":        "use -v",
		"max-open-files":                     "remove it; the limit of the process is that of its systemd unit (LimitNOFILE)",
		"lock-file exit-on-lock-contention!": "remove it; the agent locks its root directory",
		"protect-kernel-defaults! make-iptables-util-chains! volume-plugin-dir volume-stats-agg-period experimental-mounter-path experimental-allocatable-ignore-eviction!": "remove it; nodeagent does not have this feature",
	}
}

// fieldFlags are flags of a kubelet that set fields of its configuration, without a field of flags here.
func fieldFlags() []string {
	return []string{
		"authentication-token-webhook-cache-ttl", "authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
		"cgroups-per-qos", "cpu-manager-policy-options", "cpu-manager-reconcile-period", "enable-debugging-handlers", "enforce-node-allocatable", "feature-gates", "kube-api-burst", "kube-api-qps",
		"node-status-max-images", "node-status-update-frequency", "provider-id", "reserved-memory", "runtime-request-timeout", "serialize-image-pulls", "streaming-connection-idle-timeout", "tls-cipher-suites", "tls-min-version",
		"topology-manager-policy-options",
	}
}

// defineFieldFlags adds them to the flags.
func defineFieldFlags(fs *flag.FlagSet) *kubeletconfig.Flags {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	given := kubeletconfig.AddFlags(all)
	for _, name := range fieldFlags() {
		f := all.Lookup(name)
		fs.Var(f.Value, name, f.Usage)
	}
	return given
}

// defineKubeletFlags adds the kubelet's names to the flags. given collects the
// unsupported ones of the command line.
func defineKubeletFlags(fs *flag.FlagSet, given *[]string) map[string]string {
	for alias, name := range kubeletAliases() {
		fs.Var(fs.Lookup(name).Value, alias, "same as -"+name)
	}
	advice := map[string]string{}
	for names, text := range unsupportedFlags() {
		for name := range strings.FieldsSeq(names) {
			name, isBool := strings.CutSuffix(name, "!")
			advice[name] = text
			fs.Var(&unsupportedFlag{name: name, isBool: isBool, advice: text, given: given}, name, "")
		}
	}
	fields := flag.NewFlagSet("", flag.ContinueOnError)
	kubeletconfig.AddFlags(fields)
	fields.VisitAll(func(fl *flag.Flag) {
		if fs.Lookup(fl.Name) == nil { // a field without effect
			reason, _, _ := strings.Cut(fl.Usage, ";")
			b, ok := fl.Value.(interface{ IsBoolFlag() bool })
			advice[fl.Name] = "remove it; " + reason
			fs.Var(&unsupportedFlag{name: fl.Name, isBool: ok && b.IsBoolFlag(), advice: advice[fl.Name], given: given}, fl.Name, "")
		}
	})
	return advice
}

// checkKubeletFlags returns an error for each unsupported flag that was given, and for
// each flag that was given by both of its names.
func checkKubeletFlags(fs *flag.FlagSet, given []string, advice map[string]string, fail func(bad bool, format string, args ...any)) {
	for _, name := range given {
		fail(true, "-%s is a flag of the kubelet that nodeagent does not support; %s", name, advice[name])
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	for alias, name := range kubeletAliases() {
		fail(set[alias] && set[name], "-%s and -%s are the same flag; give one of them", alias, name)
	}
}

// printUsage writes the flags that do something, and the kubelet's names of some.
func printUsage(fs *flag.FlagSet) {
	out := fs.Output()
	shown := flag.NewFlagSet(fs.Name(), flag.ContinueOnError)
	shown.SetOutput(out)
	var aliases []string
	fs.VisitAll(func(f *flag.Flag) {
		_, unsupported := f.Value.(*unsupportedFlag)
		name, alias := kubeletAliases()[f.Name]
		switch {
		case alias:
			aliases = append(aliases, fmt.Sprintf("  -%s is -%s\n", f.Name, name))
		case !unsupported:
			shown.Var(f.Value, f.Name, f.Usage)
			shown.Lookup(f.Name).DefValue = f.DefValue
		}
	})
	_, _ = fmt.Fprintf(out, "nodeagent runs the pods of a manifest directory, a URL or a cluster.\n\nUsage: nodeagent -manifests DIR [flags]\n       nodeagent COMMAND [flags], on a running agent: %s\n\n",
		strings.Join(slices.Sorted(maps.Keys(commands())), ", "))
	shown.PrintDefaults()
	_, _ = fmt.Fprintf(out, "\nOther names of the kubelet:\n%s", strings.Join(aliases, ""))
}
