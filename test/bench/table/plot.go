package main

import (
	"bytes"
	"fmt"
	"html"
	"strings"
)

// series are the bars of each group of the plot, and the units of their values and of the mark in them.
var series = []struct{ name, unit, mark, color string }{ //nolint:gochecknoglobals // a constant
	{"raw calls, best concurrency", "raw-up-ms", "", "#8c8c8c"},
	{"agent", "last-ms", "median-ms", "#3267c8"},
	{"kubelet", "kubelet-last-ms", "kubelet-median-ms", "#d9822b"},
}

// The geometry of the plot, in pixels.
const (
	plotWidth  = 760
	labelWidth = 250
	barHeight  = 16
	groupGap   = 18
	topMargin  = 64
	valueWidth = 70
)

// plotBursts draws the time of the last pod of each burst, with a mark at the median pod.
func plotBursts(all results) []byte {
	names := all.matching(`Burst/containerd-.*`, "last-ms")
	longest := 1.0
	for _, name := range names {
		for _, s := range series {
			if v, ok := all.value(name, s.unit); ok {
				longest = max(longest, v)
			}
		}
	}
	scale := (plotWidth - labelWidth - valueWidth) / longest
	height := topMargin + len(names)*(len(series)*barHeight+groupGap)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		plotWidth, height, plotWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<text x="8" y="20" font-size="14">Seconds until the last of many pods runs; the white line is the median pod</text>`+"\n")
	for i, s := range series {
		x := 8 + i*220
		fmt.Fprintf(&b, `<rect x="%d" y="32" width="12" height="12" fill="%s"/><text x="%d" y="43">%s</text>`+"\n", x, s.color, x+18, html.EscapeString(s.name))
	}
	y := topMargin
	for _, name := range names {
		fmt.Fprintf(&b, `<text x="8" y="%d">%s</text>`+"\n", y+2*barHeight-4, html.EscapeString(burstLabel(name)))
		for _, s := range series {
			if v, ok := all.value(name, s.unit); ok {
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%.1f</text>`+"\n",
					labelWidth, y, v*scale, barHeight-2, s.color, labelWidth+v*scale+6, y+barHeight-4, v/1000)
			}
			if m, ok := all.value(name, s.mark); ok {
				fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="2" height="%d" fill="#ffffff"/>`+"\n", labelWidth+m*scale-1, y, barHeight-2)
			}
			y += barHeight
		}
		y += groupGap
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// burstLabel turns Burst/containerd-2.4/pods=30/busy=1 into words.
func burstLabel(name string) string {
	name = strings.TrimPrefix(name, "Burst/")
	return strings.NewReplacer("/pods=", ", ", "/busy=0", " pods", "/busy=1", " pods, a busy core", "containerd-", "containerd ").Replace(name)
}
