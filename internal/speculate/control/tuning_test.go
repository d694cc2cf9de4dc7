package control

import (
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// STROBE_TUNING=name=value changes a number of tuning.go for all tests.
func init() {
	name, value, ok := strings.Cut(os.Getenv("STROBE_TUNING"), "=")
	if !ok {
		return
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil {
		panic("STROBE_TUNING: " + err.Error())
	}
	f := reflect.ValueOf(&tune).Elem().FieldByName(name)
	f = reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	if f.CanInt() {
		f.SetInt(int64(math.Round(x)))
	} else {
		f.SetFloat(x)
	}
}

var runNumbers = flag.Bool("numbers", false, "TestEveryNumberMatters runs tests with other numbers, for three minutes")

// TestEveryNumberMatters: tuning.go names tests beside every number. With -numbers, which is for changes of tuning.go,
// one of them fails when the number is halved or doubled; they run in other processes.
func TestEveryNumberMatters(t *testing.T) {
	source, err := os.ReadFile("tuning.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, seen := "", map[string]bool{}
	numbers := regexp.MustCompile(`(\w+): +[^,]+,`)
	for line := range strings.Lines(string(source)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "//") {
			comment += line
			continue
		}
		line, _, _ = strings.Cut(line, "//")
		for _, m := range numbers.FindAllStringSubmatch(line, -1) {
			seen[m[1]] = true
			tests := regexp.MustCompile(`Test\w+`).FindAllString(comment, -1)
			if len(tests) == 0 {
				t.Errorf("%s: no test is named", m[1])
			} else if *runNumbers && !matters(t, m[1], tests) {
				t.Errorf("%s: %s do not notice half or twice the number", m[1], tests)
			}
		}
		comment = ""
	}
	if n := reflect.TypeOf(tune).NumField(); len(seen) != n {
		t.Errorf("%d numbers are explained, there are %d", len(seen), n)
	}
}

// matters runs tests with half and twice a number.
func matters(t *testing.T, name string, tests []string) bool {
	f := reflect.ValueOf(tune).FieldByName(name)
	for _, factor := range []float64{0.5, 2} {
		value := factor
		if f.CanInt() {
			value *= float64(f.Int())
		} else {
			value *= f.Float()
		}
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.failfast", "-test.run=^("+strings.Join(tests, "|")+")$")
		c.Env = append(os.Environ(), fmt.Sprintf("STROBE_TUNING=%s=%g", name, value))
		if c.Run() != nil {
			return true
		}
	}
	return false
}
