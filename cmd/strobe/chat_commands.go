package main

import (
	"fmt"
	"slices"
	"strings"

	"strobe/internal/engine"
)

// chatCommand is a line that begins with a slash.
type chatCommand struct {
	name, args, help string
	// run returns what to print. quit ends the chat; again asks for another answer to the last message.
	run func(t *talk, arg string) (out string, quit, again bool, err error)
}

var chatCommands []chatCommand

func init() { // not in the declaration: /help refers to the list
	say := func(out string) (string, bool, bool, error) { return out, false, false, nil }
	fail := func(format string, args ...any) (string, bool, bool, error) {
		return "", false, false, fmt.Errorf(format, args...)
	}
	chatCommands = []chatCommand{
		{"/help", "", "list the commands", func(*talk, string) (string, bool, bool, error) { return say(chatHelp()) }},
		{"/clear", "", "forget the conversation", func(t *talk, _ string) (string, bool, bool, error) {
			t.messages = nil
			return say("The conversation is empty.")
		}},
		{"/retry", "", "answer the last message again",
			func(*talk, string) (string, bool, bool, error) { return "", false, true, nil }},
		{"/undo", "", "take the last message and its answer back", func(t *talk, _ string) (string, bool, bool, error) {
			if !t.undo() {
				return fail("there is no message to take back")
			}
			return say(fmt.Sprintf("The conversation has %s.", count(len(t.messages), "message")))
		}},
		{"/system", "[TEXT]", "show or change the system message", func(t *talk, arg string) (string, bool, bool, error) {
			if arg != "" {
				t.system = arg
			}
			if t.system == "" {
				return say("There is no system message.")
			}
			return say("System message: " + t.system)
		}},
		{"/image", "FILE", "show the model an image, with the next message", func(t *talk, arg string) (string, bool, bool, error) {
			if arg == "" {
				return fail("/image: name a file")
			}
			if err := t.show(arg); err != nil {
				return fail("%w", err)
			}
			return say(fmt.Sprintf("%s with the next message.", count(len(t.images), "image")))
		}},
		{"/model", "[NAME]", "show the model, or go on with another one", func(t *talk, arg string) (string, bool, bool, error) {
			if arg == "" {
				return say(t.describe())
			}
			if err := t.switchTo(arg); err != nil {
				return fail("/model: %w", err)
			}
			return say(t.describe())
		}},
		{"/set", "[NAME VALUE]", "show or change a setting: " + strings.Join(settings, ", "),
			func(t *talk, arg string) (string, bool, bool, error) {
				if arg == "" {
					return say(t.settings())
				}
				if err := t.set(arg); err != nil {
					return fail("%w", err)
				}
				return say(t.settings())
			}},
		{"/think", "on|off|auto", "let the model reason before it answers, if its template knows how",
			func(t *talk, arg string) (string, bool, bool, error) {
				on, off := true, false
				switch arg {
				case "on":
					t.think = &on
				case "off":
					t.think = &off
				case "auto":
					t.think = nil
				default:
					return fail("/think: want on, off or auto")
				}
				if tmpl, err := t.Format().Template(); err != nil || t.continues() || !tmpl.Thinking() {
					return say("This model's template has no switch for reasoning.")
				}
				return say("Reasoning: " + arg)
			}},
		{"/drafts", "on|off", "colour accepted draft tokens", func(t *talk, arg string) (string, bool, bool, error) {
			if arg != "on" && arg != "off" {
				return fail("/drafts: want on or off")
			}
			t.opt.colorDrafts = arg == "on"
			return say("Colour of accepted draft tokens: " + arg)
		}},
		{"/save", "FILE", "write the conversation to a file", func(t *talk, arg string) (string, bool, bool, error) {
			if arg == "" {
				return fail("/save: name a file")
			}
			if err := t.saveFile(arg); err != nil {
				return fail("%w", err)
			}
			return say(fmt.Sprintf("%s written to %s", count(len(t.messages), "message"), arg))
		}},
		{"/load", "FILE", "continue a conversation from a file", func(t *talk, arg string) (string, bool, bool, error) {
			if arg == "" {
				return fail("/load: name a file")
			}
			if err := t.loadFile(arg); err != nil {
				return fail("%w", err)
			}
			return say(fmt.Sprintf("%s read from %s", count(len(t.messages), "message"), arg))
		}},
		{"/stats", "", "numbers of this session", func(t *talk, _ string) (string, bool, bool,
			error) {
			return say(t.statistics())
		}},
		{"/quit", "", "leave", func(*talk, string) (string, bool, bool, error) { return "", true, false, nil }},
	}
}

// aliases are other names people try.
var aliases = map[string]string{"/exit": "/quit", "/bye": "/quit", "/q": "/quit", "/?": "/help", "/reset": "/clear",
	"/new": "/clear"}

// settings are the flags that /set changes.
var settings = []string{"temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty",
	"seed", "predict"}

// command runs a line that begins with a slash.
func (t *talk) command(line string) (out string, quit, again bool, err error) {
	name, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	if a := aliases[name]; a != "" {
		name = a
	}
	i := slices.IndexFunc(chatCommands, func(c chatCommand) bool { return c.name == name })
	if i < 0 {
		var names []string
		for _, c := range chatCommands {
			names = append(names, c.name)
		}
		hint := ""
		if s := nearest(name, names); s != "" {
			hint = ", did you mean " + s + "?"
		}
		return "", false, false, fmt.Errorf("there is no command %s%s; /help lists them, and //%s sends the text itself", name,
			hint, strings.TrimPrefix(name, "/"))
	}
	return chatCommands[i].run(t, strings.TrimSpace(arg))
}

// isCommand reports whether a line is a command. Two slashes begin a message with one, and so does a slash that begins
// the path of an image file, which terminals write when a file is dragged into them.
func isCommand(line string) (message string, command bool) {
	if path := draggedImage(line); path != "" {
		return "/image " + path, true
	}
	if strings.HasPrefix(line, "//") {
		return line[1:], false
	}
	return line, strings.HasPrefix(line, "/") && !strings.Contains(line, "\n")
}

func chatHelp() string {
	var b strings.Builder
	for _, c := range chatCommands {
		fmt.Fprintf(&b, "%-20s %s\n", strings.TrimSpace(c.name+" "+c.args), c.help)
	}
	b.WriteString("Alt-Enter or a backslash at the end begins a new line, Ctrl-C stops an answer, Ctrl-D leaves.")
	return b.String()
}

func (t *talk) settings() string {
	var s []string
	for _, name := range settings {
		s = append(s, name+" "+t.flags.Lookup(name).Value.String())
	}
	return strings.Join(s, ", ")
}

func (t *talk) set(arg string) error {
	name, value, _ := strings.Cut(arg, " ")
	value = strings.TrimSpace(value)
	f := t.flags.Lookup(name)
	if f == nil || !slices.Contains(settings, name) {
		return fmt.Errorf("setting %q: want one of %s", name, strings.Join(settings, ", "))
	}
	old := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		_ = f.Value.Set(old) // some have become 0
		return fmt.Errorf("%s %q: not a valid number", name, value)
	}
	if _, err := t.opt.params(0); err != nil || t.opt.n < 0 {
		_ = f.Value.Set(old)
		return fmt.Errorf("%s %s: out of range", name, value)
	}
	return nil
}

func (t *talk) statistics() string {
	m := t.model()
	limit := t.Engine().Config().Context
	s := fmt.Sprintf("%s\n%d answers, %d messages, %d of %d tokens of context used\n", m.Summary(), t.turns,
		len(t.messages), t.context, limit)
	if t.turns > 0 {
		s += "all answers: " + t.total.String() + "\n"
		if t.turns > 1 {
			s += "last answer: " + t.last.String() + "\n"
		}
	}
	snap := t.Engine().Snapshot()
	return s + fmt.Sprintf("cache: %s target, %s drafter", engine.Bytes(snap.TargetBytes), engine.Bytes(snap.DrafterBytes))
}
