package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/server"
)

// configFlags are about the configuration of a kubelet. Flags take precedence over it.
type configFlags struct {
	file, dir string
	// effective is the configuration with the values of all flags that have a field in it.
	effective *kubeletconfig.Config
	inForce   *atomic.Pointer[v1beta1.KubeletConfiguration] // effective, with what was reloaded since; what it points to does not change
	fields    *kubeletconfig.Flags                          // of fieldFlags
	mistakes  error                                         // values that no field can have; the checks of flags describe most of them better
	noServer  bool                                          // of the kubelet's API, although there should be one
}

func (f *configFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.file, "config", "", "file with a KubeletConfiguration, as for a kubelet")
	fs.StringVar(&f.dir, "config-dir", "", "directory with drop-in files for -config, *.conf")
	f.fields = defineFieldFlags(fs)
}

// isGiven reports whether there is a configuration.
func (f *configFlags) isGiven() bool { return f.file != "" || f.dir != "" }

// notices logs what was given in vain.
func (f *configFlags) notices(log *slog.Logger) {
	for _, n := range f.effective.Notices() {
		log.Warn("configuration has a field without effect", slog.String("field", n))
	}
	if f.noServer {
		log.Warn("the kubelet's API is not served: without -kubeconfig, it needs tlsCertFile and tlsPrivateKeyFile")
	}
}

// readConfig loads the configuration, gives its values to the flags that are not on the
// command line, and makes the effective one.
func (f *flags) readConfig(fs *flag.FlagSet) error {
	cfg, err := kubeletconfig.Load(f.config.file, f.config.dir)
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return fmt.Errorf("-config: %w", err)
	}
	f.config.mistakes = f.config.fields.Apply(cfg)
	visited, aliases := map[string]bool{}, kubeletAliases()
	fs.Visit(func(fl *flag.Flag) { visited[cmp.Or(aliases[fl.Name], fl.Name)] = true })
	for _, field := range kubeletconfig.Fields() {
		name := cmp.Or(aliases[field.Flag], field.Flag)
		fl := fs.Lookup(name)
		if fl == nil || isUnsupported(fl) || slices.Contains(fieldFlags(), name) {
			continue
		}
		switch {
		case visited[name]:
			err = cfg.Set(field.Flag, fl.Value.String())
		case cfg.Given(field.Path):
			err = fl.Value.Set(cfg.Text(field.Path))
		default:
			err = f.setDefault(cfg, field, fl)
		}
		f.config.mistakes = errors.Join(f.config.mistakes, err)
	}
	f.config.effective, f.config.inForce = cfg, new(atomic.Pointer[v1beta1.KubeletConfiguration])
	f.config.inForce.Store(cfg.Kubelet())
	if !f.config.isGiven() {
		return nil
	}
	f.listenAsConfigured(fs, cfg.Kubelet())
	if cfg.Given("authorization.mode") && cfg.Kubelet().Authorization.Mode == v1beta1.KubeletAuthorizationModeWebhook && f.kube.kubeconfig == "" && f.listen.https != "" {
		return errors.New("-config: authorization.mode: Webhook needs -kubeconfig, the cluster that decides; AlwaysAllow lets every authenticated client do everything")
	}
	return nil
}

// withFlags adds to each of the joined errors the flags of the fields that it names, if one of these flags was given.
func withFlags(fs *flag.FlagSet, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	given, aliases := map[string]bool{}, kubeletAliases()
	fs.Visit(func(fl *flag.Flag) { given[cmp.Or(aliases[fl.Name], fl.Name)] = true })
	all := slices.Clone(joined.Unwrap())
	for i, err := range all {
		words := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '.' && !unicode.IsLetter(r) })
		var names []string
		isGiven := false
		for _, field := range kubeletconfig.Fields() {
			name := cmp.Or(aliases[field.Flag], field.Flag)
			if fl := fs.Lookup(name); fl != nil && !isUnsupported(fl) && slices.Contains(words, field.Path) {
				names, isGiven = append(names, field.Path+" is -"+name), isGiven || given[name]
			}
		}
		if isGiven {
			all[i] = fmt.Errorf("%w (%s)", err, strings.Join(names, ", "))
		}
	}
	return errors.Join(all...)
}

func isUnsupported(fl *flag.Flag) bool {
	_, yes := fl.Value.(*unsupportedFlag)
	return yes
}

// setDefault settles a field that neither a flag nor a file gives: by the default of the
// flag, except where a node with a configuration expects the kubelet's.
func (f *flags) setDefault(cfg *kubeletconfig.Config, field kubeletconfig.Field, fl *flag.Flag) error {
	switch {
	case field.Path == "containerRuntimeEndpoint" && f.config.isGiven():
		return fl.Value.Set(cfg.Text(field.Path))
	case field.Path == "maxParallelImagePulls" && cfg.Given("serializeImagePulls"):
		return nil // that decides
	default:
		return cfg.SetDefault(field.Flag, fl.Value.String())
	}
}

// listenAsConfigured sets the addresses that the command line does not have.
func (f *flags) listenAsConfigured(fs *flag.FlagSet, k *v1beta1.KubeletConfiguration) {
	given := map[string]bool{}
	fs.Visit(func(fl *flag.Flag) { given[fl.Name] = true })
	if !given["listen"] {
		f.listen.addr = ""
		if *k.HealthzPort != 0 {
			f.listen.addr = net.JoinHostPort(k.HealthzBindAddress, strconv.Itoa(int(*k.HealthzPort)))
		}
	}
	if given["listen-https"] {
		return
	}
	f.listen.https = ""
	if *k.EnableServer && (f.kube.kubeconfig != "" || f.listen.tlsCert != "") {
		f.listen.https = net.JoinHostPort(k.Address, strconv.Itoa(int(k.Port)))
		return
	}
	f.config.noServer = *k.EnableServer
	if !given["listen"] { // what the file has for the server is for none
		f.listen.tlsCert, f.listen.tlsKey, f.listen.clientCA = "", "", ""
	}
}

// limit sets what the configuration says about the kubelet's API.
func (f *configFlags) limit(cfg *server.Config) error {
	k := f.effective.Kubelet()
	cfg.StreamIdleTimeout = k.StreamingConnectionIdleTimeout.Duration
	if !*k.EnableDebuggingHandlers {
		cfg.Logs, cfg.Streams, cfg.Commands = nil, nil, nil
		cfg.RunningPods, cfg.LogDir, cfg.ServiceLogs, cfg.Profiling = nil, "", nil, false
	}
	return f.limitTLS(cfg)
}

// limitTLS sets what the configuration says about TLS of any server.
func (f *configFlags) limitTLS(cfg *server.Config) error {
	limits, err := f.effective.TLS()
	if cfg.TLS != nil && err == nil {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.MinVersion, cfg.TLS.CipherSuites, cfg.TLS.CurvePreferences = limits.MinVersion, limits.CipherSuites, limits.CurvePreferences
	}
	return err
}

// enforce records that the value of a field in next is in force. One goroutine calls it.
func (f *configFlags) enforce(path string, next *kubeletconfig.Config) {
	k := f.inForce.Load().DeepCopy()
	fieldOf(k, path).Set(fieldOf(next.Kubelet(), path))
	f.inForce.Store(k)
}

// fieldOf returns a field of a configuration by its path.
func fieldOf(k *v1beta1.KubeletConfiguration, path string) reflect.Value {
	v := reflect.ValueOf(k).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
	}
	return v
}

// kubeletConfiguration returns what /configz serves: what is in force, without secrets.
func (f *flags) kubeletConfiguration() *v1beta1.KubeletConfiguration {
	k := f.config.inForce.Load().DeepCopy()
	k.APIVersion, k.Kind = v1beta1.SchemeGroupVersion.String(), "KubeletConfiguration"
	k.StaticPodURL, k.StaticPodURLHeader = withoutSecrets(k.StaticPodURL), nil
	if host, port, err := net.SplitHostPort(f.serverAddr()); err == nil {
		n, _ := strconv.ParseUint(port, 10, 16) // 0: a name of a service
		k.Address, k.Port = host, int32(n)
	}
	return k
}

// withoutSecrets returns scheme, host and path of a URL: a token may be its user, password or query.
func withoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
