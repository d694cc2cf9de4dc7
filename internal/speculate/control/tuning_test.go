package control

import (
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

	"strobe/internal/testkit"
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

// TestEveryNumberMatters: of the tests that tuning.go names beside a number, one fails when the number is halved or
// doubled. It runs them in other processes, some minutes long.
func TestEveryNumberMatters(t *testing.T) {
	testkit.Long(t)
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
			} else if !matters(t, m[1], tests) {
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
