// Command table makes a table from the output of the benchmarks of whole agents: what is measured, its target, and whether it is met.
//
//	table [-svg FILE] DIR
//
// It reads each *.txt in DIR that has results in the format of go test, prints Markdown, and writes a plot of bursts.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	svg := flag.String("svg", "", "file for the plot of bursts")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: table [-svg FILE] DIR")
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), *svg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, dir, svg string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return err
	}
	all := results{}
	for _, name := range files {
		text, err := os.ReadFile(name) //nolint:gosec // a file that the caller names
		if err != nil {
			return err
		}
		all.add(text)
	}
	if len(all) == 0 {
		return fmt.Errorf("%s: no results of benchmarks", dir)
	}
	all.compareWithRaw()
	var page bytes.Buffer
	writeTable(&page, goals(), all)
	writeVariants(&page, goals(), all)
	if _, err := out.Write(page.Bytes()); err != nil || svg == "" {
		return err
	}
	return os.WriteFile(svg, plotBursts(all), 0o644) //nolint:gosec // a plot for everybody
}
