// A driver library for tests without a GPU: device memory is the host's, kernels are not run but written to a log, and
// $FAKE_CUDA names what goes wrong. It checks what a real driver would check, and ends the program where that would
// crash.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "fake driver: %s: %s\n", __func__, #x); abort(); } } while (0)

static int wrong(const char* what) { // whether $FAKE_CUDA names it, by whole words
  const char* e = getenv("FAKE_CUDA");
  size_t n = strlen(what);
  for (; e && *e; e += strcspn(e, " "), e += *e == ' ')
    if (strncmp(e, what, n) == 0 && (e[n] == ' ' || !e[n])) return 1;
  return 0;
}

static int started, capturing, hangs; // hangs: since a kernel was launched that does not end
struct context { int memory, failed; char stream; }; // memory: allocations, which go with it
static __thread struct context* current;
struct graph { int launches; };
struct module { char text[64]; };
struct function { char name[64]; int shared, carve; };
static char record[1 << 16];
static struct graph* capture;
static _Atomic int live; // contexts, allocations, streams, events, modules, graphs
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static u64 kept[1000]; // what was compiled
static int compiled, together, busy; // kernels; contexts that compiled at once, at most and now

const char* fake_log(void) { return record; }
int fake_live(void) { return live; }
int fake_compiled(void) { return compiled; }
int fake_together(void) { return together; }
int fake_recover(void) { return hangs = 0; }
static void note(const char* s) {
  pthread_mutex_lock(&lock);
  strncat(record, s, sizeof record - strlen(record) - 1);
  pthread_mutex_unlock(&lock);
}
// Compiles what is not kept, if drivers are slow at that. Short kernels take no time, as they take little there.
static void compile(const char* text) {
  u64 hash = 1;
  for (const char* c = text; *c; c++) hash = hash * 31 + (unsigned char)*c;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < compiled; i++)
    if (kept[i] == hash) { pthread_mutex_unlock(&lock); return; }
  CHECK(compiled < 1000);
  kept[compiled++] = hash;
  if (++busy > together) together = busy;
  pthread_mutex_unlock(&lock);
  if (strlen(text) > 50000) usleep(60000);
  pthread_mutex_lock(&lock);
  busy--;
  pthread_mutex_unlock(&lock);
}

int cuInit(unsigned flags) {
  CHECK(flags == 0);
  if (wrong("nodevice")) return 100;
  started = 1;
  return 0;
}
int cuGetErrorName(int r, const char** s) { *s = r == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : r == 218
    ? "CUDA_ERROR_INVALID_PTX" : r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0; return 0; }
int cuGetErrorString(int r, const char** s) { *s = r == 2 ? "out of memory" : r == 218
    ? "a PTX JIT compilation failed" : r == 700 ? "an illegal memory access was encountered" : 0; return 0; }
int cuDeviceGetCount(int* n) {
  if (!started) return 3;
  *n = 1;
  return 0;
}
int cuDeviceGet(int* d, int i) { CHECK(i == 0); *d = 5; return 0; }
int cuDeviceGetName(char* s, int n, int d) { CHECK(d == 5); snprintf(s, n, "Fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t* n, int d) { CHECK(d == 5); *n = 1 << 30; return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
  CHECK(d == 5);
  *v = a == 75 ? (wrong("old") ? 7 : 9) : a == 76 ? 0 : a == 16 ? 132 : a == 97 ? 232448 : -1;
  return 0;
}
int cuCtxCreate_v2(struct context** c, unsigned flags, int d) { CHECK(flags == 0 && d == 5);
    if (wrong("one") && live) return 2;
    *c = current = calloc(1, sizeof **c); live++; return 0; }
int cuCtxDestroy_v2(struct context* c) { CHECK(c == current); live -= 1 + c->memory; free(c); current = 0; return 0; }
int cuCtxSetCurrent(struct context* c) { CHECK(c); current = c; return 0; }
int cuMemGetInfo_v2(size_t* f, size_t* t) { *f = wrong("roomy") ? 8ul << 30 : 1 << 29; *t = 1 << 30; return 0; }
int cuMemAlloc_v2(u64* p, size_t n) {
  if (n > 1 << 30) return 2;
  *p = (u64)aligned_alloc(256, (n + 255) / 256 * 256);
  live++;
  current->memory++;
  return 0;
}
int cuMemFree_v2(u64 p) { free((void*)p); live--; current->memory--; return 0; }
int cuMemHostAlloc(void** p, size_t n, unsigned flags) { CHECK(flags == 0); *p = malloc(n); live++; return 0; }
int cuMemFreeHost(void* p) { free(p); live--; return 0; }
static int stream_ok(void* s) { return s == &current->stream; }
int cuMemcpyHtoDAsync_v2(u64 d, const void* s, size_t n, void* st) { CHECK(stream_ok(st)); memcpy((void*)d, s, n);
    return current->failed; }
int cuMemcpyDtoHAsync_v2(void* d, u64 s, size_t n, void* st) { CHECK(stream_ok(st)); memcpy(d, (void*)s, n);
    return current->failed; }
int cuMemcpyDtoDAsync_v2(u64 d, u64 s, size_t n, void* st) { CHECK(stream_ok(st)); memmove((void*)d, (void*)s, n);
    return current->failed; }
int cuMemsetD8Async(u64 d, unsigned char v, size_t n, void* st) { CHECK(stream_ok(st)); memset((void*)d, v, n);
    return current->failed; }
int cuStreamCreate(void** s, unsigned flags) { CHECK(flags == 1); *s = &current->stream; live++; return 0; }
int cuStreamDestroy_v2(void* s) { CHECK(stream_ok(s)); live--; return 0; }
int cuStreamQuery(void* s) {
  static int asked;
  CHECK(stream_ok(s) && !capturing);
  if (hangs || ++asked % 3) return 600; // not ready
  return current->failed;
}
int cuEventCreate(void** e, unsigned flags) { CHECK(flags == 2); *e = malloc(1); live++; return 0; }
int cuEventDestroy_v2(void* e) { free(e); live--; return 0; }
int cuEventRecord(void* e, void* s) { CHECK(e && stream_ok(s)); note("event\n"); return 0; }
int cuEventQuery(void* e) {
  static int asked;
  CHECK(e);
  if (hangs || ++asked % 3) return 600; // not ready
  note("wait for event\n");
  return 0;
}
int cuEventElapsedTime(float* ms, void* a, void* b) { CHECK(a); CHECK(b); *ms = 1; return 0; }
int cuModuleLoadDataEx(void** m, const char* text, unsigned n, const int* options, void** values) {
  CHECK(n == 2 && options[0] == 5 && options[1] == 6 && (size_t)values[1] > 100);
  CHECK(current && strstr(text, ".target sm_"));
  if (wrong("ptx")) {
    strcpy((char*)values[0], "line 7: unknown instruction");
    return 218;
  }
  if (wrong("slow")) compile(text);
  struct module* x = calloc(1, sizeof *x);
  strncpy(x->text, strstr(text, ".target sm_") + 8, 6);
  x->text[strcspn(x->text, "\n")] = 0;
  note("load "); note(x->text); note("\n");
  *m = x;
  live++;
  return 0;
}
int cuModuleUnload(void* m) { free(m); live--; return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) {
  CHECK(m);
  struct function* x = calloc(1, sizeof *x);
  strncpy(x->name, name, 63);
  *f = x;
  return 0;
}
int cuFuncSetAttribute(struct function* f, int a, int v) {
  CHECK(a == 8 || a == 9);
  if (a == 8) f->shared = v;
  else f->carve = v;
  return 0;
}
struct attr { unsigned id, pad; unsigned value[16]; };
struct config { unsigned grid[3], block[3], shared; void* stream; struct attr* attrs; unsigned n; };
int cuLaunchKernelEx(const struct config* c, struct function* f, void** params, void** extra) {
  CHECK(stream_ok(c->stream) && !extra && f->carve == 100 && f->shared >= (int)c->shared);
  CHECK(c->n == 0 || c->n == 1 && c->attrs->id == 6 && c->attrs->value[0] == 1);
  if (wrong("launch")) return 1;
  char line[200];
  snprintf(line, sizeof line, "%slaunch %s grid %u,%u,%u threads %u shared %u early %u first %llx\n", capturing
      ? "captured " : "", f->name, c->grid[0],
           c->grid[1], c->grid[2], c->block[0], c->shared, c->n, *(u64*)params[0]);
  note(line);
  if (capture) capture->launches++;
  if (wrong("fault") && !capturing) current->failed = 700;
  if (wrong("hang")) hangs = 1;
  return 0;
}
int cuStreamBeginCapture_v2(void* s, int mode) { CHECK(stream_ok(s) && mode == 2 && !capturing); capturing = 1;
    capture = calloc(1, sizeof *capture); live++; return 0; }
int cuStreamEndCapture(void* s, struct graph** g) { CHECK(stream_ok(s) && capturing); capturing = 0; *g = capture;
    capture = 0; return 0; }
int cuGraphInstantiateWithFlags(struct graph** e, struct graph* g, u64 flags) { CHECK(flags == 0);
    if (wrong("graphs")) return 2;
    *e = malloc(sizeof **e); **e = *g; live++; return 0; }
int cuGraphDestroy(struct graph* g) { free(g); live--; return 0; }
int cuGraphExecDestroy(struct graph* g) { free(g); live--; return 0; }
int cuGraphLaunch(struct graph* e, void* s) {
  CHECK(stream_ok(s) && !capturing);
  char line[100];
  snprintf(line, sizeof line, "graph of %d\n", e->launches);
  note(line);
  return 0;
}
