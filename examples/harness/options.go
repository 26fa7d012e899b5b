package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// settings are the flags.
type settings struct {
	endpoints, reports []string

	// Of the suite.
	privateImage, privateCredentials, cdiSpecDir                                            string
	image, secondImage, cgroupParent, restart, logRoot, without, knownFailures, knownFlakes string
	largeListSize, parallel                                                                 int
	knownRuntimes                                                                           bool
	only                                                                                    *regexp.Regexp

	// Of the output.
	json, junit, html, markdown string
	quiet, list                 bool
}

// parse parses the arguments of the command. An environment variable CRI_NAME sets the
// default of a flag: CRI_SECOND_IMAGE that of -second-image.
func parse(args []string, getenv func(string) string, stderr io.Writer) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("harness", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints errors
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "usage: harness -endpoint unix:///path.sock [flags]\n       harness [-html FILE] REPORT.json REPORT.json ...\n\n"+
			"An environment variable sets the default of each flag: CRI_SECOND_IMAGE that of -second-image.\n\n")
		flags.PrintDefaults()
	}
	s.define(flags)
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		name := "CRI_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := getenv(name); value != "" && f.Name != "endpoint" {
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: invalid value %q: %w", name, value, err))
			}
		}
	})
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stderr)
		flags.Usage()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w; -help prints all flags", err)
	}
	s.reports = flags.Args()
	if endpoint := getenv("CRI_ENDPOINT"); endpoint != "" && len(s.endpoints)+len(s.reports) == 0 {
		s.endpoints = []string{endpoint}
	}
	return s, errors.Join(append(errs, s.check())...)
}

// define declares the flags.
func (s *settings) define(flags *flag.FlagSet) {
	flags.Func("endpoint", "CRI endpoint of the runtime, as unix:///run/my.sock; given twice, the runtimes are compared", func(value string) error {
		s.endpoints = append(s.endpoints, value)
		return nil
	})
	flags.StringVar(&s.image, "image", "", "image of the containers, with the programs of busybox (default: busybox of Docker Hub)")
	flags.StringVar(&s.secondImage, "second-image", "", "image with sh and sleep that may be removed: also test that")
	flags.StringVar(&s.privateImage, "private-image", "", "image that can be pulled only with -private-image-credentials and may be removed: also test that")
	flags.StringVar(&s.privateCredentials, "private-image-credentials", "", "file with a line \"username:password\" for -private-image")
	flags.StringVar(&s.cdiSpecDir, "cdi-spec-dir", "", "directory where the runtime finds CDI specifications: also test CDI devices, with a specification that is removed")
	flags.StringVar(&s.cgroupParent, "cgroup-parent", "", "parent of the cgroups of the pods")
	flags.StringVar(&s.restart, "restart", "", "shell command that restarts the runtime and returns when it serves: also test that")
	flags.StringVar(&s.logRoot, "log-root", "", "directory for logs and mounts that the runtime has at the same path (default: a temporary one)")
	flags.IntVar(&s.largeListSize, "large-list-size", 20, "number of pods in the cases of large lists")
	flags.StringVar(&s.without, "without", "", "what the runtime lacks, separated by commas: processes, isolation, confinement, limits, host-ports")
	flags.StringVar(&s.knownFailures, "known-failures", "", "file with a line \"case: reason\" for each case that fails always")
	flags.StringVar(&s.knownFlakes, "known-flakes", "", "file with a line \"case: reason\" for each case that fails at times")
	flags.BoolVar(&s.knownRuntimes, "known-runtimes", true, "know the failures of released runtimes")
	flags.IntVar(&s.parallel, "parallel", 4, "number of cases at a time")
	flags.Func("run", "run only the cases whose names match the regular expression", func(value string) (err error) {
		s.only, err = regexp.Compile(value)
		return err
	})
	flags.BoolVar(&s.list, "list", false, "print the names of all cases and exit")
	flags.BoolVar(&s.quiet, "quiet", false, "print no progress")
	flags.StringVar(&s.json, "json", "", "file for the report as JSON; - is the standard output")
	flags.StringVar(&s.junit, "junit", "", "file for the report as JUnit XML; - is the standard output")
	flags.StringVar(&s.html, "html", "", "file for the results side by side as a page; - is the standard output")
	flags.StringVar(&s.markdown, "markdown", "", "file for the results side by side as Markdown; - is the standard output")
}

// check returns what is wrong with the flags.
func (s *settings) check() error {
	var errs []error
	count := len(s.endpoints) + len(s.reports)
	if count == 0 && !s.list {
		errs = append(errs, errors.New("-endpoint required, as unix:///run/containerd/containerd.sock; -help prints all flags"))
	}
	for _, endpoint := range s.endpoints {
		if !strings.HasPrefix(endpoint, "/") && !strings.Contains(endpoint, ":") {
			errs = append(errs, fmt.Errorf("-endpoint %q: must be an address such as unix:///run/my.sock", endpoint))
		}
	}
	for name, path := range map[string]string{"json": s.json, "junit": s.junit} {
		if path != "" && count > 1 {
			errs = append(errs, fmt.Errorf("-%s: a report has one runtime; use -html or -markdown to compare", name))
		}
	}
	if s.parallel < 1 || s.largeListSize < 1 {
		errs = append(errs, errors.New("-parallel and -large-list-size must be positive"))
	}
	if s.only != nil && s.selectedCases() == 0 {
		errs = append(errs, fmt.Errorf("-run %q: no case has such a name; -list prints all", s.only))
	}
	toStdout := 0
	for _, path := range []string{s.json, s.junit, s.html, s.markdown} {
		if path == "-" {
			toStdout++
		}
	}
	if toStdout > 1 {
		errs = append(errs, errors.New("only one of -json, -junit, -html and -markdown can be -"))
	}
	_, err := s.options()
	return errors.Join(append(errs, err)...)
}

// printsReport reports whether the standard output has another form than the text.
func (s *settings) printsReport() bool {
	return slices.Contains([]string{s.json, s.junit, s.html, s.markdown}, "-")
}

// options are the options of the suite.
func (s *settings) options() ([]runtimetest.Option, error) {
	opts := []runtimetest.Option{runtimetest.MaxParallel(s.parallel), runtimetest.LargeListSize(s.largeListSize)}
	if s.knownRuntimes {
		opts = append(opts, runtimetest.KnownRuntimes())
	}
	if s.only != nil {
		opts = append(opts, runtimetest.Only(s.only.MatchString))
	}
	for _, o := range []struct {
		value  string
		option func(string) runtimetest.Option
	}{
		{s.image, runtimetest.Image},
		{s.secondImage, runtimetest.SecondImage},
		{s.logRoot, runtimetest.LogRoot},
		{s.cgroupParent, withCgroupParent},
		{s.restart, restartBy},
		{s.cdiSpecDir, runtimetest.CDISpecDir},
	} {
		if o.value != "" {
			opts = append(opts, o.option(o.value))
		}
	}
	var errs []error
	for _, o := range []struct {
		name, path string
		option     func(map[string]string) runtimetest.Option
	}{{"known-failures", s.knownFailures, runtimetest.KnownFailures}, {"known-flakes", s.knownFlakes, runtimetest.KnownFlakes}} {
		if o.path != "" {
			reasons, err := readReasons(o.path)
			if err != nil {
				errs = append(errs, fmt.Errorf("-%s: %w", o.name, err))
			}
			opts = append(opts, o.option(reasons))
		}
	}
	private, err := s.private()
	if err != nil {
		errs = append(errs, err)
	}
	opts = append(opts, private...)
	without := map[string]func() runtimetest.Option{
		"processes": runtimetest.WithoutProcesses, "isolation": runtimetest.WithoutIsolation, "confinement": runtimetest.WithoutConfinement,
		"limits": runtimetest.WithoutResourceLimits, "host-ports": runtimetest.WithoutHostPorts,
	}
	for _, name := range strings.FieldsFunc(s.without, func(r rune) bool { return r == ',' || r == ' ' }) {
		option, ok := without[name]
		if !ok {
			errs = append(errs, fmt.Errorf("-without: invalid value %q; use processes, isolation, confinement, limits, host-ports", name))
			continue
		}
		opts = append(opts, option())
	}
	return opts, errors.Join(errs...)
}

// private returns the option of the private image, whose password is in a file.
func (s *settings) private() ([]runtimetest.Option, error) {
	if s.privateImage == "" && s.privateCredentials == "" {
		return nil, nil
	}
	if s.privateImage == "" || s.privateCredentials == "" {
		return nil, errors.New("-private-image and -private-image-credentials: both required")
	}
	text, err := os.ReadFile(s.privateCredentials)
	if err != nil {
		return nil, fmt.Errorf("-private-image-credentials: %w", err)
	}
	username, password, ok := strings.Cut(strings.TrimRight(string(text), "\r\n"), ":")
	if !ok {
		return nil, fmt.Errorf("-private-image-credentials: %s: must have a line \"username:password\"", s.privateCredentials)
	}
	return []runtimetest.Option{runtimetest.PrivateImage(s.privateImage, username, password)}, nil
}

// selectedCases returns the number of cases that are run.
func (s *settings) selectedCases() int {
	return len(slices.DeleteFunc(runtimetest.Cases(), func(name string) bool { return s.only != nil && !s.only.MatchString(name) }))
}

// withCgroupParent makes the cgroups of all pods below one, each with the pod's UID.
func withCgroupParent(parent string) runtimetest.Option {
	return runtimetest.EditPod(func(pod *v1.PodSandboxConfig) {
		pod.Linux.CgroupParent = parent + "/" + pod.GetMetadata().GetUid()
	})
}

// restartBy restarts the runtime by a shell command.
func restartBy(command string) runtimetest.Option {
	return runtimetest.Restart(func(ctx context.Context) error {
		if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
}

// readReasons reads a list of cases and reasons.
func readReasons(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	reasons := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: invalid line %q; write \"case: reason\"", path, line)
		}
		reasons[name] = reason
	}
	return reasons, lines.Err()
}
