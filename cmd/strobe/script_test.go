package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"strobe/internal/testkit"
)

// TestMain lets scripts run this binary as the command, without the settings of whoever runs the tests.
func TestMain(m *testing.M) {
	if os.Getenv("WORK") == "" { // not in a script, which has none but its own
		os.Setenv("XDG_CONFIG_HOME", filepath.Join(os.TempDir(), "no-settings-of-strobe"))
	}
	testscript.Main(m, map[string]func(){"strobe": main, "curl": curl})
}

// TestScripts runs the command lines in testdata/script as a user would, each file in a folder of its own. They are
// in the language of the package testscript, with two more commands:
//
//	truncate FILE SIZE     cut a file
//	onlyfiles DIR NAME...  DIR holds nothing else
//
// $GOLDEN is the folder of golden models.
func TestScripts(t *testing.T) {
	golden := filepath.Join(testkit.Root(t), "testdata", "golden")
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: func(env *testscript.Env) error { env.Setenv("GOLDEN", golden); return nil },
		Cmds: map[string]func(ts *testscript.TestScript, not bool, args []string){
			"truncate": func(ts *testscript.TestScript, _ bool, args []string) {
				n, err := parseSize(args[1])
				ts.Check(err)
				ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
			},
			"onlyfiles": func(ts *testscript.TestScript, _ bool, args []string) {
				entries, err := os.ReadDir(ts.MkAbs(args[0]))
				ts.Check(err)
				var names []string
				for _, e := range entries {
					names = append(names, e.Name())
				}
				if got, want := strings.Join(names, " "), strings.Join(args[1:], " "); got != want {
					ts.Fatalf("%s holds %q, want %q", args[0], got, want)
				}
			},
		},
	})
}

// curl is as much of the program of that name as the pages use: an address, and data to send with -d.
func curl() {
	var url, data string
	for i := 1; i < len(os.Args); i++ {
		switch a := os.Args[i]; {
		case a == "-d" && i+1 < len(os.Args):
			i++
			data = os.Args[i]
		case strings.HasPrefix(a, "-"):
			fmt.Fprintln(os.Stderr, "curl: unknown flag", a)
			os.Exit(2)
		default:
			url = "http://" + strings.TrimPrefix(a, "http://")
		}
	}
	resp, err := http.Get(url)
	if data != "" {
		resp, err = http.Post(url, "application/json", strings.NewReader(data))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "curl:", err)
		os.Exit(7)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(os.Stdout, resp.Body)
	if resp.StatusCode != http.StatusOK {
		os.Exit(22)
	}
	os.Exit(0)
}
