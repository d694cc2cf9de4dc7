//go:build linux && (amd64 || arm64)

package emulate

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Compiler compiles kernels, for the emulation and for devices.
const Compiler = "clang-19"

// ErrNoCompiler says that the emulation cannot be built here.
var ErrNoCompiler = errors.New(Compiler + " is not installed")

// Sources is the folder of the kernels, beside this package in the checkout that the test was built from.
func Sources() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "kernel")
}

// hopperLine marks files whose kernels for 9.0 the emulation runs; others are compiled as for 8.0.
const hopperLine = "// emulated as for sm_90"

// build compiles all kernels in dir for the processor, for the race detector or without it, and returns the shared
// library. Objects are stored in the user's
// cache folder under a hash of what they were made from, so that only what changed is compiled, wherever the checkout
// lies.
func build(dir string, races bool) (string, error) {
	clang, err := exec.LookPath(Compiler)
	if err != nil {
		return "", ErrNoCompiler
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "strobe-emulation")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	flags := []string{"-x", "c++", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden",
		"-fno-exceptions",
		"-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-unknown-pragmas", "-Wno-pass-failed",
		"-Wno-invalid-feature-combination",
		"-DEMULATE", "-O2",
		// Without unrolling: compiling takes a quarter of the time, and fibers cost more than loops.
		"-mllvm", "-pragma-unroll-threshold=200"}
	hooks := []string{}
	if races {
		flags = append(flags, "-DRACES", "-gline-tables-only")
		// Hooks see accesses of up to 16 bytes; -O1 makes no wider ones.
		hooks = []string{"-O1", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0"}
	}
	if runtime.GOARCH == "amd64" {
		flags = append(flags, "-march=native") // for fused multiply-add and halves
	}
	sources, _ := filepath.Glob(filepath.Join(dir, "*.cu"))
	if len(sources) == 0 {
		return "", fmt.Errorf("no kernels in %s", dir)
	}
	emulation := filepath.Join(Sources(), "emulate.cc")
	sources = append(sources, emulation)
	objects := make([]string, len(sources))
	errs := make([]error, len(sources))
	var all sync.WaitGroup
	limit := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, src := range sources {
		text, err := os.ReadFile(src)
		if err != nil {
			return "", err
		}
		flags := slices.Clone(flags)
		if src != emulation {
			flags = append(flags, hooks...)
		}
		if strings.Contains(string(text), "\n"+hopperLine) {
			flags = append(flags, "-DHOPPER")
		}
		key, err := hash(append(slices.Clone(flags), clang), included(src, nil))
		if err != nil {
			return "", err
		}
		objects[i] = filepath.Join(cache, strings.TrimSuffix(filepath.Base(src), filepath.Ext(src))+"-"+key+".o")
		all.Go(func() {
			limit <- struct{}{}
			errs[i] = make1(objects[i], clang, append(slices.Clone(flags), "-I", Sources(), "-c", src))
			<-limit
		})
	}
	if all.Wait(); errors.Join(errs...) != nil {
		return "", errors.Join(errs...)
	}
	key, err := hash(objects, nil)
	if err != nil {
		return "", err
	}
	lib := filepath.Join(cache, "kernels-"+key+".so")
	return lib, make1(lib, clang, append([]string{"-shared"}, append(objects, "-lm", "-lpthread")...))
}

var include = regexp.MustCompile(`(?m)^#include "([^"]+)"`)

// included adds a source and what it includes, and what that includes, to a list. What is not there is left to the
// compiler.
func included(src string, list []string) []string {
	text, err := os.ReadFile(src)
	if err != nil || slices.Contains(list, src) {
		return list
	}
	list = append(list, src)
	for _, m := range include.FindAllSubmatch(text, -1) {
		list = included(filepath.Join(Sources(), string(m[1])), list)
	}
	return list
}

// hash names a result by the words and the contents of the files it is made from.
func hash(words, files []string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q", words)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:10]), nil
}

// make1 runs a command that writes a file, unless the file is there. Packages are tested at the same time: one process
// makes it, others wait.
func make1(file, command string, args []string) error {
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("%s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d", file, os.Getpid())
	defer os.Remove(tmp)
	out, err := exec.Command(command, append(args, "-o", tmp)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", command, strings.Join(args, " "), err, out)
	}
	return os.Rename(tmp, file)
}
