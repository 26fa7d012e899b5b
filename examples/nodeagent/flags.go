package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime/cri"
)

// flags are the command line. Names are the kubelet's where it has the flag.
type flags struct {
	manifests, manifestURL         string
	runtimeEndpoint, imageEndpoint string
	rootDir, podLogsDir, statusDir string
	nodeName, nodeIP, nodeLabels   string
	listen, logFormat              string
	cgroupRoot, cgroupDriver       string
	unsafeSysctls                  string
	imageVerification              string
	imageAllowlist                 string
	clusterDNS, clusterDomain      string
	resolvConf                     string
	verbosity, maxPods             int
	oomScoreAdj                    int
	drain                          bool
	fileCheck, httpCheck           time.Duration
	syncFrequency                  time.Duration
	maxRestartPeriod               time.Duration
	reclaim                        reclaimFlags
}

const (
	defaultRootDir = "/var/lib/sublet"
	defaultLogsDir = "/var/log/pods"
	defaultMaxPods = 110
	maxBackOff     = 5 * time.Minute
)

// parse reads args. Every fault is in the error, each with the flag's name.
func parse(args []string, usage io.Writer) (flags, error) {
	var f flags
	fs := flag.NewFlagSet("nodeagent", flag.ContinueOnError)
	fs.SetOutput(usage)
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	fs.StringVar(&f.manifests, "manifests", "", "folder (or file) of pod manifests")
	fs.StringVar(&f.manifestURL, "manifest-url", "", "URL of pod manifests; the last answer is kept below -root-dir, Secrets included, and used until the server answers")
	fs.StringVar(&f.runtimeEndpoint, "runtime-endpoint", "", "CRI socket, unix:///path; without it pods run simulated")
	fs.StringVar(&f.imageEndpoint, "image-endpoint", "", "CRI image socket, if another")
	fs.StringVar(&f.rootDir, "root-dir", defaultRootDir, "the agent's own folder")
	fs.StringVar(&f.podLogsDir, "pod-logs-dir", defaultLogsDir, "where container logs go")
	fs.StringVar(&f.statusDir, "status-dir", "", "write each pod with its status as JSON into this folder")
	fs.StringVar(&f.nodeName, "node-name", host, "this node's name")
	fs.StringVar(&f.nodeIP, "node-ip", "", "this node's address, told as hostIP; by default the first that is not loopback")
	fs.StringVar(&f.nodeLabels, "node-labels", "", "key=value,… that node selectors are held against")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:10255", "address of /healthz, /pods, /faults, /conditions, /metrics, /stats/summary, /gc; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&f.cgroupDriver, "cgroup-driver", "", "cgroupfs or systemd, as the runtime has it; default: what the runtime says, cgroupfs if it does not tell")
	fs.StringVar(&f.cgroupRoot, "cgroup-root", "", "cgroup below which pods are put")
	fs.StringVar(&f.imageVerification, "image-pull-credentials-verification-policy", string(cri.NeverVerifyPreloadedImages),
		"for which images on the node a pod needs the credentials to pull them: NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify")
	fs.StringVar(&f.imageAllowlist, "preloaded-images-verification-allowlist", "", "repositories for NeverVerifyAllowlistedImages, comma-separated, with /* at an end for more")
	fs.StringVar(&f.unsafeSysctls, "allowed-unsafe-sysctls", "", "kernel parameters that pods may set besides the safe ones, comma-separated, with * at an end for more")
	fs.StringVar(&f.clusterDNS, "cluster-dns", "", "name servers of pods with dnsPolicy ClusterFirst, comma-separated")
	fs.StringVar(&f.clusterDomain, "cluster-domain", "", "domain of the cluster")
	fs.StringVar(&f.resolvConf, "resolv-conf", "/etc/resolv.conf", "the node's resolver configuration")
	fs.IntVar(&f.verbosity, "v", 0, "log verbosity: 0 info, 4 and more debug")
	fs.IntVar(&f.oomScoreAdj, "oom-score-adj", -999, "oom_score_adj of this process, from -1000 to 1000: what the kernel kills for want of memory is a pod first")
	fs.IntVar(&f.maxPods, "max-pods", defaultMaxPods, "pods this node takes at the most")
	fs.BoolVar(&f.drain, "drain", false, "end the containers of all pods when the agent is stopped; by default they run on")
	fs.DurationVar(&f.fileCheck, "file-check-frequency", 20*time.Second, "how often manifests are read again even without a notice")
	fs.DurationVar(&f.httpCheck, "http-check-frequency", 20*time.Second, "how often the manifest URL is asked")
	fs.DurationVar(&f.syncFrequency, "sync-frequency", time.Minute, "how often a pod is looked at even if nothing changed")
	fs.DurationVar(&f.maxRestartPeriod, "max-container-restart-period", maxBackOff, "longest back-off of a container that keeps ending, 1s to 5m")
	f.reclaim.define(fs)
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	return f, f.check(fs.Args())
}

func (f *flags) check(rest []string) error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(len(rest) > 0, "unexpected argument %q: everything is a flag, see -help", rest)
	fault(f.manifests == "" && f.manifestURL == "", "nothing to run: give -manifests, -manifest-url or both")
	for name, d := range map[string]string{"root-dir": f.rootDir, "pod-logs-dir": f.podLogsDir} {
		fault(!filepath.IsAbs(d), "-%s %q: must be an absolute path", name, d)
	}
	for name, e := range map[string]string{"runtime-endpoint": f.runtimeEndpoint, "image-endpoint": f.imageEndpoint} {
		fault(e != "" && !strings.HasPrefix(e, "unix:///"), "-%s %q: must be unix:///path/to.sock", name, e)
	}
	if f.manifestURL != "" {
		u, err := url.Parse(f.manifestURL)
		fault(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https", "-manifest-url %q: must be an http or https URL", f.manifestURL)
	}
	fault(f.logFormat != "text" && f.logFormat != "json", "-log-format %q: must be text or json", f.logFormat)
	fault(f.nodeIP != "" && net.ParseIP(f.nodeIP) == nil, "-node-ip %q: not an IP address", f.nodeIP)
	for _, ip := range split(f.clusterDNS) {
		fault(net.ParseIP(ip) == nil, "-cluster-dns %q: not an IP address", ip)
	}
	for _, l := range split(f.nodeLabels) {
		fault(!strings.Contains(l, "="), "-node-labels %q: must be key=value", l)
	}
	fault(f.oomScoreAdj < -1000 || f.oomScoreAdj > 1000, "-oom-score-adj %d: must be between -1000 and 1000", f.oomScoreAdj)
	fault(f.maxPods < 1, "-max-pods %d: must be at least 1", f.maxPods)
	fault(f.maxRestartPeriod < time.Second || f.maxRestartPeriod > maxBackOff, "-max-container-restart-period %v: must be from 1s to 5m", f.maxRestartPeriod)
	for name, d := range map[string]time.Duration{"file-check-frequency": f.fileCheck, "http-check-frequency": f.httpCheck, "sync-frequency": f.syncFrequency} {
		fault(d <= 0, "-%s %v: must be positive", name, d)
	}
	f.reclaim.check(fault)
	return errors.Join(errs...)
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func (f *flags) labels() map[string]string {
	labels := map[string]string{}
	for _, l := range split(f.nodeLabels) {
		k, v, _ := strings.Cut(l, "=")
		labels[k] = v
	}
	return labels
}

func (f *flags) logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{}
	if f.verbosity >= 4 {
		opts.Level = slog.LevelDebug
	}
	if f.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
