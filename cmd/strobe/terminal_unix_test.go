//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

// terminal is the program in an emulated terminal, as a user sees it.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	vt   vt10x.Terminal
	done chan struct{} // closed when the program has ended

	mu   sync.Mutex
	seen map[string]bool // rows that were on the screen at some time
}

// startTerminal runs a command line in a terminal of the given size.
func startTerminal(t *testing.T, columns, rows int, args ...string) *terminal {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, vt: vt10x.New(vt10x.WithSize(columns, rows)), done: make(chan struct{}), seen: map[string]bool{}}
	x.cmd = exec.Command(os.Args[0], "-test.run=^TestProcess$")
	x.cmd.Env = append(os.Environ(), argsVariable+"="+string(b), "TERM=xterm-256color", "NO_COLOR=",
		"XDG_STATE_HOME="+t.TempDir())
	if x.tty, err = pty.StartWithSize(x.cmd, &pty.Winsize{Cols: uint16(columns), Rows: uint16(rows)}); err != nil {
		t.Fatal(err)
	}
	go x.read()
	t.Cleanup(func() {
		x.cmd.Process.Kill()
		x.cmd.Wait()
		x.tty.Close()
		<-x.done
	})
	return x
}

// newer are sequences of newer terminals, which the emulator would take for others.
var newer = regexp.MustCompile(`\x1b\[[<>=?][0-9;]*[um]`)

// unfinished is a sequence whose end has not been read.
var unfinished = regexp.MustCompile(`\x1b(\[[^@-~]*)?$`)

// read shows the emulator what the program writes. Every row is noted before the next can push it off the screen.
func (x *terminal) read() {
	defer close(x.done)
	buf, rest := make([]byte, 1<<16), ""
	for {
		n, err := x.tty.Read(buf)
		text := rest + string(buf[:n])
		rest = unfinished.FindString(text)
		text = newer.ReplaceAllString(strings.TrimSuffix(text, rest), "")
		x.mu.Lock()
		for line := range strings.SplitAfterSeq(text, "\n") {
			x.note()
			x.vt.Write([]byte(line))
			x.note()
		}
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (x *terminal) note() {
	for row := range strings.SplitSeq(x.vt.String(), "\n") {
		x.seen[strings.TrimRight(row, " ")] = true
	}
}

// screen is the text on the screen.
func (x *terminal) screen() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	rows := strings.Split(x.vt.String(), "\n")
	for i := range rows {
		rows[i] = strings.TrimRight(rows[i], " ")
	}
	return strings.Join(rows, "\n")
}

// words is the text of the screen without what wrapping and boxes add.
func words(screen string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("│", " ", "╭", " ", "╰", " ").Replace(screen)), " ")
}

// await waits until the screen holds a text.
func (x *terminal) await(text string) {
	x.t.Helper()
	limit := time.Now().Add(2 * time.Minute)
	for !strings.Contains(words(x.screen()), text) {
		if time.Now().After(limit) {
			x.t.Fatalf("the screen never said %q:\n%s", text, x.screen())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (x *terminal) write(keys string) {
	if _, err := x.tty.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// picture draws the screen into a file of the folder STROBE_SCREENS, for those who want to look at it.
func (x *terminal) picture(name string) {
	dir := os.Getenv("STROBE_SCREENS")
	if dir == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	columns, rows := x.vt.Size()
	const w, h, size = 10, 21, 16
	f, err := opentype.Parse(monospaced())
	if err != nil {
		x.t.Fatal(err)
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: size, DPI: 72})
	if err != nil {
		x.t.Fatal(err)
	}
	img := image.NewRGBA(image.Rect(0, 0, columns*w, rows*h))
	draw.Draw(img, img.Bounds(), image.NewUniform(color.RGBA{0x14, 0x18, 0x1d, 0xff}), image.Point{}, draw.Src)
	for row := range rows {
		for col := range columns {
			g := x.vt.Cell(col, row)
			c := color.RGBA{0xd7, 0xdd, 0xe4, 0xff}
			switch {
			case g.FG == vt10x.Green:
				c = color.RGBA{0x5f, 0xd3, 0x8d, 0xff}
			case g.FG == vt10x.Cyan || g.FG == vt10x.LightCyan:
				c = color.RGBA{0x5f, 0xc8, 0xd3, 0xff}
			case g.Mode != 0:
				c = color.RGBA{0xff, 0xff, 0xff, 0xff}
			}
			d := font.Drawer{Dst: img, Src: image.NewUniform(c), Face: face, Dot: fixed.P(col*w, row*h+size)}
			d.DrawString(string(g.Char))
		}
	}
	out, err := os.Create(filepath.Join(dir, name+".png"))
	if err != nil {
		x.t.Fatal(err)
	}
	defer out.Close()
	if err := png.Encode(out, img); err != nil {
		x.t.Fatal(err)
	}
}

// monospaced is a font that can draw boxes, where the system has one.
func monospaced() []byte {
	if b, err := os.ReadFile("/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"); err == nil {
		return b
	}
	return gomono.TTF
}

// sizes of terminals: half a screen, the old standard, a large window.
var sizes = [][2]int{{60, 20}, {80, 24}, {160, 50}}

// TestDemoTerminal: the race says everything at every size, and cuts nothing.
func TestDemoTerminal(t *testing.T) {
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			x := startTerminal(t, size[0], size[1], "demo", "-n", "48")
			<-x.done
			x.picture(fmt.Sprintf("demo-%dx%d", size[0], size[1]))
			screen := x.screen()
			text := words(screen)
			for _, want := range []string{"strobe demo: Strobe Go 66M on cpu", "plain", "DFlash",
				"times as fast with DFlash: ", " plainly", "the texts are identical: sha256"} {
				if !strings.Contains(text, want) {
					t.Errorf("the screen lacks %q", want)
				}
			}
			if n := strings.Count(screen, " per pass"); n != 2 {
				t.Errorf("%d lanes say how many tokens a pass gave", n)
			}
			if strings.Contains(screen, "…") {
				t.Error("something is cut")
			}
			if t.Failed() {
				t.Log("\n" + screen)
			}
		})
	}
}

// TestChatTerminal: a conversation with help and a long message, at every size.
func TestChatTerminal(t *testing.T) {
	long := "// Reverse returns its argument string reversed rune-wise left to right, and " +
		strings.Repeat("what is longer than a row is wrapped between words, ", 4) + "as here."
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			x := startTerminal(t, size[0], size[1], "chat", "-n", "60", "--temp", "0", "--no-history")
			x.await("Strobe Go 66M, 0 of 4096 tokens used")
			x.write("/help\r")
			x.await("Ctrl-D leaves.")
			x.write(long)
			x.await("as here.")
			x.picture(fmt.Sprintf("chat-typing-%dx%d", size[0], size[1]))
			x.write("\r")
			x.await("generated 60 tokens")
			x.await("Strobe Go 66M, 1")
			x.picture(fmt.Sprintf("chat-%dx%d", size[0], size[1]))
			text := words(x.screen())
			if !strings.Contains(text, "tokens per pass") && !strings.Contains(text, "drafting paused") {
				t.Error("the numbers do not say what drafting did")
			}
			// Whoever looked all the time saw every row, wrapped between words.
			help := (&screen{width: size[0]}).wrap(chatHelp())
			x.mu.Lock()
			for row := range strings.SplitSeq(help, "\n") {
				if !x.seen[strings.TrimRight(row, " ")] {
					t.Errorf("never seen: %q", row)
				}
			}
			x.mu.Unlock()
			if t.Failed() {
				t.Log("\n" + x.screen())
			}
			x.write("\x04")
			<-x.done
		})
	}
}

// TestDumbTerminal: nothing is drawn on a terminal that cannot.
func TestDumbTerminal(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	for name, want := range map[string]bool{"dumb": false, "xterm": true} {
		t.Setenv("TERM", name)
		cmd := newDevicesCmd()
		cmd.SetErr(tty)
		if p := newProgress(cmd, "x", 1); (p.bar != nil) != want {
			t.Errorf("TERM=%s: a bar is drawn: %v", name, !want)
		}
	}
}
