package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"strobe/internal/chat"
	"strobe/internal/testkit"
	"strobe/internal/testkit/edit"
)

// TestRunImage: strobe run shows a model images, and says what is wrong where it cannot.
func TestRunImage(t *testing.T) {
	model := edit.Golden(t, "qwen35").WithImages(t)
	dir := t.TempDir()
	image, text := filepath.Join(dir, "a b.png"), filepath.Join(dir, "a.txt")
	for path, data := range map[string][]byte{image: testkit.PNG(t, 40, 33, 1), text: []byte("hello")} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(args ...string) (int, string, string) {
		return command(t, append([]string{"run", "-m", model, "-p", "what is it?", "-n", "5", "--temp", "0", "-d", "none",
			"--device", "cpu"}, args...)...)
	}
	_, blind, _ := ask()
	code, seen, stderr := ask("--image", image)
	if code != exitOK || seen == blind || !strings.Contains(stderr, "images: mmproj-qwen-small-f32.gguf") {
		t.Errorf("code %d, %q, without the image %q: %s", code, seen, blind, stderr)
	}
	for _, c := range []struct{ args, want string }{
		{"--image " + text, "a.txt: image: neither PNG"},
		{"--image /nowhere.png", "nowhere.png"},
		{"--image x.png --raw", "--raw"},
		{"--no-mmproj --image " + text, "text only"},
		{"--no-mmproj --mmproj x", "exclude"},
		{"--mmproj-device nothing", "--mmproj-device"},
	} {
		if code, _, stderr := ask(strings.Fields(c.args)...); code == exitOK || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: code %d, %s", c.args, code, stderr)
		}
	}
	quoted := strings.ReplaceAll(image, " ", `\ `)
	for line, want := range map[string]string{quoted + " ": image, "'" + image + "'": image, `"` + image + `"`: image,
		text: "", "/help": "", "a b.png": "", image + " what is it?": ""} {
		if got := draggedImage(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	tk := newTestTalk(t, model, "--device", "cpu", "--predict", "4")
	if line, isOne := isCommand(quoted); !isOne {
		t.Error("a dragged image is no command")
	} else if out, _, _, err := tk.command(line); err != nil || !strings.Contains(out, "1 image") {
		t.Errorf("%q, %v", out, err)
	}
	u, err := tk.say(t.Context(), "what is it?")
	all(t, u, err)
	if parts, _ := tk.messages[0].Content.([]chat.Part); len(parts) != 2 || len(tk.images) != 0 || u.Result().Prompt < 20 {
		t.Errorf("a message of %d parts, a prompt of %d tokens", len(parts), u.Result().Prompt)
	}
}
