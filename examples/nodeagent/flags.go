package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
)

// flags are the command line. Names are the kubelet's where it has the flag.
type flags struct {
	manifests, manifestURL         string
	manifestHeader                 list
	runtimeEndpoint, imageEndpoint string
	rootDir, podLogsDir, statusDir string
	logLinksDir                    string
	nodeName, nodeIP               string
	nodeLabels                     list
	logFormat                      string
	cgroupRoot, cgroupDriver       string
	unsafeSysctls                  list
	imageVerification              string
	imageAllowlist                 string
	credentialConfig               string
	credentialBinDir               string
	clusterDNS                     list
	clusterDomain                  string
	resolvConf                     string
	verbosity, oomScoreAdj         int
	drain, version, pageOut        bool
	fileCheck, httpCheck           time.Duration
	syncFrequency                  time.Duration
	maxRestartPeriod               time.Duration
	listen                         listenFlags
	node                           nodeFlags
	reclaim                        reclaimFlags
	kube                           kubeFlags
	devices                        deviceFlags
	podsAPI                        podsAPIFlags
	csi                            csiFlags
	plugins                        pluginFlags
	topology                       topologyFlags
	dra                            draFlags
	kubeAPI                        kubeAPIFlags
	config                         configFlags
	debug                          debugFlags
	shutdown                       shutdownFlags
	daemon                         daemonFlags
	addresses                      *addresses
	metrics                        *metrics
}

const (
	defaultRootDir = "/var/lib/sublet"
	defaultLogsDir = "/var/log/pods"
	maxBackOff     = 5 * time.Minute
)

// parse reads args. The error has everything that is wrong, each with the flag's
// name. Help is written to usage.
func parse(args []string, usage io.Writer) (flags, error) {
	var f flags
	fs := flag.NewFlagSet("nodeagent", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f.daemon.args = args
	f.define(fs)
	f.config.define(fs)
	f.listen.define(fs)
	f.node.define(fs)
	f.reclaim.define(fs)
	f.kube.define(fs)
	f.devices.define(fs)
	f.podsAPI.define(fs)
	f.csi.define(fs)
	f.plugins.define(fs)
	f.topology.define(fs)
	f.dra.define(fs)
	f.kubeAPI.define(fs)
	f.debug.define(fs)
	f.shutdown.define(fs)
	var unsupported []string
	advice := defineKubeletFlags(fs, &unsupported)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(usage)
		printUsage(fs)
		return f, err
	}
	var errs []error
	fail := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	checkKubeletFlags(fs, unsupported, advice, fail)
	if err != nil {
		return f, errors.Join(append(errs, fmt.Errorf("%w; see -help", err))...)
	}
	if f.version && len(errs) == 0 {
		return f, nil
	}
	if f.kube.kubeconfig != "" {
		f.listen.joinCluster(fs)
	}
	if err := f.readConfig(fs); err != nil {
		return f, errors.Join(append(errs, err)...)
	}
	f.check(fs.Args(), fail)
	if len(errs) == 0 { // what the flags do not say alone
		errs = append(errs, f.config.mistakes, withFlags(fs, f.config.effective.Validate()))
	}
	f.debug.remember(fs)
	f.addresses = newAddresses(f.nodeName, f.nodeIPs())
	f.metrics, err = newMetrics()
	return f, errors.Join(append(errs, err)...)
}

func (f *flags) define(fs *flag.FlagSet) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	fs.StringVar(&f.manifests, "manifests", "", "directory (or file) of pod manifests")
	fs.StringVar(&f.manifestURL, "manifest-url", "", "URL of pod manifests; the last response is kept below -root-dir, Secrets included, and used until the server responds")
	fs.Var(&f.manifestHeader, "manifest-url-header", "headers of requests to -manifest-url: name:value,…; may be given several times")
	fs.StringVar(&f.runtimeEndpoint, "runtime-endpoint", "", "CRI socket, unix:///path. Default with -config: the kubelet's, that of containerd; without -config pods are simulated")
	fs.StringVar(&f.imageEndpoint, "image-endpoint", "", "CRI socket of the image service. Default: -runtime-endpoint")
	fs.StringVar(&f.rootDir, "root-dir", defaultRootDir, "the agent's own directory")
	fs.StringVar(&f.podLogsDir, "pod-logs-dir", defaultLogsDir, "directory of container logs")
	fs.StringVar(&f.logLinksDir, "log-links-dir", "", "directory of links to container logs for log shippers, such as /var/log/containers. Default: no links")
	fs.StringVar(&f.statusDir, "status-dir", "", "write each pod with its status as JSON into this directory")
	fs.StringVar(&f.nodeName, "node-name", strings.ToLower(host), "name of this node")
	fs.StringVar(&f.nodeIP, "node-ip", "", "address of this node, reported as hostIP, or an IPv4 and an IPv6 address, comma-separated. Default: the first that is not loopback; in a cluster, as a kubelet finds it, again for each report of the node")
	fs.Var(&f.nodeLabels, "node-labels", "key=value,… that node selectors match")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&f.cgroupDriver, "cgroup-driver", "", "cgroupfs or systemd, as for the runtime. Default: what the runtime reports, else systemd where it owns the cgroups, else cgroupfs")
	fs.StringVar(&f.cgroupRoot, "cgroup-root", "", "cgroup below which pods are created")
	fs.StringVar(&f.imageVerification, "image-pull-credentials-verification-policy", string(cri.NeverVerifyPreloadedImages),
		"for which images on the node a pod needs the credentials to pull them: NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify")
	fs.StringVar(&f.imageAllowlist, "preloaded-images-verification-allowlist", "", "repositories for NeverVerifyAllowlistedImages, comma-separated; /* at the end is a wildcard")
	fs.StringVar(&f.credentialConfig, "image-credential-provider-config", "", "configuration of credential provider plugins for image pulls: a file, or a directory of files")
	fs.StringVar(&f.credentialBinDir, "image-credential-provider-bin-dir", "", "directory with the programs of -image-credential-provider-config")
	fs.Var(&f.unsafeSysctls, "allowed-unsafe-sysctls", "kernel parameters that pods may set besides the safe ones, comma-separated; * at the end is a wildcard")
	fs.Var(&f.clusterDNS, "cluster-dns", "name servers of pods with dnsPolicy ClusterFirst, comma-separated")
	fs.StringVar(&f.clusterDomain, "cluster-domain", "", "domain of the cluster")
	fs.StringVar(&f.resolvConf, "resolv-conf", "/etc/resolv.conf", "resolver configuration of the node")
	fs.IntVar(&f.verbosity, "v", 0, "log verbosity: 0 info, 4 and more debug")
	fs.IntVar(&f.oomScoreAdj, "oom-score-adj", -999, "oom_score_adj of this process, -1000 to 1000; at -999 the kernel kills pods first")
	fs.BoolVar(&f.pageOut, "page-out", false, "have the kernel page out what only the start of this program needed: less resident memory, and the first pods read a part of it again")
	fs.BoolVar(&f.drain, "drain", false, "terminate the containers of all pods when the agent stops; by default they keep running")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
	fs.DurationVar(&f.fileCheck, "file-check-frequency", 20*time.Second, "period of reading manifests again without a notification")
	fs.DurationVar(&f.httpCheck, "http-check-frequency", 20*time.Second, "period of requests to -manifest-url")
	fs.DurationVar(&f.syncFrequency, "sync-frequency", time.Minute, "period of pod resyncs")
	fs.DurationVar(&f.maxRestartPeriod, "max-container-restart-period", maxBackOff, "longest back-off of a container that keeps exiting, 1s to 5m")
}

func (f *flags) check(rest []string, fail func(bad bool, format string, args ...any)) {
	fail(len(rest) > 0, "unexpected argument %q: a command is the first argument, one of %s; all else are flags, see -help",
		strings.Join(rest, " "), strings.Join(slices.Sorted(maps.Keys(commands())), ", "))
	fail(f.manifests == "" && f.manifestURL == "" && f.kube.kubeconfig == "" && !f.kubeAPI.writable, "no source of pods; give -manifests, -manifest-url, -kubeconfig or -kube-api-writable, or several")
	for name, d := range map[string]string{"root-dir": f.rootDir, "pod-logs-dir": f.podLogsDir} {
		fail(!filepath.IsAbs(d), "-%s %q: must be an absolute path", name, d)
	}
	fail(f.logLinksDir != "" && !filepath.IsAbs(f.logLinksDir), "-log-links-dir %q: must be an absolute path", f.logLinksDir)
	for name, e := range map[string]string{"runtime-endpoint": f.runtimeEndpoint, "image-endpoint": f.imageEndpoint} {
		fail(e != "" && !strings.HasPrefix(e, "unix:///"), "-%s %q: must be unix:///path/to.sock", name, e)
	}
	if f.manifestURL != "" {
		u, err := url.Parse(f.manifestURL)
		fail(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https", "-manifest-url: must be an http or https URL") // which may contain a password
	}
	fail(f.logFormat != "text" && f.logFormat != "json", "-log-format %q: must be text or json", f.logFormat)
	if err := checkNodeIPs(f.nodeIPs()); err != nil {
		fail(true, "-node-ip %q: %w", f.nodeIP, err)
	}
	for _, ip := range split(f.clusterDNS.text) {
		fail(net.ParseIP(ip) == nil, "-cluster-dns %q: not an IP address", ip)
	}
	for _, l := range split(f.nodeLabels.text) {
		fail(l != "" && !strings.Contains(l, "="), "-node-labels %q: must be key=value", l)
	}
	fail(f.oomScoreAdj < -1000 || f.oomScoreAdj > 1000, "-oom-score-adj %d: must be between -1000 and 1000", f.oomScoreAdj)
	fail((f.credentialConfig == "") != (f.credentialBinDir == ""), "-image-credential-provider-config and -image-credential-provider-bin-dir belong together")
	fail(f.maxRestartPeriod < time.Second || f.maxRestartPeriod > maxBackOff, "-max-container-restart-period %v: must be from 1s to 5m", f.maxRestartPeriod)
	for name, d := range map[string]time.Duration{"file-check-frequency": f.fileCheck, "http-check-frequency": f.httpCheck, "sync-frequency": f.syncFrequency} {
		fail(d <= 0, "-%s %v: must be positive", name, d)
	}
	f.listen.check(f.kubeAPI.addr != "" && !isLoopback(f.kubeAPI.addr), fail)
	f.node.check(fail)
	f.reclaim.check(fail)
	f.kube.check(f.nodeName, fail)
	f.devices.check(fail)
	f.podsAPI.check(fail)
	f.csi.check(f, fail)
	f.plugins.check(f, fail)
	f.topology.check(f.devices.pluginDir != "", fail)
	f.dra.check(f, fail)
	f.kubeAPI.check(f, fail)
	f.debug.check(fail)
}

// header returns the headers of -manifest-url-header.
func (f *flags) header() http.Header {
	header := http.Header{}
	for name, values := range f.config.effective.Kubelet().StaticPodURLHeader {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	return header
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// credentials returns the logins of the node for image pulls: those of config.json in the root directory, as Docker's client
// writes it, and those of plugins.
func (f *flags) credentials(accounts *lateAccounts, log *slog.Logger) (cri.CredentialProvider, error) {
	file := credentialprovider.DockerConfig(filepath.Join(f.rootDir, "config.json"))
	if f.credentialConfig == "" {
		return file, nil
	}
	cfg := credentialprovider.PluginsConfig{Path: f.credentialConfig, BinDir: f.credentialBinDir, Logger: log}
	if f.kube.kubeconfig != "" {
		cfg.ServiceAccounts = accounts
	}
	plugins, err := credentialprovider.LoadPlugins(cfg)
	if err != nil {
		return nil, err
	}
	return credentialprovider.Join(file, plugins), nil
}

func (f *flags) labels() map[string]string {
	labels := map[string]string{}
	for _, l := range split(f.nodeLabels.text) {
		if k, v, ok := strings.Cut(l, "="); ok {
			labels[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return labels
}
