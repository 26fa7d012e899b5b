// Command tools is what the images of the end-to-end tests need besides busybox and agnhost.
// The name that it is called by decides what it is: sh, curl, nc, web or nnp.
package main

import (
	"bytes"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

func main() {
	err := fmt.Errorf("unknown program %q", os.Args[0])
	switch filepath.Base(os.Args[0]) {
	case "sh":
		err = shell()
	case "nc":
		err = netcat(os.Args[1:], os.Stdin, os.Stdout)
	case "curl":
		err = curl(os.Args[1:])
	case "web": // in place of nginx
		err = http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<title>Welcome to nginx!</title>\n")
		}))
	case "nnp": // is installed with the set-user-ID bit
		_, err = fmt.Println("Effective uid:", os.Geteuid())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shell runs busybox' shell, whose messages the tests know, or bash if there is a variable
// whose name is no identifier: busybox drops it.
func shell() error {
	program := "/bin/busybox"
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.ContainsFunc(name, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}) {
			program = "/bin/bash"
		}
	}
	return syscall.Exec(program, append([]string{"/bin/sh"}, os.Args[1:]...), os.Environ()) //nolint:gosec // one of two
}

// netcat sends its input to an address and prints what comes back, until nothing comes for
// -w seconds: nc [-u] [-w SECONDS] HOST PORT.
func netcat(args []string, in io.Reader, out io.Writer) error {
	fs := flag.NewFlagSet("nc", flag.ContinueOnError)
	udp, wait := fs.Bool("u", false, ""), fs.Int("w", 1, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 2 {
		return fmt.Errorf("nc: give a host and a port, not %q", fs.Args())
	}
	network := "tcp"
	if *udp {
		network = "udp"
	}
	timeout := time.Duration(*wait) * time.Second
	conn, err := net.DialTimeout(network, net.JoinHostPort(fs.Arg(0), fs.Arg(1)), timeout)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.Copy(conn, in); err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(timeout))
		n, err := conn.Read(buffer)
		_, _ = out.Write(buffer[:n])
		if err != nil { // the end, or nothing more
			return nil
		}
	}
}

// options are those of curl that the tests use.
type options struct {
	method, out, user       string
	data, headers           []string
	total, connect          float64 // seconds
	insecure, fail, include bool
	head                    bool
	written, ignored        string
}

func (o *options) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("curl", flag.ContinueOnError)
	text := func(p *string, names ...string) {
		for _, name := range names {
			fs.StringVar(p, name, "", "")
		}
	}
	list := func(p *[]string, names ...string) {
		for _, name := range names {
			fs.Func(name, "", func(s string) error { *p = append(*p, s); return nil })
		}
	}
	seconds := func(p *float64, names ...string) {
		for _, name := range names {
			fs.Float64Var(p, name, 0, "")
		}
	}
	set := func(p *bool, names ...string) {
		for _, name := range names {
			fs.BoolVar(p, name, false, "")
		}
	}
	text(&o.method, "X", "request")
	text(&o.out, "o", "output")
	text(&o.user, "u", "user")
	text(&o.written, "w", "write-out")
	text(&o.ignored, "retry", "interface")
	list(&o.data, "d", "data")
	list(&o.headers, "H", "header")
	seconds(&o.total, "m", "max-time")
	seconds(&o.connect, "connect-timeout")
	set(&o.insecure, "k", "insecure")
	set(&o.fail, "f", "fail")
	set(&o.include, "i", "include")
	set(&o.head, "I", "head")
	set(new(bool), "s", "silent", "S", "show-error", "g", "globoff", "q", "disable", "L", "location", "v", "verbose")
	return fs
}

// spread parts the flags that are written in one word, such as -sSk, and a method from its flag.
func spread(args []string) (all []string) {
	for _, a := range args {
		if method, ok := strings.CutPrefix(a, "-X"); ok && method != "" {
			all = append(all, "-X", method)
			continue
		}
		if len(a) > 2 && a[0] == '-' && a[1] != '-' && strings.Trim(a[1:], "sSkfigqLvI") == "" {
			for _, letter := range a[1:] {
				all = append(all, "-"+string(letter))
			}
			continue
		}
		all = append(all, a)
	}
	return all
}

func curl(args []string) error {
	o, fs := new(options), (*flag.FlagSet)(nil)
	fs = o.flags()
	var urls []string
	for args = spread(args); len(args) > 0; {
		if err := fs.Parse(args); err != nil {
			return err
		}
		if args = fs.Args(); len(args) > 0 { // flags may follow a URL
			urls, args = append(urls, args[0]), args[1:]
		}
	}
	duration := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	client := &http.Client{Timeout: duration(o.total), Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: o.insecure}, //nolint:gosec // as asked
		DialContext:     (&net.Dialer{Timeout: duration(o.connect)}).DialContext,
	}}
	for _, url := range urls {
		if err := o.get(client, url); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) get(client *http.Client, url string) error {
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	method := o.method
	switch {
	case method != "":
	case o.head:
		method = http.MethodHead
	case len(o.data) > 0:
		method = http.MethodPost
	}
	r, err := http.NewRequest(method, url, strings.NewReader(strings.Join(o.data, "&")))
	if err != nil {
		return err
	}
	if len(o.data) > 0 {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range o.headers {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Set(name, strings.TrimSpace(value))
	}
	if name, password, ok := strings.Cut(o.user, ":"); ok {
		r.SetBasicAuth(name, password)
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if o.fail && response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("status %s", response.Status)
	}
	var content bytes.Buffer
	if o.include || o.head {
		_ = response.Header.Write(&content)
		content.WriteString("\n")
	}
	if !o.head {
		if _, err := content.ReadFrom(response.Body); err != nil {
			return err
		}
	}
	if o.out != "" {
		err = os.WriteFile(o.out, content.Bytes(), 0o600)
	} else {
		_, err = os.Stdout.Write(content.Bytes())
	}
	if err == nil {
		_, err = io.WriteString(os.Stdout, strings.ReplaceAll(o.written, "%{http_code}", strconv.Itoa(response.StatusCode)))
	}
	return err
}
