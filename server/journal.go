package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Journal reads the journal of systemd by the program journalctl, which reads all of it if the
// process may, such as that of root or of the group systemd-journal.
type Journal struct{}

var _ ServiceLogs = Journal{}

// journalWait is how long the pipes of a journalctl that was ended may be open.
const journalWait = time.Second

func journalctl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "SYSTEMD_COLORS=0"}
	cmd.WaitDelay = journalWait
	return cmd
}

// Having implements ServiceLogs: those with entries of a unit of that name, or of that name with .service.
func (Journal) Having(ctx context.Context, services []string) (having []string, err error) {
	cmd := journalctl(ctx, "--no-pager", "--field=_SYSTEMD_UNIT")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		for _, s := range services {
			if unit := lines.Text(); (unit == s || unit == s+".service") && !slices.Contains(having, s) {
				having = append(having, s)
			}
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return having, nil
}

// Read implements ServiceLogs. Times are in UTC.
func (Journal) Read(ctx context.Context, q *LogQuery, w io.Writer) error {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	const format = "2006-01-02 15:04:05 UTC"
	if !q.Since.IsZero() {
		args = append(args, "--since="+q.Since.UTC().Format(format))
	}
	if !q.Until.IsZero() {
		args = append(args, "--until="+q.Until.UTC().Format(format))
	}
	if q.Tail != nil {
		args = append(args, "--lines="+strconv.Itoa(*q.Tail))
	}
	for _, s := range q.Services {
		args = append(args, "--unit="+s)
	}
	if q.Pattern != "" {
		args = append(args, "--grep="+q.Pattern)
	}
	if q.Boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*q.Boot))
	}
	cmd := journalctl(ctx, args...)
	cmd.Stdout, cmd.Stderr = w, w
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		return nil // it found nothing, or has said why
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}
