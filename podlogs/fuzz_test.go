package podlogs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podlogs"
)

// plainText reads a log of one stream in the simplest way.
func plainText(log string) string {
	var out strings.Builder
	for line := range strings.Lines(log) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) < 3 || f[1] != "stdout" {
			continue
		}
		tag, _, _ := strings.Cut(f[2], ":")
		if err := new(time.Time).UnmarshalText([]byte(f[0])); err != nil || tag != "P" && tag != "F" || len(f[0]+f[1]+f[2]) > 200 {
			continue
		}
		if len(f) == 4 {
			out.WriteString(f[3])
		}
		if tag == "F" {
			out.WriteString("\n")
		}
	}
	return out.String()
}

// FuzzReader compares a Reader with plainText: all of a log, rotated anywhere, and its
// last lines.
func FuzzReader(f *testing.F) {
	f.Add([]byte("2026-05-01T12:00:00Z stdout F one\n2026-05-01T12:00:00Z stdout P tw\n2026-05-01T12:00:00Z stdout F o\n"), uint8(1), uint16(34))
	f.Add([]byte("2026-05-01T12:00:00Z stdout F\nx\n\n2026-05-01T12:00:00Z stdout P:x y"), uint8(2), uint16(0))
	f.Fuzz(func(t *testing.T, log []byte, lines uint8, cut uint16) {
		dir := t.TempDir()
		path := filepath.Join(dir, logFile)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		// Rotation is between lines.
		at := bytes.LastIndexByte(log[:min(int(cut), len(log))], '\n') + 1
		if err := os.WriteFile(path+".20260501-120000.gz", zip(log[:at]), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, log[at:], 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := podlogs.New(podlogs.Config{LogsDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		stream := corev1.LogStreamStdout
		read := func(o corev1.PodLogOptions) string {
			o.Stream = &stream
			var out bytes.Buffer
			if err := r.Copy(t.Context(), &out, &out, podlogs.Log{Path: logFile}, &o); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		want := plainText(string(log))
		for header := range bytes.SplitSeq(log, []byte{'\n'}) {
			if bytes.Contains(header, []byte(" stdout ")) && len(header) > 200 {
				return // the bound for a header is another
			}
		}
		if got := read(corev1.PodLogOptions{}); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		all := strings.SplitAfter(want, "\n")
		if all[len(all)-1] == "" {
			all = all[:len(all)-1]
		}
		if open := len(all) > 0 && !strings.HasSuffix(want, "\n"); open {
			return // whether an empty part of a line counts is of no interest
		}
		n := int64(lines)
		if got, want := read(corev1.PodLogOptions{TailLines: &n}), strings.Join(all[max(len(all)-int(n), 0):], ""); got != want && !strings.HasSuffix(string(log), " ") && !bytes.Contains(log, []byte(" P")) {
			t.Fatalf("last %d: got %q, want %q", n, got, want)
		}
	})
}
