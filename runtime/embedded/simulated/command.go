package simulated

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// compile converts a command to a script, so that common test pods behave in a
// simulation as they do on a machine: sleep, echo, exit, true, false, and sh -c
// of these, parted by ; or & or && or newlines, with traps of TERM that ignore it or
// exit. ok is false for anything else.
func compile(argv []string) (s Script, ok bool) {
	if len(argv) == 0 {
		return Script{}, false
	}
	steps := []step{{argv: argv}}
	if shell := argv[0]; slices.Contains([]string{"sh", "/bin/sh", "bash", "/bin/bash"}, shell) {
		if len(argv) < 3 || argv[1] != "-c" {
			return Script{}, false
		}
		if steps, ok = split(argv[2]); !ok {
			return Script{}, false
		}
	}
	s, _, ok = compileSteps(steps)
	return s, ok
}

// compileSteps converts the commands of a shell. exits is true if one of them ends the shell.
func compileSteps(steps []step) (s Script, exits, ok bool) {
	var code int32
	for _, step := range steps {
		if step.ifSucceeded && code != 0 {
			continue
		}
		done, understood := s.step(step.argv, &code)
		if !understood {
			return Script{}, false, false
		}
		if done {
			exits = true
			break
		}
	}
	if s.RunFor == 0 {
		s.RunFor = time.Nanosecond // 0 would mean without end
	}
	s.ExitCodes = []int32{code}
	return s, exits, true
}

// step is one command of a shell.
type step struct {
	argv        []string
	ifSucceeded bool // it runs only if the one before it has succeeded
}

// forever is the duration of sleep infinity.
const forever = time.Duration(1<<63 - 1)

// step adds one command to s. done means that nothing runs after it.
func (s *Script) step(argv []string, code *int32) (done, ok bool) {
	if len(argv) > 0 && argv[0] == "exec" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return false, true
	}
	name, args := argv[0][strings.LastIndexByte(argv[0], '/')+1:], argv[1:]
	*code = 0
	switch {
	case name == "true" || name == ":" || name == "wait":
	case name == "false":
		*code = 1
	case name == "exit" && len(args) <= 1:
		n, err := strconv.ParseUint(append(args, "0")[0], 10, 8)
		*code = int32(n)
		return true, err == nil
	case name == "sleep" && len(args) == 1:
		d, ok := sleepTime(args[0])
		if !ok {
			return false, false
		}
		if d >= forever-s.RunFor {
			s.RunFor = forever
			return true, true
		}
		s.RunFor += d
	case name == "echo":
		line := OutputLine{At: s.RunFor}
		if n := len(args); n > 0 && (args[n-1] == ">&2" || args[n-1] == "1>&2") {
			line.Stderr, args = true, args[:n-1]
		}
		for len(args) > 0 && args[0] == "-n" {
			line.Open, args = true, args[1:]
		}
		line.Text = strings.Join(args, " ")
		s.Output = append(s.Output, line)
	case name == "trap" && len(args) == 2 && args[1] == "TERM":
		return false, s.trap(args[0])
	default:
		return false, false
	}
	return false, true
}

// trap parses the action of a shell at SIGTERM.
func (s *Script) trap(action string) bool {
	if action == "" {
		s.IgnoreTERM = true
		return true
	}
	code, ok := strings.CutPrefix(action, "exit ")
	n, err := strconv.ParseUint(code, 10, 8)
	exit := int32(n)
	s.TermExitCode = &exit
	return ok && err == nil
}

// sleepTime parses the argument of sleep.
func sleepTime(arg string) (time.Duration, bool) {
	if arg == "infinity" || arg == "inf" {
		return forever, true
	}
	if n, err := strconv.ParseFloat(arg, 64); err == nil && n >= 0 && n < 1e9 {
		return time.Duration(n * float64(time.Second)), true
	}
	d, err := time.ParseDuration(arg)
	return d, err == nil && d >= 0
}

// split takes a shell text apart into commands and words. Texts with anything
// that a shell would interpret, but for quotes, are left alone.
func split(text string) (steps []step, ok bool) {
	var argv []string
	ifSucceeded := false
	var word strings.Builder
	quoted, inWord := byte(0), false
	endWord := func() {
		if inWord {
			argv = append(argv, word.String())
		}
		word.Reset()
		inWord = false
	}
	endStep := func() {
		endWord()
		if len(argv) > 0 {
			steps = append(steps, step{argv, ifSucceeded})
			ifSucceeded = false
		}
		argv = nil
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted == '\'' || quoted == '"' && !strings.ContainsRune("$`\\", rune(c)):
			word.WriteByte(c)
		case quoted != 0:
			return nil, false
		case c == '\'' || c == '"':
			quoted, inWord = c, true
		case c == ';' || c == '\n':
			endStep()
		case c == '&' && strings.HasPrefix(text[i:], "&&"):
			endStep()
			ifSucceeded = true
			i++
		case c == '&':
			endStep()
		case c == '>' && strings.HasPrefix(text[i:], ">&2"), c == '1' && !inWord && strings.HasPrefix(text[i:], "1>&2"):
			endWord()
			argv = append(argv, ">&2")
			i += strings.IndexByte(text[i:], '2')
		case c == ' ' || c == '\t':
			endWord()
		case strings.ContainsRune("|<>&$`\\(){}*?[]#~!", rune(c)):
			return nil, false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	endStep()
	return steps, quoted == 0
}
