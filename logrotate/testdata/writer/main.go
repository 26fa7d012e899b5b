// Command writer writes numbered lines to its standard output at a steady speed,
// and at the end tells on its standard error how many there were, and how long
// the longest write was held up.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"time"
)

const (
	lineLen = 1000
	beat    = 2 * time.Millisecond
)

func main() {
	speed := flag.Int("speed", 50_000_000, "bytes a second")
	last := flag.Duration("for", 5*time.Second, "how long")
	flag.Parse()
	blank := bytes.Repeat([]byte{' '}, lineLen)
	var lines, slow int
	var longest time.Duration
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < *last; {
		due := int(float64(*speed) * time.Since(began).Seconds() / lineLen)
		var b []byte
		for ; lines < due && len(b) < 1<<20; lines++ {
			at := len(b)
			b = append(b, blank...)
			copy(b[at:], fmt.Sprintf("%012d", lines))
			b[len(b)-1] = '\n'
		}
		start := time.Now()
		if _, err := os.Stdout.Write(b); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		took := time.Since(start)
		longest = max(longest, took)
		if took > 50*time.Millisecond {
			slow++
		}
		<-tick.C
	}
	fmt.Fprintf(os.Stderr, "lines=%d longest=%dus slow=%d\n", lines, longest.Microseconds(), slow)
}
