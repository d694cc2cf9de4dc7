// Command cost counts the cycles of products on ARM without an ARM machine: qemu records every instruction of one
// product, and llvm-mca says how long a core would take for them if nothing but its ports, its width and the latencies
// mattered (no cache misses, no wrong predictions, no competition for memory). It prints cycles per 1000 products of a
// weight and an activation.
//
//	go run ./internal/backend/cpu/kernel/cost                    our kernels
//	go run ./internal/backend/cpu/kernel/cost -llama FOLDER      and those of llama.cpp, whose source is in FOLDER
//
// It needs qemu-aarch64 and, from LLVM 19, llvm-mca, llvm-objdump and for llama.cpp clang and lld.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A product of 16 rows. Rows are long enough that what happens once for each does not count much.
const (
	rows = 16
	k    = 1024
)

// core is a model of llvm-mca, and the level of our kernels that runs on it.
type core struct{ name, model, level string }

var cores = []core{
	{"Neoverse N1 (Graviton 2)", "neoverse-n1", "dotprod"},
	{"Neoverse V1 (Graviton 3)", "neoverse-v1", "i8mm"},
	{"Neoverse V2 (Graviton 4)", "neoverse-v2", "i8mm"},
	{"Apple (the model of the A7)", "apple-m1", "dotprod"},
	{"Apple (the model of the A7), i8mm", "apple-m2", "i8mm"},
}

func main() {
	log.SetFlags(0)
	llama := flag.String("llama", "", "folder with the source of llama.cpp")
	only := flag.String("core", "", "count for this model of llvm-mca only")
	flag.Parse()
	dir, err := os.MkdirTemp("", "cost")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t := tracer{dir: dir, texts: map[string]map[uint64]string{}, traces: map[string]string{}}
	once := filepath.Join(dir, "once")
	command([]string{"GOARCH=arm64", "CGO_ENABLED=0"}, "go", "build", "-o", once, "./internal/backend/cpu/kernel/cost/once")
	peers := map[string]string{}
	if *llama != "" {
		for _, l := range []string{"dotprod", "i8mm"} {
			peers[l] = peer(dir, *llama, l)
		}
	}
	for _, c := range cores {
		if *only != "" && *only != c.model {
			continue
		}
		fmt.Printf("\n| %s, cycles per 1000 products | 1 column | 4 | 8 | 16 |\n|---|---|---|---|---|\n", c.name)
		for _, typ := range []string{"Q4_K", "Q6_K", "Q8_0"} {
			for _, woven := range []string{"", "woven"} {
				if woven != "" && typ == "Q8_0" {
					continue
				}
				line := fmt.Sprintf("| %s", strings.TrimSpace(typ+" "+woven))
				for _, n := range []int{1, 4, 8, 16} {
					args := []string{typ, strconv.Itoa(rows), strconv.Itoa(k), strconv.Itoa(n)}
					if woven != "" {
						args = append(args, woven)
					}
					cost := t.cost(c.model, once, "kernel/qmat.", "STROBE_CPU="+c.level, args, n)
					line += fmt.Sprintf(" | %.0f", cost)
				}
				fmt.Println(line + " |")
			}
			if *llama == "" {
				continue
			}
			line := "| " + typ + " llama.cpp, repacked"
			for _, n := range []int{1, 4, 8, 16} {
				line += fmt.Sprintf(" | %.0f", t.cost(c.model, peers[c.level], "ggml_gem", "", []string{typ, strconv.Itoa(n)}, n))
			}
			fmt.Println(line + " |")
		}
	}
}

func command(env []string, name string, args ...string) []byte {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}

// tracer remembers what it disassembled and recorded.
type tracer struct {
	dir    string
	texts  map[string]map[uint64]string
	traces map[string]string
}

// cost runs a program with qemu and returns the cycles per 1000 products of what it executed in functions whose names
// contain part.
func (t *tracer) cost(model, program, part, env string, args []string, n int) float64 {
	from, to := symbols(program, part)
	text := t.texts[program]
	if text == nil {
		text = disassemble(program, from, to)
		t.texts[program] = text
	}
	key := fmt.Sprint(program, env, args)
	if t.traces[key] == "" {
		t.traces[key] = t.record(program, env, args, from, to, text)
	}
	asm := filepath.Join(t.dir, "code.s")
	if err := os.WriteFile(asm, []byte(t.traces[key]), 0o644); err != nil {
		log.Fatal(err)
	}
	out := command(nil, "llvm-mca-19", "-mtriple=aarch64", "-mcpu="+model, "-mattr=+dotprod,+i8mm,+fullfp16",
		"-iterations=1", "-instruction-info=0", "-resource-pressure=0", asm)
	m := regexp.MustCompile(`Total Cycles:\s+(\d+)`).FindSubmatch(out)
	if m == nil {
		log.Fatalf("llvm-mca: %s", out)
	}
	cycles, _ := strconv.ParseFloat(string(m[1]), 64)
	return cycles * 1000 / float64(rows*k*n)
}

// record runs a program and returns the instructions that it executed, from the product on.
func (t *tracer) record(program, env string, args []string, from, to uint64, text map[uint64]string) string {
	start, _ := symbols(program, "qmat.(*Matrix).Mul")
	logFile := filepath.Join(t.dir, "log")
	command([]string{env, "GOMAXPROCS=1", "GOGC=off"}, "qemu-aarch64", append([]string{"-cpu", "max", "-singlestep",
		"-dfilter", fmt.Sprintf("0x%x..0x%x", from, to), "-d", "exec,nochain", "-D", logFile, program}, args...)...)
	recorded, err := os.ReadFile(logFile)
	if err != nil {
		log.Fatal(err)
	}
	var code strings.Builder
	pc := regexp.MustCompile(`\[[0-9a-f]+/([0-9a-f]+)/`)
	begun := start == 0
	for _, m := range pc.FindAllSubmatch(recorded, -1) {
		at, _ := strconv.ParseUint(string(m[1]), 16, 64)
		begun = begun || at == start
		if s, ok := text[at]; ok && begun {
			code.WriteString(s + "\n")
		}
	}
	if code.Len() == 0 {
		log.Fatalf("%s %v: nothing was recorded", program, args)
	}
	return code.String()
}

// symbols is the range of the functions whose names contain part.
func symbols(program, part string) (from, to uint64) {
	out := command(nil, "llvm-objdump-19", "-t", program)
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 5 || !strings.Contains(s.Text(), " F ") || !strings.Contains(f[len(f)-1], part) {
			continue
		}
		at, err1 := strconv.ParseUint(f[0], 16, 64)
		size, err2 := strconv.ParseUint(f[len(f)-2], 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		if from == 0 || at < from {
			from = at
		}
		to = max(to, at+size)
	}
	return from, to // 0 if there is none
}

// disassemble returns the instructions by address. Targets of jumps mean nothing to llvm-mca, and it takes a call for a
// hundred cycles: calls and returns become jumps.
func disassemble(program string, from, to uint64) map[uint64]string {
	out := command(nil, "llvm-objdump-19", "-d", "--no-show-raw-insn", "--mattr=+dotprod,+i8mm,+fullfp16",
		fmt.Sprintf("--start-address=0x%x", from), fmt.Sprintf("--stop-address=0x%x", to), program)
	text := map[uint64]string{}
	line := regexp.MustCompile(`^\s*([0-9a-f]+):\s+(.*)$`)
	target := regexp.MustCompile(`0x[0-9a-f]+ <.*>$`)
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		m := line.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		at, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			continue
		}
		ins := m[2]
		if i := strings.Index(ins, "//"); i >= 0 {
			ins = ins[:i]
		}
		ins = strings.TrimSpace(ins)
		if strings.HasPrefix(ins, "adr") {
			ins = target.ReplaceAllString(ins, "#4096")
		}
		ins = target.ReplaceAllString(ins, "#4")
		if op, _, _ := strings.Cut(ins, "\t"); op == "bl" || op == "blr" || op == "ret" {
			ins = "b\t#4"
		}
		if strings.HasPrefix(ins, "<") || strings.HasPrefix(ins, "udf") {
			continue
		}
		text[at] = ins
	}
	return text
}

// peer builds a program without a C library that calls llama.cpp's kernels for repacked weights.
func peer(dir, llama, level string) string {
	arch, gemm4, gemm6, gemm8 := "armv8.2-a+dotprod+fp16", "8x4", "8x4", "4x4"
	if level == "i8mm" {
		arch, gemm4, gemm6, gemm8 = "armv8.6-a+i8mm+fp16", "8x8", "8x8", "4x8"
	}
	// Headers of the C library for another processor do, but for the size of a word.
	inc := filepath.Join(dir, "inc")
	for name, text := range map[string]string{"gnu/stubs-32.h": "", "bits/wordsize.h": "#define __WORDSIZE 64\n" +
		"#define __WORDSIZE_TIME64_COMPAT32 0\n#define __SYSCALL_WORDSIZE 64\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(inc, name)), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(inc, name), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	src := fmt.Sprintf(`typedef unsigned long size_t;
#define F(name) void name(int n, float *s, size_t bs, const void *vx, const void *vy, int nr, int nc)
F(ggml_gemv_q4_K_%[1]s_q8_K); F(ggml_gemm_q4_K_%[1]s_q8_K); F(ggml_gemv_q6_K_%[2]s_q8_K); F(ggml_gemm_q6_K_%[2]s_q8_K);
F(ggml_gemv_q8_0_%[3]s_q8_0); F(ggml_gemm_q8_0_%[3]s_q8_0);
#define CALL(t) if (n == 1) ggml_gemv_##t(%[5]d, y, %[4]d, w, x, 1, %[4]d); \
	else ggml_gemm_##t(%[5]d, y, %[4]d, w, x, n, %[4]d); break;
static char w[1 << 20], x[1 << 20];
static float y[1 << 16];
void *memset(void *p, int v, size_t n) { for (char *c = p; n--;) *c++ = v; return p; }
void *memcpy(void *p, const void *q, size_t n) { char *c = p; for (const char *d = q; n--;) *c++ = *d++; return p; }
void cost(long *sp) {
	char **argv = (char **)(sp + 1);
	int n = 0;
	for (char *c = argv[2]; *c; c++) n = 10 * n + *c - '0';
	switch (argv[1][1]) {
	case '4': CALL(q4_K_%[1]s_q8_K)
	case '6': CALL(q6_K_%[2]s_q8_K)
	case '8': CALL(q8_0_%[3]s_q8_0)
	}
	__asm__ volatile("mov x0, #0\n mov x8, #94\n svc #0");
}
__asm__(".global _start\n_start: mov x0, sp\n b cost");
`, gemm4, gemm6, gemm8, rows, k)
	main := filepath.Join(dir, "main.c")
	if err := os.WriteFile(main, []byte(src), 0o644); err != nil {
		log.Fatal(err)
	}
	out := filepath.Join(dir, "llama-"+level)
	ggml := filepath.Join(llama, "ggml")
	flags := []string{"--target=aarch64-linux-gnu", "-O3", "-march=" + arch, "-c", "-DGGML_USE_CPU_REPACK"}
	command(nil, "clang-19", append(flags, "-ffreestanding", "-fno-builtin", "-o", out+".main.o", main)...)
	command(nil, "clang++-19", append(flags, "-isystem", "/usr/include/c++/12", "-isystem", inc, "-isystem",
		"/usr/include/x86_64-linux-gnu/c++/12", "-isystem", "/usr/include/x86_64-linux-gnu", "-isystem", "/usr/include",
		"-I"+ggml+"/include", "-I"+ggml+"/src", "-I"+ggml+"/src/ggml-cpu", "-o", out+".repack.o",
		ggml+"/src/ggml-cpu/arch/arm/repack.cpp")...)
	command(nil, "ld.lld-19", "-static", "--unresolved-symbols=ignore-all", "-o", out, out+".main.o", out+".repack.o")
	return out
}
